"""The engine's turn, on virtual time: everything that comes in ends exactly once, and how."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduling.default_tree import default_tree
from scheduling.priority import PriorityClass
from tests.workers.engine.engine_rig import EOS, Rig
from topics.errors import RequestError
from workers.engine.messages import Drain, Dropped, NewTree, QuotaShare, Revoked
from workers.intake.request import FinishReason
from workers.intake.staging import Staged
from workers.runners.runner import SequenceInput

P0, P1, P2, P3 = PriorityClass


def test_every_request_ends_once_with_all_its_tokens() -> None:
    rig = Rig()
    for number in range(20):
        rig.arrive(f"r{number}", prompt=5 + number, output=1 + number % 7, priority=PriorityClass(number % 4))
    rig.run()
    assert set(rig.endings) == {f"r{number}" for number in range(20)}
    for number in range(20):
        ending = rig.endings[f"r{number}"].ending
        assert ending is not None
        assert ending.reason is FinishReason.LENGTH
        assert (ending.prompt_tokens, ending.output_tokens) == (5 + number, 1 + number % 7)
        assert len(rig.published[f"r{number}"]) == 1 + number % 7
    assert len(rig.parts.index) == 0


def test_the_same_request_gets_the_same_tokens_alone_and_in_company() -> None:
    alone, company = Rig(), Rig(num_blocks=80)
    alone.arrive("same", prompt=40, output=30)
    alone.run()
    for number in range(12):
        company.arrive(f"o{number}", prompt=30 + number, output=20)
    company.arrive("same", prompt=40, output=30)
    company.run()
    assert company.published["same"] == alone.published["same"]


def test_preemption_changes_no_token() -> None:
    roomy, tight = Rig(num_blocks=1_000), Rig(num_blocks=64)
    for rig in (roomy, tight):
        # Predicted short, because the class's usual answers are: so the pool overcommits.
        for number in range(40):
            rig.arrive(f"w{number}", prompt=4, output=2)
        rig.run()
        for number in range(4):
            rig.arrive(f"r{number}", prompt=20, output=60)
        rig.run()
    preempted = sum(
        rig_ending.ending.timeline.preemptions for rig_ending in tight.endings.values() if rig_ending.ending
    )
    assert preempted > 0
    assert tight.published == roomy.published


def test_the_runner_sees_all_tokens_of_a_request_also_after_a_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    """What penalties count."""
    rig = Rig(num_blocks=64)
    step = rig.runner.step
    seen: list[list[int]] = []

    def recording(sequences: Sequence[SequenceInput]) -> list[int | None]:
        for sequence in sequences:
            if sequence.sampling is not None:
                assert len(sequence.history) == sequence.start + len(sequence.token_ids)
                assert sequence.history[sequence.start :] == sequence.token_ids
                seen.append([*sequence.history])
        return step(sequences)

    monkeypatch.setattr(rig.runner, "step", recording)
    for number in range(4):
        rig.arrive(f"r{number}", prompt=20, output=60)
    rig.run()
    assert max(len(history) for history in seen) == 20 + 59
    assert all(history[:20] == [*range(20)] for history in seen)


def test_an_urgent_request_overtakes_what_waits() -> None:
    rig = Rig()
    for number in range(50):
        rig.arrive(f"b{number}", output=20, priority=P3)
    for _ in range(5):
        rig.parts.engine.step()
    rig.arrive("urgent", priority=P0, output=4)
    rig.run()
    order = list(rig.endings)
    assert order.index("urgent") <= 8


def test_a_request_refused_at_staging_is_answered_and_leaves() -> None:
    error = RequestError.invalid_request("temperature", "temperature is 9: at most 2.")
    rig = Rig(refuse={"bad": error})
    rig.arrive("bad")
    rig.arrive("good")
    rig.run()
    ending = rig.endings["bad"].ending
    assert ending is not None
    assert ending.error is error
    assert rig.endings["good"].ending is not None
    assert len(rig.parts.index) == 0


def test_a_deadline_that_passes_while_waiting_is_answered_not_run() -> None:
    rig = Rig()
    for number in range(8):
        rig.arrive(f"long{number}", output=50)
    rig.arrive("late", hard_deadline_s=0.05)
    rig.run()
    ending = rig.endings["late"].ending
    assert ending is not None
    assert ending.error is not None
    assert ending.error.code == "expired"
    assert rig.published.get("late", []) == []


def test_a_prompt_that_the_context_cannot_hold_is_answered_at_once() -> None:
    rig = Rig()
    rig.arrive("huge", prompt=256, output=1)
    rig.run()
    ending = rig.endings["huge"].ending
    assert ending is not None
    assert ending.error is not None
    assert ending.error.code == "context_length_exceeded"


def test_a_stop_string_ends_the_request_and_is_not_shown() -> None:
    plain = Rig()
    plain.arrive("r", output=20)
    plain.run()
    letters = "".join(chr(ord("a") + token % 26) for token in plain.published["r"])
    stop = letters[5:8]
    rig = Rig(stop=(stop,))
    rig.arrive("r", output=20)
    rig.run()
    ending = rig.endings["r"].ending
    assert ending is not None
    assert ending.reason is FinishReason.STOP
    assert rig.texts["r"] == letters[: letters.index(stop)]


def test_the_end_token_stops_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    monkeypatch.setattr(rig.runner, "_token", lambda _seed, position: EOS if position == 2 else 3)
    rig.arrive("r", output=20)
    rig.run()
    ending = rig.endings["r"].ending
    assert ending is not None
    assert (ending.reason, ending.output_tokens) == (FinishReason.STOP, 3)


def test_draining_finishes_what_runs_and_starts_nothing() -> None:
    rig = Rig()
    for number in range(10):
        rig.arrive(f"r{number}", output=10)
    rig.parts.engine.step()
    rig.parts.engine.step()
    rig.inbox.put(Drain())
    rig.arrive("late")
    rig.run()
    assert rig.parts.engine.drained
    assert len(rig.endings) == 4
    assert rig.parts.engine.statistics().waiting == 7


def test_a_revoked_partition_leaves_without_an_answer() -> None:
    rig = Rig()
    arrivals = [rig.arrive(f"r{number}", output=10, partition=number % 2) for number in range(6)]
    rig.parts.engine.step()
    rig.parts.engine.step()
    rig.inbox.put(Revoked("inference.p1", 1, 1))
    rig.inbox.put(Dropped(frozenset(arrival.id for arrival in arrivals if arrival.id.partition == 1)))
    rig.run()
    assert set(rig.endings) == {"r0", "r2", "r4"}
    assert len(rig.parts.index) == 0


def test_a_backlog_that_is_revoked_and_comes_again_finds_room() -> None:
    rig = Rig()
    backlog = rig.parts.index.capacity - 10
    for attempt in range(2):
        for number in range(backlog):
            rig.arrive(f"{attempt}-{number}")
        rig.parts.engine.step()
        if attempt == 0:
            rig.inbox.put(Revoked("inference.p1", 0, 1))
    assert len(rig.parts.index) <= rig.parts.index.capacity
    assert rig.parts.engine.statistics().waiting > 0


def test_tokens_that_come_after_the_row_was_dropped_are_ignored() -> None:
    rig = Rig()
    rig.answer_staging = False
    rig.arrive("gone", partition=1)
    rig.parts.engine.step()
    assert len(rig.jobs) == 1
    rig.inbox.put(Revoked("inference.p1", 1, 1))
    rig.parts.engine.step()
    rig.arrive("other", partition=0)
    rig.parts.engine.step()
    rig.answer_staging = True
    for job in rig.jobs:
        rig.answer(job)
    rig.run()
    assert set(rig.endings) == {"other"}


def test_a_full_outbox_stops_dispatch_and_not_what_runs() -> None:
    rig = Rig()
    for number in range(8):
        rig.arrive(f"r{number}", output=3)
    rig.parts.engine.step()
    rig.parts.engine.step()
    assert rig.parts.engine.statistics().running == 4
    rig.outbox._undelivered_bytes += 1_000_000
    rig.run()
    assert len(rig.endings) == 4
    rig.outbox._undelivered_bytes -= 1_000_000
    rig.run()
    assert len(rig.endings) == 8


# --- what is turned away or lowered on arrival ------------------------------------------------------------------------


def test_beyond_a_full_queue_a_request_is_answered_with_when_to_come_again() -> None:
    rig = Rig(scheduling={"admission": {"full": "reject", "max_queued": 3}})
    for number in range(20):
        rig.arrive(f"r{number}", output=2)
    rig.run()
    errors = [error for ending in rig.endings.values() if ending.ending and (error := ending.ending.error)]
    assert len(rig.endings) == 20
    assert errors
    assert {(error.status_code, error.code, error.queue_depth) for error in errors} == {(503, "resource_exhausted", 3)}
    assert all(error.retry_after_s and error.retry_after_s >= 1.0 for error in errors)


def test_beyond_its_quota_a_tenant_is_refused_or_waits() -> None:
    quota = {"requests_per_minute": 2}
    for over, refused in (("reject", 7), ("wait", 0)):
        rig = Rig(scheduling={"quotas": {"tenants": {"t": {**quota, "over": over}}}})
        for number in range(10):
            rig.arrive(f"r{number}", output=2)
        rig.run_through()
        errors = [ending.ending.error for ending in rig.endings.values() if ending.ending and ending.ending.error]
        assert [error.status_code for error in errors] == [429] * refused
        assert len(rig.endings) == 10
        # Seven wait half a minute each.
        assert (rig.clock() > 200) is (over == "wait")


def test_a_part_of_the_quota_is_a_part_of_the_rate() -> None:
    rig = Rig(scheduling={"quotas": {"each_tenant": {"requests_per_second": 4}}})
    rig.inbox.put(QuotaShare(0.25))
    for number in range(12):
        rig.arrive(f"r{number}", output=1)
    rig.run_through()
    assert len(rig.endings) == 12
    assert rig.clock() == pytest.approx(10.0, abs=0.5), "two at once, then one a second"


def test_a_new_tree_is_in_force_at_once_and_loses_nobody(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for number in range(30):
        rig.arrive(f"r{number}", output=4, priority=PriorityClass(number % 4))
    rig.parts.engine.step()
    rig.inbox.put(NewTree(default_tree()))
    p0 = default_tree().classes[0]
    rig.parts.engine.step()
    rig.inbox.put(NewTree(replace(default_tree(), classes=(p0,))))
    rig.run()
    assert len(rig.endings) == 30
    assert "the class tree stays as it was" in caplog.text


def test_the_measured_capacity_reaches_the_tree() -> None:
    rig = Rig()
    told: list[float] = []
    rig.parts.qdisc.set_capacity = lambda units_s, now: told.append(units_s)  # type: ignore[method-assign]
    for number in range(400):
        rig.arrive(f"r{number}", prompt=20, output=10)
    rig.run()
    assert told, "it was guessed from the decode rate alone"


@pytest.mark.parametrize("cost", ["linear", "log", "measured"])
def test_whatever_the_prices_the_books_close(cost: str) -> None:
    rig = Rig(scheduling={"cost": cost}, num_blocks=64)
    for number in range(40):
        rig.arrive(f"r{number}", prompt=5 + number, output=1 + number % 30, priority=PriorityClass(number % 4))
    rig.run()
    ledger = rig.parts.qdisc.ledger()
    prices = rig.parts.index.cost
    assert len(rig.endings) == 40
    assert ledger.open == 0
    work = sum(prices.prompt(5 + number) + prices.output(1 + number % 30) for number in range(40))
    assert ledger.settled == work + sum(account.preemption_cost for account in ledger.accounts)


@pytest.mark.parametrize("told", [1, 3, 4, 11])
def test_an_answer_goes_on_behind_what_an_earlier_attempt_has_told(told: int) -> None:
    whole, rest = Rig(), Rig()
    whole.arrive("same", prompt=10, output=12)
    whole.run()
    tokens = whole.published["same"]
    rest.answer_staging = False
    rest.arrive("same", prompt=10, output=12)
    rest.run()
    (job,) = rest.jobs
    rest.answer(job)
    (message,) = rest.inbox.take_all()
    assert isinstance(message, Staged)
    rest.inbox.put(replace(message, output_token_ids=tuple(tokens[:told])))
    rest.run()
    assert rest.published["same"] == tokens
    assert rest.endings["same"].ending is not None
    assert rest.endings["same"].ending.output_tokens == len(tokens)
    assert rest.parts.engine.statistics().decode_tokens < whole.parts.engine.statistics().decode_tokens


def test_an_answer_that_was_told_to_its_end_is_not_run_again() -> None:
    rig = Rig()
    rig.answer_staging = False
    rig.arrive("r", prompt=10, output=3)
    rig.run()
    rig.answer(rig.jobs[0])
    (message,) = rig.inbox.take_all()
    assert isinstance(message, Staged)
    rig.inbox.put(replace(message, output_token_ids=(1, 2, 3)))
    rig.run()
    ending = rig.endings["r"].ending
    assert ending is not None
    assert (ending.reason, ending.output_tokens) == (FinishReason.LENGTH, 3)
    assert rig.parts.engine.statistics().steps == 0
    assert len(rig.parts.index) == 0
