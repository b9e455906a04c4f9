"""The machine of the published VTC runs: step times and pool size, out of one run's request times.

Knows one published run. Does not know our scheduler: the fit is made before anything is simulated, and never touched
again.

Their engine alternates: a prefill step for newcomers, p₀ + p₁ × prompt tokens, during which nobody decodes; then decode
steps of d₀ + d₁ × sequences. A request's time from first to last token is then a sum that is linear in the four:

    prefill steps meanwhile × p₀ + their tokens × p₁ + (output − 1) × d₀ + (output − 1) × mean sequences × d₁

and least squares over all requests of the run gives them. First tokens that come within 20 ms are one prefill step. Our
steps carry prompts and decodes together, so p₀ is spread over the prompt tokens of a mean prefill step.

The pool: all requests of the run have one size, and more wait than fit. So the number that ran for most of the time,
times that size, is what the pool holds by our reckoning, which reserves prompt + output of each. (Theirs holds 10,000
tokens: it reckons with those that will have ended before others are at their longest.)
"""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.vtc_results import ServedRun
from scheduling.step_time import LinearStepTime

__all__ = ["FittedMachine", "fit_machine"]

_SAME_STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class FittedMachine:
    step_time: LinearStepTime
    pool_tokens: int
    usually_running: int
    mean_error_s: float
    """Mean absolute error of the times from first to last token."""
    mean_decode_s: float
    """What it is an error of."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def fit_machine(run: ServedRun) -> FittedMachine:
    prefill_s, prefill_tokens = _prefill_steps(run)
    moments, running = _running(run)
    area = np.concatenate(([0.0], np.cumsum(np.diff(moments) * running[:-1])))
    rows = []
    for first, end, output in zip(run.first_token_s, run.end_s, run.output_tokens, strict=True):
        meanwhile = (prefill_s > first + _SAME_STEP_S) & (prefill_s <= end)
        mean_running = (np.interp(end, moments, area) - np.interp(first, moments, area)) / (end - first)
        steps = output - 1
        rows.append((meanwhile.sum(), prefill_tokens[meanwhile].sum(), steps, steps * mean_running))
    terms = np.array(rows, dtype=np.float64)
    seconds = run.end_s - run.first_token_s
    (p0, p1, d0, d1), *_ = np.linalg.lstsq(terms, seconds, rcond=None)
    usually = _usual(moments, running)
    return FittedMachine(
        step_time=LinearStepTime(float(d0), float(p1 + p0 / prefill_tokens.mean()), float(d1), 0.0),
        pool_tokens=usually * int((run.prompt_tokens + run.output_tokens).max()),
        usually_running=usually,
        mean_error_s=float(np.abs(terms @ np.array([p0, p1, d0, d1]) - seconds).mean()),
        mean_decode_s=float(seconds.mean()),
    )


def _prefill_steps(run: ServedRun) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """When each prefill step gave its first tokens, and how many prompt tokens it computed."""
    order = np.argsort(run.first_token_s, kind="stable")
    times, tokens = run.first_token_s[order], run.prompt_tokens[order]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(times) > _SAME_STEP_S) + 1))
    return times[starts], np.add.reduceat(tokens, starts)


def _running(run: ServedRun) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Requests between first token and end, at each moment where that changes."""
    moments = np.concatenate((run.first_token_s, run.end_s))
    changes = np.concatenate((np.ones(len(run.end_s), dtype=np.int64), -np.ones(len(run.end_s), dtype=np.int64)))
    # Who ends leaves before who begins at the same moment comes.
    order = np.lexsort((changes, moments))
    return moments[order], np.cumsum(changes[order])


def _usual(moments: NDArray[np.float64], running: NDArray[np.int64]) -> int:
    """The median over time."""
    seconds = np.diff(moments)
    order = np.argsort(running[:-1], kind="stable")
    passed = np.cumsum(seconds[order])
    return int(running[:-1][order][np.searchsorted(passed, passed[-1] / 2)])
