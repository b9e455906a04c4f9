"""Requests of several sequences in the engine: each is a row, and they end together."""

import pytest

from tests.workers.engine.engine_rig import Rig
from topics.errors import RequestError
from workers.configuration.config import EngineConfig
from workers.engine.messages import Revoked
from workers.engine.sequence_groups import MORE_ROWS, SequenceGroups
from workers.intake.request import FinishReason


def test_every_choice_has_all_its_tokens_and_its_own_randomness() -> None:
    rig = Rig()
    rig.arrive("r", output=6, choices=7)
    rig.run()
    assert set(rig.endings) == {f"r/{choice}" for choice in range(7)}
    assert {len(tokens) for tokens in rig.published.values()} == {6}
    assert rig.published["r/0"] != rig.published["r/1"]
    assert len(rig.parts.index) == 0
    assert rig.parts.engine.statistics().ended == 1


def test_the_first_choice_is_what_a_request_for_one_would_get() -> None:
    one, several = Rig(), Rig()
    one.arrive("r", output=9)
    several.arrive("r", output=9, choices=3)
    one.run()
    several.run()
    assert several.published["r/0"] == one.published["r"]


def test_each_choice_is_charged() -> None:
    one, several = Rig(), Rig()
    one.arrive("r", prompt=8, output=4)
    several.arrive("r", prompt=8, output=4, choices=3)
    for rig in (one, several):
        rig.run()
    charged = [
        sum(cls.dispatched_cost for cls in rig.parts.qdisc.statistics().by_class.values()) for rig in (one, several)
    ]
    assert charged[1] == 3 * charged[0]


def test_a_choice_that_is_refused_ends_the_request_once() -> None:
    rig = Rig(refuse={"r": RequestError.invalid_request("n", "no")})
    rig.arrive("r", choices=5)
    rig.run()
    assert len(rig.endings) == 1
    assert len(rig.parts.index) == 0


def test_one_that_expires_while_another_runs_ends_both() -> None:
    rig = Rig()
    for number in range(3):
        rig.arrive(f"o{number}", output=60)
    rig.arrive("r", output=50, choices=6, hard_deadline_s=0.3)
    rig.run_through()
    (ending,) = [one for name, one in rig.endings.items() if name.startswith("r")]
    assert ending.ending is not None
    assert ending.ending.error is not None
    assert ending.ending.error.code == "expired"
    assert {name for name in rig.endings if name.startswith("o")} == {"o0", "o1", "o2"}
    assert len(rig.parts.index) == 0


def test_a_body_that_was_not_read_gets_its_choices_at_staging() -> None:
    rig = Rig(sequences={"r": 4})
    rig.arrive("r", output=3)
    rig.run()
    assert set(rig.endings) == {f"r/{choice}" for choice in range(4)}
    assert len(rig.parts.index) == 0


def test_a_revoked_partition_takes_all_of_them_along() -> None:
    rig = Rig()
    rig.arrive("r", output=40, choices=8)
    rig.parts.engine.step()
    rig.inbox.put(Revoked("inference.p1", 0, 1))
    rig.run()
    assert rig.endings == {}
    assert len(rig.parts.index) == 0


def test_choices_that_are_seen_when_the_partition_is_gone_are_not_begun() -> None:
    rig = Rig(sequences={"r": 4})
    rig.answer_staging = False
    rig.arrive("r", output=3)
    rig.run()
    (job,) = rig.jobs
    rig.inbox.put(Revoked("inference.p1", 0, 1))
    rig.answer(job)
    rig.answer_staging = True
    rig.run()
    assert rig.endings == {}
    assert len(rig.parts.index) == 0


def test_the_time_that_a_row_may_run_is_not_its_next_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices that join late get the rows of earlier ones, and have still to be staged and admitted."""
    monkeypatch.setattr("workers.engine.sequence_groups.MORE_ROWS", 2)
    rig = Rig(engine_config=EngineConfig(max_sequences=5, step_tokens=32, max_run_s=0.25))
    rig.arrive("r", output=8, choices=12)
    for _ in range(1_000):
        rig.answer_staging = False
        worked = rig.parts.engine.step()
        rig.take()
        rig.answer_staging = True
        jobs, rig.jobs = rig.jobs, []
        if not worked and not jobs and not rig.inbox:
            break
        rig.parts.engine.step()
        for job in jobs:
            rig.answer(job)
    assert rig.endings.keys() == {f"r/{choice}" for choice in range(12)}
    assert {len(tokens) for tokens in rig.published.values()} == {8}


def test_rows_beyond_the_bound_join_as_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine.sequence_groups.MORE_ROWS", 3)
    rig = Rig()
    for number in range(3):
        rig.arrive(f"r{number}", output=4, choices=6)
    rig.parts.engine.step()
    assert len(rig.parts.index) <= 3 + 3
    rig.run()
    assert len(rig.endings) == 18
    assert all(one.ending is not None and one.ending.reason is FinishReason.LENGTH for one in rig.endings.values())
    assert len(rig.parts.index) == 0


def test_a_row_without_a_group_is_its_requests_only_one() -> None:
    groups = SequenceGroups()
    groups.leave(5)
    assert (groups.sequence(5), groups.siblings(5), groups.of(5)) == (0, [], None)
    assert MORE_ROWS > 2048, "one request of the most sequences fits"


def test_choices_find_rows_while_a_revoked_backlog_is_dropped() -> None:
    rig = Rig()
    for number in range(rig.parts.index.capacity - 2):
        rig.arrive(f"old{number}")
    rig.parts.engine.step()
    rig.inbox.put(Revoked("inference.p1", 0, 1))
    rig.arrive("new", choices=5, partition=1)
    while "new/4" not in rig.endings:
        rig.parts.engine.step()
        rig.take()
