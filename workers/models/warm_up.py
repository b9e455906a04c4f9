"""What a step takes on this machine, measured before the first request.

Knows the runner's protocol, a clock, and the linear model of `scheduling.step_time`. Does not know models or devices.

A handful of steps of different kinds (one decode, many, many over a long context, pieces of prompts) are run on the
empty pool, in rounds, for as long as a round still fits into the budget; of each kind the shortest time counts, for a
busy machine only ever adds. The four coefficients are the least-squares fit of the *relative* errors, with none below
zero: of all sets of terms that may be left out, the best whose coefficients are all positive (there are 15). A term
that was left out gets a hundredth of the shortest step it could matter in, because the tracker that refines the
figures while serving multiplies them, and would leave a zero a zero.

Limit: figures from a quarter of a second of work on a machine whose speed drifts. They are a start, not a truth.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from scheduling.step_time import LinearStepTime
from workers.intake.sampling import GREEDY
from workers.runners.runner import ModelRunner, SequenceInput

__all__ = ["MeasuredStep", "fit_step_time", "measure_step_time"]

_DECODES = 16
_LONG_CONTEXT = 512
_PROMPTS = (32, 160)
_NEGLIGIBLE = 0.01


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    prefill_tokens: int
    decode_sequences: int
    context_tokens: int
    """For each sequence, the position where its chunk ends, summed."""
    seconds: float

    @property
    def terms(self) -> tuple[float, float, float, float]:
        return (1.0, float(self.prefill_tokens), float(self.decode_sequences), float(self.context_tokens))


def measure_step_time(
    runner: ModelRunner, *, budget_s: float = 1.0, clock: Callable[[], float] = perf_counter
) -> LinearStepTime:
    """Run steps on the runner's pool, which must be nobody's yet, for about `budget_s`: one round at least.

    The first round warms up (memory is touched, kernels are chosen) and counts only if there is no second.
    Raises `workers.runners.errors.EngineFault`.
    """
    kinds = _kinds(runner)
    started_s = clock()
    rounds: list[list[MeasuredStep]] = []
    while True:
        round_started_s = clock()
        rounds.append([_measure(runner, steps, clock) for steps in kinds])
        now_s = clock()
        if now_s - started_s + (now_s - round_started_s) > budget_s:
            break
    counted = rounds[1:] or rounds
    return fit_step_time([min(same, key=lambda step: step.seconds) for same in zip(*counted, strict=True)])


def fit_step_time(steps: Sequence[MeasuredStep]) -> LinearStepTime:
    """The model whose relative errors have the least squares, none of its coefficients being zero or negative."""
    terms = np.array([step.terms for step in steps])
    seconds = np.array([max(step.seconds, 1e-9) for step in steps])
    relative = terms / seconds[:, None]
    best: tuple[float, tuple[int, ...], np.ndarray[tuple[int], np.dtype[np.float64]]] | None = None
    for used in itertools.chain.from_iterable(itertools.combinations(range(4), count) for count in range(4, 0, -1)):
        coefficients = np.linalg.lstsq(relative[:, used], np.ones(len(steps)), rcond=None)[0]
        error = float(((relative[:, used] @ coefficients - 1.0) ** 2).sum())
        if (coefficients > 0).all() and (best is None or error < best[0]):
            best = (error, used, coefficients)
    assert best is not None, "one positive term always fits positive times"
    fitted = [0.0] * 4
    for term in range(4):
        if term in best[1]:
            fitted[term] = float(best[2][best[1].index(term)])
        else:
            present = terms[:, term] > 0
            fitted[term] = (
                _NEGLIGIBLE * float((seconds[present] / terms[present, term]).min()) if present.any() else 1e-9
            )
    return LinearStepTime(*fitted)


def _kinds(runner: ModelRunner) -> list[list[SequenceInput]]:
    """The steps of a round, as far as the pool and the context reach."""
    context = runner.limits.context_tokens
    decodes = max(1, min(_DECODES, runner.num_blocks))
    long = max(2, min(_LONG_CONTEXT, context, runner.num_blocks // decodes * runner.block_size))
    short = min(32, long)
    prompts = sorted({min(prompt, context, runner.num_blocks * runner.block_size) for prompt in _PROMPTS})
    return [
        _decodes(runner, 1, short),
        _decodes(runner, decodes, short),
        _decodes(runner, decodes, long),
        *([_sequence(runner, 0, prompt, 0)] for prompt in prompts),
    ]


def _decodes(runner: ModelRunner, sequences: int, context: int) -> list[SequenceInput]:
    blocks = -(-context // runner.block_size)
    return [_sequence(runner, context - 1, 1, position * blocks) for position in range(sequences)]


def _sequence(runner: ModelRunner, start: int, tokens: int, first_block: int) -> SequenceInput:
    blocks = -(-(start + tokens) // runner.block_size)
    ids = [position % runner.limits.vocabulary for position in range(tokens)]
    return SequenceInput(ids, start, range(first_block, first_block + blocks), GREEDY)


def _measure(runner: ModelRunner, step: list[SequenceInput], clock: Callable[[], float]) -> MeasuredStep:
    started_s = clock()
    runner.step(step)
    seconds = clock() - started_s
    decodes = sum(1 for sequence in step if len(sequence.token_ids) == 1)
    return MeasuredStep(
        prefill_tokens=sum(len(sequence.token_ids) for sequence in step if len(sequence.token_ids) > 1),
        decode_sequences=decodes,
        context_tokens=sum(sequence.start + len(sequence.token_ids) for sequence in step),
        seconds=seconds,
    )
