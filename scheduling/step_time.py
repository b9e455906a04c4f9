"""How long a step takes: a linear model, and a tracker that keeps it true on the machine at hand.

Knows counts of tokens and measured seconds. Does not know requests or priorities; `scheduling.step_order` cuts
prompts by it so that a step stays under its cap in milliseconds.

**Model.** seconds = fixed + a · prompt tokens + b · decoding sequences + c · context tokens, where the context tokens
of a step are the KV tokens its chunks look at: for each chunk, the position where it ends. Fixed is the reading of
the weights and the calls, a and b the matrix products, c the reading of the KV. Source: step times
measured on two-core CPUs, which such a line fits to some per cent; Vidur and the BLIS simulator use the same terms.

**Tracker.** Normalised least mean squares on the logarithm of the coefficients (the exponentiated-gradient family,
Kivinen and Warmuth 1997). A step that took a factor of e longer than predicted raises each coefficient by a power of
that factor, in proportion to the share its term has in the prediction. Why this one:

- A coefficient is multiplied by a positive number, so it is never negative, which least squares does not promise.
- Long stretches of equal steps (64 sequences decoding) say nothing about the prompt term. Here what says nothing is
  left alone; recursive least squares with forgetting lets its covariance grow in that direction until the next
  prompt throws the model off.
- One step's influence is bounded: the error is clipped, so a step that a page fault made ten times longer moves the
  prediction by a few per cent.
- The speed of a machine drifts as a whole (one was seen to lose a third within an hour): that is one common factor,
  and what a step of any kind says about it applies to all.

Drawbacks: it follows the geometric mean, so a cap is held in the typical step and not in each; it converges over tens
of steps rather than at once; a term that starts at 0 stays 0, so start from a guess of the right order.
"""

from dataclasses import dataclass
from math import exp, inf, isfinite, log
from typing import Protocol

__all__ = ["LinearStepTime", "StepTimeModel", "StepTimeStatistics", "StepTimeTracker"]

_GAIN = 0.1
"""The part of an error that one step corrects, once the first steps are over."""
_CLIP = log(2)
"""A single step counts at most as twice, or half, the predicted time…"""
_FIRST_CLIP = log(64)
"""…but while the start value is a guess, much further."""
_FIRST_STEPS = 8


class StepTimeModel(Protocol):
    def predict(self, prefill_tokens: int, decode_sequences: int, context_tokens: int) -> float:
        """Seconds of a step with that load."""
        ...

    def prefill_tokens_within(
        self, seconds: float, prefill_tokens: int, decode_sequences: int, context_tokens: int
    ) -> int:
        """How many prompt tokens may come on top of that load so that the step stays within `seconds`.

        0 if none; never more than an int can hold in practice (2**31).
        """
        ...


@dataclass(frozen=True, slots=True)
class LinearStepTime:
    """Coefficients in seconds. The defaults are of SmolLM2-135M in bf16 on two cores with AVX512: the order
    of magnitude to start from, no more."""

    fixed_s: float = 15e-3
    per_prefill_token_s: float = 0.5e-3
    per_decode_sequence_s: float = 0.8e-3
    per_context_token_s: float = 1.7e-6

    def __post_init__(self) -> None:
        for name in ("fixed_s", "per_prefill_token_s", "per_decode_sequence_s", "per_context_token_s"):
            value = getattr(self, name)
            if not isfinite(value) or value < 0:
                raise ValueError(f"{name} = {value}: must be a number of seconds, not negative")
        if self.fixed_s + self.per_prefill_token_s + self.per_decode_sequence_s == 0:
            raise ValueError("a step would take no time at all: give at least one of its terms")

    def predict(self, prefill_tokens: int, decode_sequences: int, context_tokens: int) -> float:
        return (
            self.fixed_s
            + self.per_prefill_token_s * prefill_tokens
            + self.per_decode_sequence_s * decode_sequences
            + self.per_context_token_s * context_tokens
        )

    def prefill_tokens_within(
        self, seconds: float, prefill_tokens: int, decode_sequences: int, context_tokens: int
    ) -> int:
        left_s = seconds - self.predict(prefill_tokens, decode_sequences, context_tokens)
        if left_s <= 0:
            return 0
        # A prompt token also moves the end of its chunk by one.
        token_s = self.per_prefill_token_s + self.per_context_token_s
        if token_s * _MANY <= left_s:
            return _MANY
        return int(left_s / token_s)


_MANY = 2**31


@dataclass(frozen=True, slots=True)
class StepTimeStatistics:
    model: LinearStepTime
    observed_steps: int
    error: float
    """Running mean of |ln(measured ÷ predicted)|: 0.1 is about 10 %."""


class StepTimeTracker:
    """A `StepTimeModel` that learns from each measured step. Mutable, with one owner."""

    def __init__(self, start: LinearStepTime | None = None) -> None:
        self._model = LinearStepTime() if start is None else start
        self._observed = 0
        self._error = 0.0

    @property
    def model(self) -> LinearStepTime:
        return self._model

    def predict(self, prefill_tokens: int, decode_sequences: int, context_tokens: int) -> float:
        return self._model.predict(prefill_tokens, decode_sequences, context_tokens)

    def prefill_tokens_within(
        self, seconds: float, prefill_tokens: int, decode_sequences: int, context_tokens: int
    ) -> int:
        return self._model.prefill_tokens_within(seconds, prefill_tokens, decode_sequences, context_tokens)

    def observe(self, prefill_tokens: int, decode_sequences: int, context_tokens: int, measured_s: float) -> None:
        """Learn that a step of this load took `measured_s`. A step of no measurable length teaches nothing."""
        model = self._model
        predicted_s = model.predict(prefill_tokens, decode_sequences, context_tokens)
        if measured_s <= 0 or measured_s == inf or predicted_s <= 0:
            return
        error = log(measured_s / predicted_s)
        self._observed += 1
        self._error += (abs(error) - self._error) * max(_GAIN, 1 / self._observed)
        clip = _FIRST_CLIP if self._observed <= _FIRST_STEPS else _CLIP
        move = max(_GAIN, 1 / (self._observed + 1)) * min(max(error, -clip), clip)
        shares = (
            model.fixed_s / predicted_s,
            model.per_prefill_token_s * prefill_tokens / predicted_s,
            model.per_decode_sequence_s * decode_sequences / predicted_s,
            model.per_context_token_s * context_tokens / predicted_s,
        )
        # Divided by the squares, the prediction for this same step moves by `move`, however the shares fall.
        move /= sum(share * share for share in shares)
        self._model = LinearStepTime(
            model.fixed_s * exp(move * shares[0]),
            model.per_prefill_token_s * exp(move * shares[1]),
            model.per_decode_sequence_s * exp(move * shares[2]),
            model.per_context_token_s * exp(move * shares[3]),
        )

    def statistics(self) -> StepTimeStatistics:
        return StepTimeStatistics(self._model, self._observed, self._error)
