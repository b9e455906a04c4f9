"""The libraries that compute flash attention on a GPU: which there are, which serves, and how each is called.

Knows what each asks of a block, of numbers and of a GPU, and the arguments of its call. Does not know where the tables
come from (`workers.runners.attention.flash`). Written after the libraries' sources; **no GPU has run this yet**.

| library | GPUs | block | how it is told the lengths |
|---|---|---|---|
| flash-attn-4 (CuTe DSL) | 9.0, 10.x, 11.x | any | `seqused_k` with `page_table`, and then no `cu_seqlens_k` |
| flash-attn 2 | 8.0 and above | a multiple of 256 | `cu_seqlens_k` with `block_table` |
| torch's own `varlen_attn` | 8.0 and above | a multiple of 256 | `seqused_k` with `block_table` |

The first of these that is installed and knows the GPU is taken. flash-attn-4 has no paged KV on 8.x and 12.x. All ask
for 16-bit numbers and heads of at most 256 values, a multiple of 8; anything else is the reference's.
"""

import importlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

__all__ = ["FlashCall", "FlashKernel", "FlashLibrary", "choose_flash", "installed_flash", "library_kernel"]


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


def library_kernel(library: FlashLibrary) -> FlashKernel:
    """The library's own kernel. It is imported now."""
    return _KERNELS[library.name]()


def _first(out: Any) -> torch.Tensor:
    """Some versions return the logarithms of the sums beside it."""
    result: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return result


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
