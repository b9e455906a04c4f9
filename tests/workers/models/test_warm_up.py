from collections.abc import Sequence

import pytest

from scheduling.step_time import LinearStepTime
from workers.intake.sampling import TokenLogprobs
from workers.models.warm_up import MeasuredStep, fit_step_time, measure_step_time
from workers.runners.runner import Embedding, ModelLimits, SequenceInput


class TimedRunner:
    """A runner that only takes time, on its own clock."""

    def __init__(
        self, truth: LinearStepTime, *, num_blocks: int = 4096, context: int = 8192, first_steps_extra_s: float = 0.0
    ) -> None:
        self._truth = truth
        self._extra_s = first_steps_extra_s
        self.limits = ModelLimits(context, 100, frozenset())
        self.block_size = 16
        self.num_blocks = num_blocks
        self.now_s = 1000.0
        self.steps = 0

    def clock(self) -> float:
        return self.now_s

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        blocks = [block for sequence in sequences for block in sequence.block_ids]
        assert len(set(blocks)) == len(blocks), "sequences share blocks"
        assert all(0 <= block < self.num_blocks for block in blocks)
        for sequence in sequences:
            end = sequence.start + len(sequence.token_ids)
            assert end <= len(sequence.block_ids) * self.block_size
            assert end <= self.limits.context_tokens
        prompts = sum(len(s.token_ids) for s in sequences if len(s.token_ids) > 1)
        decodes = sum(1 for s in sequences if len(s.token_ids) == 1)
        context = sum(s.start + len(s.token_ids) for s in sequences)
        self.now_s += self._truth.predict(prompts, decodes, context)
        if self.steps < 5:
            self.now_s += self._extra_s
        self.steps += 1
        return [1] * len(sequences)

    def take_logprobs(self) -> dict[int, TokenLogprobs]:
        return {}

    def take_embeddings(self) -> dict[int, Embedding]:
        return {}


TRUTH = LinearStepTime(fixed_s=30e-3, per_prefill_token_s=3e-3, per_decode_sequence_s=2e-3, per_context_token_s=8e-6)


def assert_like(got: LinearStepTime, want: LinearStepTime, tolerance: float) -> None:
    for name in ("fixed_s", "per_prefill_token_s", "per_decode_sequence_s", "per_context_token_s"):
        assert getattr(got, name) == pytest.approx(getattr(want, name), rel=tolerance), name


def test_the_coefficients_of_a_linear_machine_are_found() -> None:
    runner = TimedRunner(TRUTH)
    assert_like(measure_step_time(runner, clock=runner.clock), TRUTH, 1e-6)


def test_slow_first_steps_do_not_count() -> None:
    runner = TimedRunner(TRUTH, first_steps_extra_s=0.2)
    assert_like(measure_step_time(runner, budget_s=5.0, clock=runner.clock), TRUTH, 1e-6)


def test_it_stays_within_its_budget() -> None:
    runner = TimedRunner(TRUTH)
    measure_step_time(runner, budget_s=4.0, clock=runner.clock)
    assert 2.0 < runner.now_s - 1000.0 <= 4.0


def test_a_machine_too_slow_for_the_budget_gets_one_round() -> None:
    runner = TimedRunner(LinearStepTime(3.0, 0.3, 0.2, 1e-3))
    measure_step_time(runner, budget_s=2.0, clock=runner.clock)
    assert runner.steps == 5


@pytest.mark.parametrize(("num_blocks", "context"), [(2, 32), (5, 64), (40, 100), (4096, 20)])
def test_small_pools_and_short_contexts_are_not_exceeded(num_blocks: int, context: int) -> None:
    runner = TimedRunner(TRUTH, num_blocks=num_blocks, context=context)
    got = measure_step_time(runner, clock=runner.clock)
    assert got.predict(20, 1, 20) == pytest.approx(TRUTH.predict(20, 1, 20), rel=0.5)


def test_no_coefficient_is_zero_or_negative_however_odd_the_times() -> None:
    steps = [
        MeasuredStep(0, 1, 32, 0.050),
        MeasuredStep(0, 16, 512, 0.049),
        MeasuredStep(0, 16, 8192, 0.040),
        MeasuredStep(32, 0, 32, 0.070),
        MeasuredStep(160, 0, 160, 0.170),
    ]
    got = fit_step_time(steps)
    assert min(got.fixed_s, got.per_prefill_token_s, got.per_decode_sequence_s, got.per_context_token_s) > 0
    assert got.predict(160, 0, 160) == pytest.approx(0.17, rel=0.25)
    assert got.predict(0, 16, 512) == pytest.approx(0.049, rel=0.25)
