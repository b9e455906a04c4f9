"""Attention over KV blocks by compiled kernels, for CPUs (`workers/runners/native/attention.c` says how).

Knows the kernels' structures and what they ask of a model. Does not know how they are compiled, or models.

Keys of a (block, head) lie dimension by dimension, [head_dim, 16], values token by token, [16, head_dim]: both are
read where they lie. Queries, new keys and values are handed over as float32 whatever the pool's format.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from kvcache.storage import KVStorage
from workers.runners.attention.backend import SequenceSpan
from workers.runners.native.library import LayerKV, NativeLibrary, Spans, pointer

__all__ = ["BLOCK_TOKENS", "CpuAttention", "CpuAttentionKind", "CpuStep"]

BLOCK_TOKENS = 16
_HEAD_DIM_UNIT = 16
"""A whole number of the widest vectors."""
_MAX_HEAD_DIM = 256
_MAX_QUERY_ROWS = 32
"""attention.c, MAX_QUERY_ROWS and MAX_HEAD_DIM."""

_Ints = np.ndarray[tuple[int], np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class CpuAttentionKind:
    """An `AttentionKind`."""

    library: NativeLibrary
    threads: int

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def block_size(self) -> int:
        return BLOCK_TOKENS

    def block_shape(self, kv_heads: int, head_dim: int) -> tuple[int, ...]:
        return (kv_heads, BLOCK_TOKENS * head_dim)

    def refusal(self, heads: int, kv_heads: int, head_dim: int) -> str | None:
        if head_dim % _HEAD_DIM_UNIT or head_dim > _MAX_HEAD_DIM:
            return f"heads of {head_dim} values are not a multiple of {_HEAD_DIM_UNIT} up to {_MAX_HEAD_DIM}"
        if heads // kv_heads > _MAX_QUERY_ROWS:
            return f"{heads // kv_heads} query heads a KV head are more than {_MAX_QUERY_ROWS}"
        return None

    def __call__(self, storage: KVStorage) -> "CpuAttention":
        return CpuAttention(storage, self.library, self.threads)


class CpuAttention:
    """An `AttentionBackend`."""

    def __init__(self, storage: KVStorage, library: NativeLibrary, threads: int) -> None:
        kv_heads, row = storage.block_shape
        assert row % BLOCK_TOKENS == 0, "the storage was laid out for another backend"
        assert storage.blocks.device.type == "cpu"
        assert storage.blocks.dtype in (torch.float32, torch.bfloat16), storage.blocks.dtype
        self.storage = storage
        self.library = library
        self.threads = threads
        self.kv_heads = kv_heads
        self.head_dim = row // BLOCK_TOKENS
        self.block_stride = storage.layers * 2 * kv_heads * row
        """Elements from a block to the next one."""

    def begin_step(self, spans: Sequence[SequenceSpan]) -> "CpuStep":
        return CpuStep(self, spans)

    def layer_kv(self, layer: int, heads: int, scaling: float, window: int | None) -> LayerKV:
        blocks = self.storage.blocks
        return LayerKV(
            keys=pointer(blocks[0, layer, 0]),
            values=pointer(blocks[0, layer, 1]),
            block_stride=self.block_stride,
            bf16=blocks.dtype == torch.bfloat16,
            heads=heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            item_tokens=item_tokens(heads // self.kv_heads),
            window=window or 0,
            scaling=scaling,
        )


def item_tokens(group: int) -> int:
    """New tokens that one piece of work takes together, `group` query heads sharing a KV head."""
    return max(1, _MAX_QUERY_ROWS // group)


class CpuStep:
    """An `AttentionStep`; and the step as the kernels' structure, for a forward that is all kernels."""

    def __init__(self, backend: CpuAttention, spans: Sequence[SequenceSpan]) -> None:
        self._backend = backend
        self._start = np.array([span.start for span in spans], np.int32)
        self._length = np.array([span.tokens for span in spans], np.int32)
        assert (self._length > 0).all(), "an empty span"
        self._first = _before(self._length)
        used = -(-(self._start + self._length) // BLOCK_TOKENS)
        assert all(len(span.block_ids) >= n for span, n in zip(spans, used, strict=True)), "blocks don't cover a span"
        self._table_first = _before(used)
        parts = (span.block_ids[:n] for span, n in zip(spans, used.tolist(), strict=True))
        self._table = np.fromiter(chain.from_iterable(parts), np.int32, int(used.sum()))
        self.tokens = int(self._length.sum())
        self._items: tuple[int, _Ints, _Ints] | None = None

    def spans(self, group: int) -> Spans:
        """The step for heads of which `group` share a KV head. It points into this object."""
        item_span, item_token = self._pieces(group)
        return Spans(
            spans=len(self._start),
            tokens=self.tokens,
            items=len(item_span),
            first=pointer(self._first),
            start=pointer(self._start),
            length=pointer(self._length),
            table_first=pointer(self._table_first),
            table=pointer(self._table),
            item_span=pointer(item_span),
            item_token=pointer(item_token),
        )

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        backend = self._backend
        kv = backend.layer_kv(layer, backend.kv_heads, 1.0, None)
        keys, values = key.float().contiguous(), value.float().contiguous()
        backend.library.store_step_kv(self.spans(1), kv, pointer(keys), pointer(values), backend.threads)

    def attend(self, layer: int, query: torch.Tensor, *, scaling: float, window: int | None) -> torch.Tensor:
        tokens, heads, head_dim = query.shape
        assert tokens == self.tokens, "another step's tokens"
        backend = self._backend
        queries = query.float().contiguous()
        out = torch.empty((tokens, heads, head_dim), dtype=torch.float32)
        kv = backend.layer_kv(layer, heads, scaling, window)
        spans = self.spans(heads // backend.kv_heads)
        row = heads * head_dim
        backend.library.attend_step(spans, kv, pointer(queries), row, pointer(out), row, backend.threads)
        return out.to(query.dtype)

    def _pieces(self, group: int) -> tuple[_Ints, _Ints]:
        """Span and first token of each piece of work: those that take longest first, so that threads end together."""
        if self._items is None or self._items[0] != group:
            tokens = item_tokens(group)
            pieces = -(-self._length // tokens)
            span = np.repeat(np.arange(len(pieces), dtype=np.int32), pieces)
            token = (np.arange(len(span), dtype=np.int32) - np.repeat(_before(pieces), pieces)) * np.int32(tokens)
            seen = self._start[span] + token
            work = (seen + tokens) * np.minimum(self._length[span] - token, tokens)
            order = np.argsort(-work, kind="stable")
            self._items = (group, span[order], token[order])
        return self._items[1], self._items[2]


def _before(counts: np.ndarray[Any, np.dtype[np.int32]]) -> _Ints:
    """For each, the sum of those before it."""
    ends: _Ints = np.cumsum(counts, dtype=np.int32)
    return ends - counts
