"""Swap or recompute: which of the two gets a victim back for less of the engine's time.

Knows bytes, seconds and rates. Does not know requests or blocks' content.

**Rule.** Swap if copying out *and* in takes less than θ × the time to compute again what would truly be computed again:

    blocks × bytes × (1 / out rate + 1 / in rate)  <  θ × share × prefill time of the tokens

A swap is two transfers: published rules of thumb count one, and are wrong by half. The tokens are those that nobody
shares; `share` is the part of earlier victims' tokens that really had to be computed again, for what a victim gives up
often lies in the prefix cache still when it comes back. Both rates are measured at start and follow each copy, the
prefill time follows each step (`scheduling.step_time`).

θ = 1 is break-even in engine time. A copy also takes memory bandwidth from what runs, and a place in the swap pool from
a later victim; a recomputation takes room in the step from prompts. Neither is in the estimate, so θ is a setting.

Drawback: a recomputation rides in steps that run anyway, so its fixed costs are not counted; a copy delays the whole
step. Rates are means over copies of all sizes.
"""

from dataclasses import dataclass

from kvcache.swap_plan import Direction

__all__ = ["SwapRates", "SwapRule", "SwapRuleStatistics"]

_GAIN = 0.1
"""The part of an error that one observation corrects."""


@dataclass(frozen=True, slots=True)
class SwapRates:
    """Of the machine, as measured at start."""

    block_bytes: int
    out_bytes_s: float
    in_bytes_s: float


@dataclass(frozen=True, slots=True)
class SwapRuleStatistics:
    out_bytes_s: float
    in_bytes_s: float
    recomputed_share: float
    error: float
    """Running mean of |measured ÷ predicted − 1| of copies."""


class SwapRule:
    def __init__(self, rates: SwapRates, theta: float) -> None:
        assert min(rates.block_bytes, rates.out_bytes_s, rates.in_bytes_s) > 0, f"{rates}"
        self._block_bytes = rates.block_bytes
        # Seconds a byte: what is averaged is time, so that a mean of copies is what they take together.
        self._byte_s = {Direction.OUT: 1 / rates.out_bytes_s, Direction.IN: 1 / rates.in_bytes_s}
        self._theta = theta
        self._share = 1.0
        self._error = 0.0
        self._observed = 0

    def swap_s(self, blocks: int) -> float:
        """Seconds to copy so many blocks out and in again."""
        return blocks * self._block_bytes * sum(self._byte_s.values())

    def recompute_s(self, prefill_s: float) -> float:
        """Seconds to compute what would truly be computed of tokens whose prefill takes `prefill_s`."""
        return prefill_s * self._share

    def prefers_swap(self, blocks: int, prefill_s: float) -> bool:
        return self.swap_s(blocks) < self._theta * self.recompute_s(prefill_s)

    def copied(self, direction: Direction, blocks: int, seconds: float) -> None:
        """A copy took so long."""
        if blocks < 1 or seconds <= 0:
            return
        predicted_s = blocks * self._block_bytes * self._byte_s[direction]
        self._observed += 1
        self._error += (abs(seconds / predicted_s - 1) - self._error) * max(_GAIN, 1 / self._observed)
        byte_s = seconds / (blocks * self._block_bytes)
        self._byte_s[direction] += _GAIN * (byte_s - self._byte_s[direction])

    def came_back(self, lost_tokens: int, found_tokens: int) -> None:
        """A victim, swapped or not, came back to so many of its tokens in the prefix cache."""
        if lost_tokens > 0:
            share = 1 - min(found_tokens, lost_tokens) / lost_tokens
            self._share += _GAIN * (share - self._share)

    def statistics(self) -> SwapRuleStatistics:
        return SwapRuleStatistics(
            out_bytes_s=1 / self._byte_s[Direction.OUT],
            in_bytes_s=1 / self._byte_s[Direction.IN],
            recomputed_share=self._share,
            error=self._error,
        )
