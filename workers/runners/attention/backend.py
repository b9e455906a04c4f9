"""The protocol of an attention backend: who owns the layout of the KV blocks, and reads and writes them.

Knows packed sequences, blocks and layers. Does not know models, requests or sampling.

A step goes: `begin_step` once, with all sequences; then in each layer `write` and `attend`, in this order. What can
be worked out once (row numbers, masks, the grouping of sequences) is worked out in `begin_step`: there are tens of
layers and one step.

Implementations: `workers.runners.attention.reference` (plain torch on any device, and the oracle for the others) and
`workers.runners.attention.cpu` (compiled kernels).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kvcache.storage import KVStorage

__all__ = ["AttentionBackend", "AttentionKind", "AttentionStep", "SequenceSpan"]


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One sequence's part of a step, in tokens. The spans of a step lie packed behind one another."""

    start: int
    """Tokens whose KV is in the blocks already."""
    tokens: int
    """New ones, at positions `start … start + tokens`; at least one."""
    block_ids: Sequence[int]
    """Blocks of the sequence in order; they cover `start + tokens` tokens."""


class AttentionStep(Protocol):
    """One step's attention, for one layer at a time. Valid until the backend begins the next step."""

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the new tokens' KV. Both [tokens, kv_heads, head_dim], any strides."""
        ...

    def attend(self, layer: int, query: torch.Tensor, *, scaling: float, window: int | None) -> torch.Tensor:
        """Causal attention of the new tokens to their own sequence, themselves included.

        `query` [tokens, heads, head_dim], any strides; heads is a multiple of kv_heads, and query head h reads KV
        head h // (heads // kv_heads). `window`: a token sees itself and the window − 1 tokens before it; None: all.
        Returns [tokens, heads, head_dim], contiguous.
        """
        ...


class AttentionBackend(Protocol):
    """Made for one storage; owned by the engine thread."""

    def begin_step(self, spans: Sequence[SequenceSpan]) -> AttentionStep: ...


class AttentionKind(Protocol):
    """A backend before there is a storage: it says how the storage must be laid out, and then makes the backend."""

    @property
    def name(self) -> str: ...

    @property
    def block_size(self) -> int:
        """Tokens a block. The unit of prefix hashes is independent of it."""
        ...

    def block_shape(self, kv_heads: int, head_dim: int) -> tuple[int, ...]:
        """The layout of the keys, and of the values, of one block in one layer."""
        ...

    def refusal(self, heads: int, kv_heads: int, head_dim: int) -> str | None:
        """Why it can't serve heads of these numbers and this size; None: it can."""
        ...

    def __call__(self, storage: KVStorage) -> AttentionBackend: ...
