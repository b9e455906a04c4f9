"""Attention over KV blocks by flash-attention kernels, for CUDA.

Knows three libraries' calls, what each asks of a block and of a GPU, and the tables that all of them read. Does not
know models. Written after the libraries' sources; **no GPU has run this yet**. What can be is tested on a CPU, with a
plain kernel in the place of theirs: tables, writing, padding, the choice.

Blocks are token by token, [block_size, kv_heads, head_dim]. A step's sequences lie packed behind one another and one
call a layer serves them all, prompts and decodes alike; a block table and the lengths say where each one's keys are.

| library | GPUs | block | how it is told the lengths |
|---|---|---|---|
| flash-attn-4 (CuTe DSL) | 9.0, 10.x, 11.x | any | `seqused_k` with `page_table`, and then no `cu_seqlens_k` |
| flash-attn 2 | 8.0 and above | a multiple of 256 | `cu_seqlens_k` with `block_table` |
| torch's own `varlen_attn` | 8.0 and above | a multiple of 256 | `seqused_k` with `block_table` |

The first of these that is installed and knows the GPU is taken. flash-attn-4 has no paged KV on 8.x and 12.x. All ask
for 16-bit numbers and heads of at most 256 values, a multiple of 8; anything else is the reference's.
"""

import importlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from typing import Any

import numpy as np
import torch

from kvcache.storage import KVStorage
from workers.attention.backend import SequenceSpan
from workers.devices import Placement

__all__ = [
    "FlashAttention",
    "FlashAttentionKind",
    "FlashCall",
    "FlashKernel",
    "FlashLibrary",
    "FlashTables",
    "choose_flash",
    "flash_for",
    "installed_flash",
    "pack_tables",
]

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


@dataclass(frozen=True, slots=True)
class FlashCall:
    """What a kernel is given in one layer; the tables on the device."""

    query: torch.Tensor
    """[tokens, heads, head_dim]"""
    keys: torch.Tensor
    """[blocks, block_size, kv_heads, head_dim], the last dimension contiguous."""
    values: torch.Tensor
    query_ends: torch.Tensor
    key_lengths: torch.Tensor
    key_ends: torch.Tensor
    block_table: torch.Tensor
    longest_query: int
    longest_key: int
    scaling: float
    window: int | None

    @property
    def left(self) -> int:
        """Tokens before itself that a token sees; −1 for all, as flash-attn 2 and torch say it."""
        return -1 if self.window is None else self.window - 1


FlashKernel = Callable[[FlashCall], torch.Tensor]


@dataclass(frozen=True, slots=True)
class FlashLibrary:
    name: str
    module: str
    """What must be importable."""
    block_size: int
    majors: frozenset[int]
    """Compute capabilities whose paged KV it knows, by their first number."""


_FLASH_4 = FlashLibrary("flash-attn-4", "flash_attn.cute", 128, frozenset({9, 10, 11}))
_FLASH_2 = FlashLibrary("flash-attn 2", "flash_attn.flash_attn_interface", 256, frozenset({8, 9, 10, 12}))
_TORCH = FlashLibrary("torch's varlen_attn", "torch.nn.attention.varlen", 256, frozenset({8, 9, 10, 12}))
_LIBRARIES = (_FLASH_4, _FLASH_2, _TORCH)


def installed_flash() -> frozenset[str]:
    """Names of the libraries that can be imported here."""
    return frozenset(library.name for library in _LIBRARIES if _importable(library.module))


def choose_flash(capability: tuple[int, int], installed: Collection[str], dtype: torch.dtype) -> FlashLibrary | str:
    """The library that serves a GPU of this compute capability; or why there is none."""
    if dtype not in (torch.float16, torch.bfloat16):
        return f"flash-attention computes in 16 bits, not in {str(dtype).removeprefix('torch.')}"
    for library in _LIBRARIES:
        if library.name in installed and capability[0] in library.majors:
            return library
    return f"no flash-attention library here knows GPUs of compute capability {capability[0]}.{capability[1]}"


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
        return FlashAttention(storage, self.kernel or _KERNELS[self.library.name]())


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


# --- the libraries' calls ---------------------------------------------------------------------------------------------


def _flash_4() -> FlashKernel:
    attend: Any = importlib.import_module("flash_attn.cute").flash_attn_varlen_func

    def kernel(call: FlashCall) -> torch.Tensor:
        out = attend(
            call.query,
            call.keys,
            call.values,
            cu_seqlens_q=call.query_ends,
            seqused_k=call.key_lengths,
            page_table=call.block_table,
            softmax_scale=call.scaling,
            causal=True,
            # None is no bound here.
            window_size=(None, None) if call.window is None else (call.left, 0),
        )
        return _first(out)

    return kernel


def _flash_2() -> FlashKernel:
    attend: Any = importlib.import_module("flash_attn.flash_attn_interface").flash_attn_varlen_func

    def kernel(call: FlashCall) -> torch.Tensor:
        out = attend(
            call.query,
            call.keys,
            call.values,
            cu_seqlens_q=call.query_ends,
            cu_seqlens_k=call.key_ends,
            max_seqlen_q=call.longest_query,
            max_seqlen_k=call.longest_key,
            softmax_scale=call.scaling,
            causal=True,
            window_size=(call.left, -1 if call.window is None else 0),
            block_table=call.block_table,
        )
        return _first(out)

    return kernel


def _torch_varlen() -> FlashKernel:
    attend: Any = importlib.import_module("torch.nn.attention.varlen").varlen_attn

    def kernel(call: FlashCall) -> torch.Tensor:
        out = attend(
            call.query,
            call.keys,
            call.values,
            call.query_ends,
            None,
            call.longest_query,
            call.longest_key,
            scale=call.scaling,
            window_size=(call.left, 0),  # 0 to the right is what makes it causal
            enable_gqa=True,
            seqused_k=call.key_lengths,
            block_table=call.block_table,
        )
        return _first(out)

    return kernel


_KERNELS: dict[str, Callable[[], FlashKernel]] = {
    _FLASH_4.name: _flash_4,
    _FLASH_2.name: _flash_2,
    _TORCH.name: _torch_varlen,
}


def _first(out: Any) -> torch.Tensor:
    """Some versions return the logarithms of the sums beside it."""
    result: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return result


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
