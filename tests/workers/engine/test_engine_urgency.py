"""The engine's turn, on virtual time: an urgent request that comes during a step, and what suspensions take."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from scheduling.priority import PriorityClass
from tests.workers.engine.engine_rig import Rig
from workers.intake.staging import StageJob
from workers.runners.runner import SequenceInput

P0, P1, P2, P3 = PriorityClass


@dataclass
class ArrivalDuringAStep:
    """Three batch requests run; an urgent one comes while the third step does."""

    rig: Rig = field(default_factory=Rig)
    sizes: list[int] = field(default_factory=list)
    """The number of sequences of each step."""
    late: list[StageJob] = field(default_factory=list)

    def run(self, monkeypatch: pytest.MonkeyPatch, tokens_during_step: int | None = None) -> list[int]:
        """`tokens_during_step`: the urgent one's tokens are made while that step runs; else at once."""
        rig = self.rig
        step, stage = rig.runner.step, rig._stage

        def stepping(sequences: Sequence[SequenceInput]) -> list[int | None]:
            self.sizes.append(len(sequences))
            if len(self.sizes) == 3:
                rig.arrive("urgent", prompt=20, priority=P0)
            if len(self.sizes) == tokens_during_step:
                rig.answer(self.late.pop())
            return step(sequences)

        def staging(job: StageJob) -> None:
            if job.arrival.origin_class is P0 and tokens_during_step is not None:
                self.late.append(job)
            else:
                stage(job)

        monkeypatch.setattr(rig.runner, "step", stepping)
        monkeypatch.setattr(rig.parts.engine, "_stage", staging)
        for number in range(3):
            rig.arrive(f"batch{number}", output=8, priority=P2)
        rig.run()
        assert len(rig.endings) == 4
        return self.sizes


def test_an_urgent_request_that_comes_during_a_step_is_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ArrivalDuringAStep().run(monkeypatch)[2:4] == [3, 4]


def test_no_step_waits_long_for_tokens_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ArrivalDuringAStep().run(monkeypatch, tokens_during_step=5)[2:6] == [3, 3, 3, 4]


# --- what a suspension took -------------------------------------------------------------------------------------------


def test_each_suspension_is_timed_from_its_trigger_to_where_it_was() -> None:
    rig = Rig(num_blocks=64)
    for number in range(40):
        rig.arrive(f"w{number}", prompt=4, output=2)
    rig.run()
    for number in range(4):
        rig.arrive(f"r{number}", prompt=20, output=60)
    rig.run()
    suspensions = [one for ended in rig.endings.values() if ended.ending for one in ended.ending.timeline.suspensions]
    statistics = rig.parts.engine.statistics()
    assert len(suspensions) == statistics.preemptions > 0
    for suspension in suspensions:
        assert suspension.usable_s is not None
        assert suspension.queued_s is not None
        assert suspension.suspended_s is not None
        assert suspension.recomputed_tokens == suspension.computed_tokens, "there is no prefix cache"
        assert 0 < suspension.queued_s < suspension.suspended_s, "the wait, and then the step that computes it again"
        assert suspension.cost_s == suspension.recomputed_s == pytest.approx(suspension.recompute_s, rel=0.2)
    times = statistics.preemption_times
    assert times.queued.count == times.suspended.count == times.usable.count == times.recomputed == len(suspensions)
    assert times.suspended.most_s == max(suspension.suspended_s or 0 for suspension in suspensions)
    assert times.cost_s == pytest.approx(sum(suspension.cost_s for suspension in suspensions))
