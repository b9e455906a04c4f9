"""Cancelling in the engine: whatever a request is doing, it ends once with `cancelled` and lets go of what it held."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from scheduling.priority import PriorityClass
from tests.workers.engine.engine_rig import Rig
from tests.workers.engine.table_rig import TableRig
from topics.control_orders import Cancel
from topics.errors import RequestError
from workers.configuration.config import EngineConfig
from workers.engine.cancelling import Cancelling
from workers.engine.messages import Cancelled, EngineMessage, Revoked
from workers.intake.request import FinishReason, Moved

LATER_MS = 10**15


def cancelled(rig: Rig, *names: str) -> bool:
    errors = [ending.error for name in names if (ending := rig.endings[name].ending) is not None]
    return all(error is not None and error.code == "cancelled" for error in errors)


def order(name: str, scope: Any = "request", before_ms: int = LATER_MS) -> Cancelled:
    return Cancelled((Cancel(scope, name, before_ms),))


def test_a_running_request_ends_before_the_next_step_and_frees_its_blocks() -> None:
    rig = Rig()
    rig.arrive("a", output=50)
    rig.arrive("b", output=50)
    for _ in range(5):
        rig.parts.engine.step()
    held = rig.parts.kv.free_blocks
    rig.inbox.put(order("a"))
    rig.parts.engine.step()
    rig.take()
    assert cancelled(rig, "a")
    assert rig.parts.kv.free_blocks > held
    rig.run()
    assert rig.endings["b"].ending is not None
    assert rig.endings["b"].ending.error is None


def test_a_waiting_request_is_never_run() -> None:
    rig = Rig()
    rig.answer_staging = False
    rig.arrive("a")
    rig.inbox.put(order("a"))
    rig.run()
    assert cancelled(rig, "a")
    assert rig.published.get("a", []) == []


def test_a_request_that_the_staging_thread_has_is_not_run_when_it_comes_back() -> None:
    rig = Rig()
    rig.answer_staging = False
    rig.arrive("a")
    rig.run()
    (job,) = rig.jobs
    rig.inbox.put(order("a"))
    rig.answer(job)
    rig.run()
    assert cancelled(rig, "a")


@pytest.mark.parametrize("scope", ["tenant", "job"])
def test_all_of_a_tenant_or_a_job_ends_and_nobody_elses(scope: str) -> None:
    rig = Rig()
    for number in range(40):
        rig.arrive(f"mine{number}", tenant="mine", job_id="mine", output=20)
        rig.arrive(f"other{number}", tenant="other", job_id="other")
    rig.parts.engine.step()
    rig.inbox.put(order("mine", scope))
    rig.run()
    mine = {f"mine{number}" for number in range(40)}
    ended_well = {name for name, publication in rig.endings.items() if publication.ending.error is None}  # type: ignore[union-attr]
    assert cancelled(rig, *(mine - ended_well))
    assert len(mine & ended_well) <= 5, "more went on than were running"
    assert ended_well >= {f"other{number}" for number in range(40)}


def test_what_was_sent_after_the_order_is_served() -> None:
    rig = Rig()
    rig.arrive("a", timestamp_ms=100)
    rig.arrive("b", timestamp_ms=101)
    rig.inbox.put(order("t", "tenant", before_ms=100))
    rig.run()
    assert cancelled(rig, "a")
    assert rig.endings["b"].ending is not None
    assert rig.endings["b"].ending.error is None


def test_both_records_of_a_request_id_end() -> None:
    rig = Rig()
    rig.answer_staging = False
    first, second = rig.arrive("a"), rig.arrive("a", partition=1)
    rig.inbox.put(order("a"))
    rig.parts.engine.step()
    ended = {publication.arrival.id for publication in rig.outbox.take_all()}
    assert ended == {first.id, second.id}


def test_an_order_for_nobody_changes_nothing() -> None:
    rig = Rig()
    rig.arrive("a")
    rig.inbox.put(order("somebody"))
    rig.inbox.put(order("else", "job"))
    rig.run()
    assert rig.endings["a"].ending is not None
    assert rig.endings["a"].ending.error is None


def test_from_the_order_on_nothing_of_a_large_backlog_goes_on() -> None:
    """The rows are ended in slices; those that no slice has come to are stopped where they would go on."""
    rig = Rig()
    known = TableRig()
    cancelling = Cancelling(known.table, 800)
    for row in range(800):
        assert known.add(rig.arrive(f"r{row}")) == row
        cancelling.entered(row, f"r{row}")

    def end(rows: Iterable[int]) -> None:
        for row in rows:
            cancelling.left(row, f"r{row}")
            known.end(row)

    assert cancelling.order([Cancel("tenant", "t", LATER_MS)], begun=[3]).keys() == {3}
    end([3])
    first = cancelling.take()
    assert 0 < len(first) < len(known.index), "one slice took everything"
    left = next(row for row in range(800) if known.table.knows(row) and row not in first)
    assert cancelling.stops(left) is not None
    end(first)
    while cancelling.busy:
        end(cancelling.take())
    assert len(known.index) == 0


def test_requests_of_several_choices_end_once_each_however_many_wait() -> None:
    """More than a slice takes, so that both rows of a request are about to be staged when one of them is stopped."""
    rig = Rig()
    rig.answer_staging = False
    names = {f"r{number}" for number in range(600)}
    for name in sorted(names):
        rig.arrive(name, choices=2)
    rig.inbox.put(order("t", "tenant"))
    rig.run_through()
    assert rig.endings.keys() == names
    assert cancelled(rig, *names)
    assert len(rig.parts.index) == 0


@pytest.mark.parametrize("message", [order("a"), Revoked("inference.p1", 0, 1)])
def test_one_that_can_never_run_may_be_cancelled_or_revoked_in_the_same_turn(message: EngineMessage) -> None:
    rig = Rig()
    rig.answer_staging = False
    rig.arrive("a", prompt=300)
    rig.run()
    (job,) = rig.jobs
    rig.answer(job)
    rig.inbox.put(message)
    rig.run()
    assert rig.endings.keys() == {"a"}
    ending = rig.endings["a"].ending
    assert ending is not None
    assert ending.error is not None
    assert ending.error.code == "context_length_exceeded"
    assert len(rig.parts.index) == 0


def test_a_request_that_was_moved_here_was_sent_before_an_order_that_its_caller_gave_meanwhile() -> None:
    rig = Rig()
    rig.answer_staging = False
    arrival = rig.arrive("a", timestamp_ms=200)
    rig.inbox.take_all()
    rig.inbox.put(replace(arrival, headers=replace(arrival.headers, requeued_sent_ms=100)))
    rig.inbox.put(order("a", before_ms=150))
    rig.run()
    assert cancelled(rig, "a")


def test_a_cancelled_answer_says_so() -> None:
    error = RequestError.cancelled(Cancel("job", "secret-name", 0).reason)
    assert "with all of its job" in error.message
    assert "secret-name" not in error.message


def test_a_waiting_request_moves_to_another_class_and_a_running_one_stays() -> None:
    rig = Rig()
    rig.arrive("runs", output=30)
    for _ in range(3):
        rig.parts.engine.step()
    rig.answer_staging = False
    rig.arrive("waits")
    for name in ("runs", "waits"):
        rig.inbox.put(Cancelled((Cancel("request", name, LATER_MS, move_to="p3"),)))
    rig.run()
    moved, ran = (rig.endings[name].ending for name in ("waits", "runs"))
    assert moved is not None
    assert moved.reason == Moved(PriorityClass.P3)
    assert ran is not None
    assert ran.reason is FinishReason.LENGTH


def test_a_request_whose_further_choices_find_no_room_is_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine.sequence_groups.MORE_ROWS", 1)
    rig = Rig()
    rig.arrive("long", output=60, choices=2)
    rig.arrive("a", output=4, choices=3)
    while "a/0" not in rig.endings:
        rig.parts.engine.step()
        rig.take()
    rig.inbox.put(order("a"))
    rig.run()
    assert "a" in rig.endings
    assert cancelled(rig, "a")
    assert len(rig.parts.index) == 0
    assert {f"long/{choice}" for choice in range(2)} <= rig.endings.keys()


def test_an_order_does_not_end_who_has_the_row_of_one_that_it_meant() -> None:
    rig = Rig()
    older, newer = rig.arrive("older"), rig.arrive("newer")
    known = TableRig()
    cancelling = Cancelling(known.table, 10)
    row = known.add(older)
    cancelling.entered(row, "older")
    assert cancelling.order((Cancel("request", "older", LATER_MS),), begun=()) == {}, "it waits: the next slice ends it"
    # It ended before that slice, and another request runs in its row when the next order comes.
    cancelling.left(row, "older")
    known.end(row)
    assert known.add(newer) == row
    cancelling.entered(row, "newer")
    assert cancelling.order((Cancel("request", "nobody", LATER_MS),), begun=(row,)) == {}
    assert cancelling.take() == {}


def test_a_request_that_has_one_of_its_answers_stays_in_its_class() -> None:
    rig = Rig(engine_config=EngineConfig(max_sequences=2, step_tokens=32))
    rig.arrive("r", output=4, choices=6)
    while not rig.endings:
        rig.parts.engine.step()
        rig.take()
    rig.inbox.put(Cancelled((Cancel("request", "r", LATER_MS, "p3"),)))
    rig.run()
    assert rig.endings.keys() == {f"r/{choice}" for choice in range(6)}
    assert {each.ending.reason for each in rig.endings.values() if each.ending is not None} == {FinishReason.LENGTH}
