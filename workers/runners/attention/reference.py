"""Attention over KV blocks in plain torch: any device, any mix of sequences, and the oracle for faster backends.

Knows how to bring scattered blocks into a form that torch's scaled-dot-product attention takes. Does not know models.

**How.** A block of one layer is stored head by head, [kv_heads, block_size, head_dim], so that a (block, head) is one
row of kilobytes in a flat view of the pool, and one `index_select` gathers a group of sequences straight into
[sequences, kv_heads, tokens, head_dim]. The view of layer l starts l layers later, so the row numbers are the same
for all layers and are made once a step.

- *Decodes* (one new token) go in groups: sorted by length, so that little is padded, and cut so that a group's KV
  stays in the cache between gather and use (gathers of 2 MB were measured twice as fast a byte as of 25). The query
  heads that share a KV head become query rows of that head: no KV is repeated, and torch's own grouping
  (`enable_gqa`) was measured several times slower on CPUs.
- *Chunks* (more than one new token) go one sequence at a time, their products being large: KV heads as the batch,
  the query heads of each as heads over KV expanded with stride 0. From position 0 on the causal flag serves and half
  of the work is skipped; later chunks take a mask.

**Drawbacks.** KV is copied before it is read, three passes over memory instead of one; that is what a compiled kernel
saves. A mask of (chunk × context) is made for chunks that don't start at 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from kvcache.storage import KVStorage
from workers.runners.attention.backend import SequenceSpan

__all__ = ["ReferenceAttention", "ReferenceStatistics"]

_GROUP_BYTES = {"cpu": 2 * 2**20}
"""Gathered keys and values of a group of decodes, unless a single one has more."""
_GROUP_BYTES_ELSEWHERE = 256 * 2**20
"""Accelerators: few large calls."""
_PADDING = 0.75
"""A decode joins a group only if it has at least this part of the blocks of the group's longest."""


@dataclass(frozen=True, slots=True)
class ReferenceStatistics:
    steps: int
    scratch_bytes: int
    """Of gathered keys and values: grows to the largest group or chunk seen."""


_Rows = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class ReferenceAttention:
    """See the module. Holds scratch memory for gathered KV that grows to the largest group seen."""

    name: ClassVar[str] = "reference"
    block_size: ClassVar[int] = 16

    def __init__(self, storage: KVStorage) -> None:
        kv_heads, block_size, head_dim = storage.block_shape
        assert block_size == self.block_size, "the storage was laid out for another backend"
        self._kv_heads = kv_heads
        self._head_dim = head_dim
        self._pool = storage.blocks
        self._device = storage.blocks.device
        self._dtype = storage.blocks.dtype
        self._rows_a_block = storage.layers * 2 * kv_heads
        """Rows (of one head in one block) from a block to the next one, in the flat view of the pool."""
        self._scratch = torch.empty((2, 0), dtype=self._dtype, device=self._device)
        self._steps = 0

    @classmethod
    def block_shape(cls, kv_heads: int, head_dim: int) -> tuple[int, ...]:
        return (kv_heads, cls.block_size, head_dim)

    @classmethod
    def refusal(cls, heads: int, kv_heads: int, head_dim: int) -> str | None:
        return None

    def begin_step(self, spans: Sequence[SequenceSpan]) -> "_Step":
        decodes: list[tuple[int, SequenceSpan]] = []
        chunks: list[_Chunk] = []
        first = 0
        for span in spans:
            assert span.tokens > 0, "an empty span"
            assert len(span.block_ids) * self.block_size >= span.start + span.tokens, "blocks don't cover the span"
            if span.tokens == 1:
                decodes.append((first, span))
            else:
                chunks.append(self._chunk(first, span))
            first += span.tokens
        groups = [self._group(members) for members in self._cut(decodes)]
        self._steps += 1
        return _Step(self, first, self._written_rows(spans), groups, chunks)

    def statistics(self) -> ReferenceStatistics:
        return ReferenceStatistics(self._steps, self._scratch.numel() * self._scratch.element_size())

    # --- made once a step -------------------------------------------------------------------------------------------

    def _cut(self, decodes: list[tuple[int, SequenceSpan]]) -> list[list[tuple[int, SequenceSpan]]]:
        """Groups of decodes of about the same length, longest first."""
        row_bytes = 2 * self._kv_heads * self.block_size * self._head_dim * self._pool.element_size()
        limit = max(1, _GROUP_BYTES.get(self._device.type, _GROUP_BYTES_ELSEWHERE) // row_bytes)
        groups: list[list[tuple[int, SequenceSpan]]] = []
        longest = 0
        for member in sorted(decodes, key=lambda member: -member[1].start):
            blocks = self._blocks(member[1])
            fits = groups and (len(groups[-1]) + 1) * longest <= limit and blocks >= _PADDING * longest
            if fits:
                groups[-1].append(member)
            else:
                groups.append([member])
                longest = blocks
        return groups

    def _group(self, members: list[tuple[int, SequenceSpan]]) -> "_Group":
        blocks = self._blocks(members[0][1])
        table = np.empty((len(members), blocks), dtype=np.int64)
        for row, (_, span) in enumerate(members):
            own = self._blocks(span)
            table[row, :own] = span.block_ids[:own]
            table[row, own:] = span.block_ids[0]  # behind the end: any block will do, it is masked
        return _Group(
            rows=self._to_device(np.array([first for first, _ in members], dtype=np.int64)),
            gathered=self._to_device(self._head_rows(table)),
            lengths=self._to_device(np.array([span.start + 1 for _, span in members], dtype=np.int64)),
            sequences=len(members),
            tokens=blocks * self.block_size,
        )

    def _chunk(self, first: int, span: SequenceSpan) -> "_Chunk":
        table = np.array(span.block_ids[: self._blocks(span)], dtype=np.int64)
        return _Chunk(first, span.tokens, span.start, self._to_device(self._head_rows(table[None])))

    def _head_rows(self, table: _Rows) -> _Rows:
        """Block numbers [sequences, blocks] to row numbers of a layer's view, ordered [sequences, heads, blocks]."""
        heads = np.arange(self._kv_heads)[None, :, None]
        return (table[:, None, :] * self._rows_a_block + heads).reshape(-1)

    def _written_rows(self, spans: Sequence[SequenceSpan]) -> torch.Tensor:
        """For each new token and head, in this order: its row of `head_dim` values in a layer's view."""
        parts: list[_Rows] = []
        for span in spans:
            positions = np.arange(span.start, span.start + span.tokens)
            first_block = span.start // self.block_size
            blocks = np.array(span.block_ids[first_block : self._blocks(span)], dtype=np.int64)
            block = blocks[positions // self.block_size - first_block]
            head_row = block[:, None] * self._rows_a_block + np.arange(self._kv_heads)
            parts.append((head_row * self.block_size + (positions % self.block_size)[:, None]).reshape(-1))
        return self._to_device(np.concatenate(parts) if parts else np.empty(0, dtype=np.int64))

    def _blocks(self, span: SequenceSpan) -> int:
        return -(-(span.start + span.tokens) // self.block_size)

    def _to_device(self, values: _Rows) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)

    # --- in each layer ----------------------------------------------------------------------------------------------

    def view(self, layer: int, part: int, row: int) -> torch.Tensor:
        """The pool from one layer's keys (`part` 0) or values (1) on, as rows of `row` elements."""
        offset = (layer * 2 + part) * self._kv_heads * self.block_size * self._head_dim
        return self._pool.view(-1)[offset:].view(-1, row)

    def gather(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of these (block, head) rows, in scratch memory: valid until the next gather."""
        row = self.block_size * self._head_dim
        if rows.numel() * row > self._scratch.shape[1]:
            self._scratch = torch.empty((2, rows.numel() * row), dtype=self._dtype, device=self._device)
        key, value = (self._scratch[part, : rows.numel() * row].view(-1, row) for part in (0, 1))
        torch.index_select(self.view(layer, 0, row), 0, rows, out=key)
        torch.index_select(self.view(layer, 1, row), 0, rows, out=value)
        return key, value

    @property
    def kv_heads(self) -> int:
        return self._kv_heads

    @property
    def head_dim(self) -> int:
        return self._head_dim


@dataclass(slots=True)
class _Group:
    """Decodes that are attended to together."""

    rows: torch.Tensor
    """[sequences]: their rows in the packed step."""
    gathered: torch.Tensor
    """[sequences · kv_heads · blocks]: (block, head) rows of a layer's view."""
    lengths: torch.Tensor
    """[sequences]: tokens of each, the new one included."""
    sequences: int
    tokens: int
    """Of the longest, rounded up to whole blocks."""
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
    """By window: [sequences, 1, 1, tokens], 0 where seen and −inf elsewhere."""

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        made = self.masks.get(window)
        if made is None:
            positions = torch.arange(self.tokens, device=self.lengths.device)
            hidden = positions >= self.lengths[:, None]
            if window is not None:
                hidden |= positions < self.lengths[:, None] - window
            made = _minus_infinity(hidden, dtype)[:, None, None]
            self.masks[window] = made
        return made


@dataclass(slots=True)
class _Chunk:
    """Several new tokens of one sequence."""

    first: int
    """Its first row in the packed step."""
    tokens: int
    start: int
    gathered: torch.Tensor
    """[kv_heads · blocks]: (block, head) rows of a layer's view."""
    masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)
    """By window: [tokens, start + tokens], or None where the causal flag says the same."""

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        if window not in self.masks:
            self.masks[window] = self._make_mask(window, dtype)
        return self.masks[window]

    def _make_mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        end = self.start + self.tokens
        if self.start == 0 and (window is None or window >= end):
            return None
        device = self.gathered.device
        queries = torch.arange(self.start, end, device=device)[:, None]
        keys = torch.arange(end, device=device)
        hidden = keys > queries
        if window is not None:
            hidden |= keys <= queries - window
        return _minus_infinity(hidden, dtype)


class _Step:
    """An `AttentionStep`."""

    def __init__(
        self,
        backend: ReferenceAttention,
        tokens: int,
        written: torch.Tensor,
        groups: list[_Group],
        chunks: list[_Chunk],
    ) -> None:
        self._backend = backend
        self._tokens = tokens
        self._written = written
        self._groups = groups
        self._chunks = chunks

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        for part, new in enumerate((key, value)):
            rows = self._backend.view(layer, part, self._backend.head_dim)
            rows.index_copy_(0, self._written, new.reshape(-1, self._backend.head_dim))

    def attend(self, layer: int, query: torch.Tensor, *, scaling: float, window: int | None) -> torch.Tensor:
        tokens, heads, head_dim = query.shape
        assert tokens == self._tokens, "another step's tokens"
        kv_heads = self._backend.kv_heads
        grouped = query.view(tokens, kv_heads, heads // kv_heads, head_dim)
        out = torch.empty((tokens, kv_heads, heads // kv_heads, head_dim), dtype=query.dtype, device=query.device)
        for group in self._groups:
            self._attend_group(layer, group, grouped, out, scaling, window)
        for chunk in self._chunks:
            self._attend_chunk(layer, chunk, grouped, out, scaling, window)
        return out.view(tokens, heads, head_dim)

    def _attend_group(
        self,
        layer: int,
        group: _Group,
        query: torch.Tensor,
        out: torch.Tensor,
        scaling: float,
        window: int | None,
    ) -> None:
        shape = (group.sequences, self._backend.kv_heads, group.tokens, self._backend.head_dim)
        key, value = self._backend.gather(layer, group.gathered)
        attended = scaled_dot_product_attention(
            query.index_select(0, group.rows),
            key.view(shape),
            value.view(shape),
            attn_mask=group.mask(window, query.dtype),
            scale=scaling,
        )
        out.index_copy_(0, group.rows, attended)

    def _attend_chunk(
        self,
        layer: int,
        chunk: _Chunk,
        query: torch.Tensor,
        out: torch.Tensor,
        scaling: float,
        window: int | None,
    ) -> None:
        kv_heads, head_dim = self._backend.kv_heads, self._backend.head_dim
        end = chunk.start + chunk.tokens
        heads_a_kv_head = query.shape[2]
        key, value = (
            part.view(kv_heads, 1, -1, head_dim)[:, :, :end].expand(-1, heads_a_kv_head, -1, -1)
            for part in self._backend.gather(layer, chunk.gathered)
        )
        mask = chunk.mask(window, query.dtype)
        rows = slice(chunk.first, chunk.first + chunk.tokens)
        attended = scaled_dot_product_attention(
            query[rows].permute(1, 2, 0, 3), key, value, attn_mask=mask, is_causal=mask is None, scale=scaling
        )
        out[rows] = attended.permute(2, 0, 1, 3)


def _minus_infinity(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
