"""Prompt tokens of a request that is not tokenised yet: bytes × a running ratio.

Knows byte and token counts. Does not know text or tokenizers. The estimate stands in the index until staging
tokenises the prompt; its error is exported, because a class whose rows are priced wrongly gets the wrong share
until they are staged.

One ratio for the worker: a tokenizer's bytes a token differ between languages by a factor of three at most, and the
estimate lives only while a row waits. The ratio is Σ tokens ÷ Σ bytes over a decaying window, not the mean of
ratios, so long prompts, whose error costs most, count most.
"""

from dataclasses import dataclass

__all__ = ["PromptRatio", "PromptRatioStatistics"]

_WINDOW_PROMPTS = 256
"""Weight of the past, in prompts."""
_PRIOR_TOKENS_A_BYTE = 0.25
"""Four bytes a token: English text under byte-pair tokenizers of 30 to 130 thousand entries."""
_PRIOR_BYTES = 4096.0


@dataclass(frozen=True, slots=True)
class PromptRatioStatistics:
    tokens_a_byte: float
    observed: int
    mean_error_tokens: float
    """Signed: positive when prompts turn out longer than estimated."""
    mean_absolute_error_tokens: float
    relative_error: float
    """Σ |error| ÷ Σ tokens, over everything observed."""


class PromptRatio:
    """Estimates with `tokens`, learns with `observe`."""

    def __init__(self) -> None:
        self._bytes = _PRIOR_BYTES
        self._tokens = _PRIOR_BYTES * _PRIOR_TOKENS_A_BYTE
        self._observed = 0
        self._error = 0
        self._absolute_error = 0
        self._actual = 0

    def tokens(self, payload_bytes: int) -> int:
        """Estimated prompt tokens of a payload; at least one."""
        return max(1, round(payload_bytes * self._tokens / self._bytes))

    def observe(self, payload_bytes: int, estimated_tokens: int, tokens: int) -> None:
        """A prompt of so many bytes, once estimated (the index's column until now), has so many tokens."""
        keep = 1.0 - 1.0 / _WINDOW_PROMPTS
        self._bytes = keep * self._bytes + payload_bytes
        self._tokens = keep * self._tokens + tokens
        self._observed += 1
        self._error += tokens - estimated_tokens
        self._absolute_error += abs(tokens - estimated_tokens)
        self._actual += tokens

    def statistics(self) -> PromptRatioStatistics:
        observed = max(1, self._observed)
        return PromptRatioStatistics(
            tokens_a_byte=self._tokens / self._bytes,
            observed=self._observed,
            mean_error_tokens=self._error / observed,
            mean_absolute_error_tokens=self._absolute_error / observed,
            relative_error=self._absolute_error / max(1, self._actual),
        )
