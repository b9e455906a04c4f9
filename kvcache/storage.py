"""The tensor that holds the KV of all blocks: the only file of this package that knows torch.

Knows blocks, layers, and that a block of one layer has keys and values of one shape, which the attention backend
chose. Does not know what the dimensions of that shape mean, and not whose a block is (`kvcache.manager`).

Block-major: all layers of a block lie together. A step reads one layer of many blocks, so either order serves
attention (it gathers whole blocks of one layer, kilobytes at a time), but swapping moves all layers of a few blocks:
block-major, that is one long run a block, which was measured at 14.7 GB/s out and 9.0 in on a machine where a
layer-major pool gave 1.9, copied layer by layer and block by block.

The pool is allocated once and starts as zeros. What was never written and what a freed block still holds is read
too, behind the end of a sequence, where it meets the probability 0: it must be finite, for 0 × NaN is NaN. That is
what `scrub` is for. On a CPU the zeros are the operating system's: a page takes memory when it is first written, and
starting costs nothing, where filling 2 GiB took seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

__all__ = ["KVStorage", "KVStorageStatistics"]


@dataclass(frozen=True, slots=True)
class KVStorageStatistics:
    num_blocks: int
    block_bytes: int
    """Keys and values of one block, all layers."""
    total_bytes: int


class KVStorage:
    """Owned by the engine thread; attention backends read and write `blocks` through it."""

    def __init__(
        self,
        num_blocks: int,
        layers: int,
        block_shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`block_shape`: of the keys, and of the values, of one block in one layer; the attention backend's layout.

        Raises `torch.OutOfMemoryError` or `MemoryError` if the device doesn't have the memory.
        """
        if num_blocks < 1 or layers < 1:
            raise ValueError(f"a pool needs at least one block and one layer, got {num_blocks=}, {layers=}")
        self.num_blocks = num_blocks
        self.layers = layers
        self.block_shape = tuple(block_shape)
        self.blocks = _zeros((num_blocks, layers, 2, *self.block_shape), dtype, device)
        """[num_blocks, layers, 2 (keys, values), *block_shape], contiguous."""

    def keys(self, layer: int) -> torch.Tensor:
        """A view, [num_blocks, *block_shape]."""
        return self.blocks[:, layer, 0]

    def values(self, layer: int) -> torch.Tensor:
        """A view, [num_blocks, *block_shape]."""
        return self.blocks[:, layer, 1]

    def scrub(self, block_ids: Sequence[int]) -> list[int]:
        """Make what these blocks hold finite, after a step whose values were not; those of them that it was not in."""
        if not block_ids:
            return []
        ids = torch.tensor(block_ids, dtype=torch.long, device=self.blocks.device)
        content = self.blocks[ids]
        finite: list[bool] = content.isfinite().flatten(1).all(1).tolist()
        self.blocks[ids] = torch.nan_to_num(content, nan=0.0, posinf=0.0, neginf=0.0)
        return [block for block, whole in zip(block_ids, finite, strict=True) if not whole]

    def statistics(self) -> KVStorageStatistics:
        block_bytes = self.layers * 2 * prod(self.block_shape) * self.blocks.element_size()
        return KVStorageStatistics(self.num_blocks, block_bytes, self.num_blocks * block_bytes)


_ALIGNMENT = 64
"""Bytes: a cache line, and what torch's own allocator gives."""


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes its zeros; numpy's come from calloc, untouched.
    size_bytes = prod(shape) * dtype.itemsize
    raw = np.zeros(size_bytes + _ALIGNMENT, dtype=np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return torch.from_numpy(raw[first : first + size_bytes]).view(dtype).view(shape)
