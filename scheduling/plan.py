"""What one engine step shall do, and what came of it: values that cross between `BatchScheduler` and engine.

Knows rows and token counts. Does not know token ids, tensors or time.
"""

from dataclasses import dataclass

from kvcache.swap_plan import BlockCopy
from scheduling.state import RequestState

__all__ = ["Chunk", "Eviction", "Outcome", "StepPlan"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start … start + tokens` of one sequence, computed in this step.

    A decode is a chunk of one token: the last sampled one.
    """

    row: int
    start: int
    tokens: int
    samples: bool
    """The chunk reaches the end of the known tokens, so the step samples the next one; a request of no output ends."""
    decode: bool
    """One already sampled token, rather than a piece of the prompt (or of a recomputation)."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A row that lost its blocks; its tokens are kept."""

    row: int
    for_row: int
    """Who needed the room; possibly itself."""
    swapped: bool
    """Its KV is copied out; else it is computed again, as far as it is not found."""
    computed_tokens: int
    swap_s: float | None
    """What swapping was estimated to take, out and in; None where that was no choice."""
    recompute_s: float
    """What recomputing was estimated to take."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Chunks in the order of the step: strict decode, strict prefill, other decode, other prefill."""

    chunks: tuple[Chunk, ...]
    admitted: tuple[int, ...]
    """Rows that got their slot and blocks in this plan."""
    evictions: tuple[Eviction, ...]
    """Rows that lost their blocks in this plan."""
    swaps: tuple[BlockCopy, ...]
    """To be done in this order, before the chunks; also if the plan is dropped."""
    predicted_s: float
    """The step's predicted length."""

    @property
    def preempted(self) -> tuple[int, ...]:
        return tuple(eviction.row for eviction in self.evictions)

    @property
    def prefill_tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks if not chunk.decode)

    @property
    def decode_tokens(self) -> int:
        return sum(1 for chunk in self.chunks if chunk.decode)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step did for one row whose chunk `samples`. `ended` is a terminal state, or None: it goes on."""

    row: int
    ended: RequestState | None
    tokens: int = 1
    """Sampled: more than one where guesses came true, all but the last of them computed; none of a request of no
    output, which has ended."""
    guessed: int = 0
    """Tokens that were computed to see whether they would come."""
