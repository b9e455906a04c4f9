"""The protocol of a model runner: one packed forward over sequences of any mix.

Knows token ids, positions, block tables and sampling. Does not know requests, priorities or Kafka. Implementations:
`workers.transformers_runner` (any causal LM of transformers), `workers.simulated_runner` (a step-time model).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from workers.sampling import SamplingParams

__all__ = ["ModelLimits", "ModelRunner", "SequenceInput"]


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """One sequence's part of a step."""

    token_ids: Sequence[int]
    """This chunk's tokens, at positions `start … start + len(token_ids)`."""
    start: int
    """Tokens whose KV is already in the blocks."""
    block_ids: Sequence[int]
    """The sequence's block table; it covers `start + len(token_ids)` tokens."""
    sampling: SamplingParams | None
    """None: the chunk doesn't reach the end of the known tokens, nothing is sampled."""
    output_position: int = 0
    """The sampled token's index in the output: the counter of the counter-based randomness."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    context_tokens: int
    vocabulary: int
    eos_token_ids: frozenset[int]


class ModelRunner(Protocol):
    """Owned by the engine thread: every method is called from it alone."""

    @property
    def limits(self) -> ModelLimits: ...

    @property
    def block_size(self) -> int:
        """Tokens a block: the attention backend's own property."""
        ...

    @property
    def num_blocks(self) -> int: ...

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        """Run one forward; the sampled token of each sequence, None where `sampling` is None.

        Raises `workers.errors.EngineFault` (out of memory, not-a-number logits).
        """
        ...
