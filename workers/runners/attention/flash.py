"""Attention over KV blocks by flash-attention kernels, for CUDA.

Knows the tables that all the libraries read, how they get to a device, and where new KV is written. Does not know
models, nor one library from another (`workers.runners.attention.flash_libraries`). **No GPU has run this yet**; what
can be is tested on a CPU, with a plain kernel in the place of the libraries': tables, writing, padding, the choice.

Blocks are token by token, [block_size, kv_heads, head_dim]. A step's sequences lie packed behind one another and one
call a layer serves them all, prompts and decodes alike; a block table and the lengths say where each one's keys are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from kvcache.storage import KVStorage
from workers.models.devices import Placement
from workers.runners.attention.backend import SequenceSpan
from workers.runners.attention.flash_libraries import (
    FlashCall,
    FlashKernel,
    FlashLibrary,
    choose_flash,
    installed_flash,
    library_kernel,
)

__all__ = ["FlashAttention", "FlashAttentionKind", "FlashStep", "FlashTables", "flash_for", "pack_tables"]

_MAX_HEAD_DIM = 256
_HEAD_DIM_UNIT = 8

_Int32 = np.ndarray[Any, np.dtype[np.int32]]
_Int64 = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class FlashTables:
    """A step's sequences as the kernels read them, on the host."""

    query_ends: _Int32
    """[sequences + 1]: where each one's new tokens begin, and where the last one's end."""
    key_lengths: _Int32
    """[sequences]: known tokens, the new ones included."""
    key_ends: _Int32
    """[sequences + 1]: the same, summed."""
    block_table: _Int32
    """[sequences, most blocks of any]; 0 behind a sequence's own."""
    written_block: _Int64
    """[tokens]: the block that each new token's KV goes to."""
    written_place: _Int64
    """[tokens]: its place in the block."""
    longest_query: int
    longest_key: int


def pack_tables(spans: Sequence[SequenceSpan], block_size: int) -> FlashTables:
    """The tables of these sequences."""
    starts = np.array([span.start for span in spans], np.int64)
    tokens = np.array([span.tokens for span in spans], np.int64)
    assert (tokens > 0).all(), "an empty span"
    ends = starts + tokens
    used = -(-ends // block_size)
    assert all(len(span.block_ids) >= n for span, n in zip(spans, used, strict=True)), "blocks don't cover a span"
    table = np.zeros((len(spans), int(used.max())), np.int32)
    filled = np.arange(table.shape[1]) < used[:, None]
    table[filled] = np.fromiter(
        chain.from_iterable(span.block_ids[:n] for span, n in zip(spans, used.tolist(), strict=True)),
        np.int32,
        int(used.sum()),
    )
    query_ends = _ends(tokens)
    of = np.repeat(np.arange(len(spans)), tokens)
    positions = np.arange(len(of)) - query_ends[of] + starts[of]
    return FlashTables(
        query_ends=query_ends,
        key_lengths=ends.astype(np.int32),
        key_ends=_ends(ends),
        block_table=table,
        written_block=table[of, positions // block_size].astype(np.int64),
        written_place=positions % block_size,
        longest_query=int(tokens.max()),
        longest_key=int(ends.max()),
    )


def _ends(lengths: _Int64) -> _Int32:
    ends = np.zeros(len(lengths) + 1, np.int32)
    lengths.cumsum(out=ends[1:], dtype=np.int32)
    return ends


def flash_for(placement: Placement) -> "FlashAttentionKind | str":
    """What serves this placement; or why nothing does."""
    if placement.device.type != "cuda":
        return "flash-attention needs a CUDA device"
    chosen = choose_flash(torch.cuda.get_device_capability(placement.device), installed_flash(), placement.dtype)
    return chosen if isinstance(chosen, str) else FlashAttentionKind(chosen)


@dataclass(frozen=True, slots=True)
class FlashAttentionKind:
    """An `AttentionKind`."""

    library: FlashLibrary
    kernel: FlashKernel | None = None
    """None: the library's own."""

    @property
    def name(self) -> str:
        return f"flash ({self.library.name})"

    @property
    def block_size(self) -> int:
        return self.library.block_size

    def block_shape(self, kv_heads: int, head_dim: int) -> tuple[int, ...]:
        return (self.block_size, kv_heads, head_dim)

    def refusal(self, heads: int, kv_heads: int, head_dim: int) -> str | None:
        if head_dim % _HEAD_DIM_UNIT or head_dim > _MAX_HEAD_DIM:
            return f"heads of {head_dim} values are not a multiple of {_HEAD_DIM_UNIT} up to {_MAX_HEAD_DIM}"
        return None

    def __call__(self, storage: KVStorage) -> "FlashAttention":
        return FlashAttention(storage, self.kernel or library_kernel(self.library))


class FlashAttention:
    """An `AttentionBackend`."""

    def __init__(self, storage: KVStorage, kernel: FlashKernel) -> None:
        self.block_size = storage.block_shape[0]
        self.storage = storage
        self.kernel = kernel
        self._device = storage.blocks.device

    def begin_step(self, spans: Sequence[SequenceSpan]) -> "FlashStep":
        return FlashStep(self, self._on_device(pack_tables(spans, self.block_size)))

    def static_decode(self, sequences: int, context_tokens: int) -> "FlashStep":
        """A step of so many decodes whose tensors stay where they are, to be recorded and filled by `copy_into`.

        It computes something finite as it is: every sequence is one token in block 0.
        """
        blocks = -(-context_tokens // self.block_size)
        with torch.device(self._device):
            tables = _DeviceTables(
                query_ends=torch.arange(sequences + 1, dtype=torch.int32),
                key_lengths=torch.ones(sequences, dtype=torch.int32),
                key_ends=torch.arange(sequences + 1, dtype=torch.int32),
                block_table=torch.zeros((sequences, blocks), dtype=torch.int32),
                written_block=torch.zeros(sequences, dtype=torch.long),
                written_place=torch.zeros(sequences, dtype=torch.long),
                longest_query=1,
                longest_key=context_tokens,
            )
        return FlashStep(self, tables)

    def _on_device(self, tables: FlashTables) -> "_DeviceTables":
        """Two copies, one a width of numbers: small copies cost their latency."""
        narrow = (tables.query_ends, tables.key_lengths, tables.key_ends, tables.block_table.reshape(-1))
        query_ends, key_lengths, key_ends, table = self._copied(narrow)
        written_block, written_place = self._copied((tables.written_block, tables.written_place))
        return _DeviceTables(
            query_ends,
            key_lengths,
            key_ends,
            table.view(tables.block_table.shape),
            written_block,
            written_place,
            tables.longest_query,
            tables.longest_key,
        )

    def _copied(self, arrays: Sequence[_Int32] | Sequence[_Int64]) -> tuple[torch.Tensor, ...]:
        together = torch.from_numpy(np.concatenate(arrays))
        if self._device.type == "cuda":
            # From pinned memory: an ordinary tensor's copy would wait for all that the device has to do. torch keeps
            # pinned memory, and gives it out again only when the copy is done.
            together = together.pin_memory()
        there = together.to(self._device, non_blocking=True)
        parts: tuple[torch.Tensor, ...] = torch.split(there, [len(array) for array in arrays])
        return parts


@dataclass(frozen=True, slots=True)
class _DeviceTables:
    """`FlashTables`, as tensors."""

    query_ends: torch.Tensor
    key_lengths: torch.Tensor
    key_ends: torch.Tensor
    block_table: torch.Tensor
    written_block: torch.Tensor
    written_place: torch.Tensor
    longest_query: int
    longest_key: int


class FlashStep:
    """An `AttentionStep`."""

    def __init__(self, backend: FlashAttention, tables: _DeviceTables) -> None:
        self._backend = backend
        self._tables = tables

    @property
    def only_decodes(self) -> bool:
        return self._tables.longest_query == 1

    def copy_into(self, static: "FlashStep") -> None:
        """Fill a step made by `static_decode` with this one of decodes; what it has too many repeats the first."""
        own, to = self._tables, static._tables
        count, blocks = own.block_table.shape
        to.block_table[:count, :blocks].copy_(own.block_table)
        for into, values in (
            (to.key_lengths, own.key_lengths),
            (to.written_block, own.written_block),
            (to.written_place, own.written_place),
        ):
            into[:count].copy_(values)
            into[count:].copy_(values[:1].expand(len(into) - count))
        to.block_table[count:].copy_(to.block_table[:1].expand(len(to.block_table) - count, -1))
        torch.cumsum(to.key_lengths, 0, dtype=torch.int32, out=to.key_ends[1:])

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        storage, tables = self._backend.storage, self._tables
        where = (tables.written_block, tables.written_place)
        storage.keys(layer).index_put_(where, key)
        storage.values(layer).index_put_(where, value)

    def attend(self, layer: int, query: torch.Tensor, *, scaling: float, window: int | None) -> torch.Tensor:
        storage, tables = self._backend.storage, self._tables
        call = FlashCall(
            query=query.contiguous(),
            keys=storage.keys(layer),
            values=storage.values(layer),
            query_ends=tables.query_ends,
            key_lengths=tables.key_lengths,
            key_ends=tables.key_ends,
            block_table=tables.block_table,
            longest_query=tables.longest_query,
            longest_key=tables.longest_key,
            scaling=scaling,
            window=window,
        )
        return self._backend.kernel(call).contiguous()
