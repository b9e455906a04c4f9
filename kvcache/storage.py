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

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from kvcache.memory_copy import MemoryCopier, Piece
from kvcache.swap_plan import BlockCopy, Direction, runs

__all__ = ["CopyTiming", "KVStorage", "KVStorageStatistics", "SwapSpace"]


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


@dataclass(frozen=True, slots=True)
class CopyTiming:
    direction: Direction
    blocks: int
    seconds: float
    row: int | None
    """Of the copy."""


class SwapSpace:
    """Room for blocks of a storage in the CPU's memory, and the copies between the two. The engine thread's.

    Blocks of a table seldom lie together, places do as a rule (they are taken in ascending order). On a CPU a piece is
    what lies together on both sides (`kvcache.memory_copy`). On CUDA a copy is cut where *places* are not consecutive,
    and a piece is one gather or scatter of whole blocks, or a plain copy where the blocks lie together too.

    On CUDA the memory is pinned and copies have a stream of their own, which waits for the last forward and which the
    next one waits for: a block may be overwritten as soon as it was copied out, and is read only when it was copied in.
    Scattered blocks go through a buffer on the device, so that what crosses the bus is one piece.
    """

    def __init__(self, storage: KVStorage, num_places: int, clock: Callable[[], float]) -> None:
        """`clock`: seconds, to time copies on a CPU with (a GPU has its own).

        Raises `torch.OutOfMemoryError`, `MemoryError` or `RuntimeError` if there is no memory for it."""
        self._clock = clock
        # As the widest integers: what is moved is bytes, and torch gathers bfloat16 several times more slowly.
        self._blocks = storage.blocks.flatten(1).view(torch.int64)
        self._cuda = storage.blocks.device.type == "cuda"
        shape = (num_places, self._blocks.shape[1])
        if self._cuda:
            self.places = torch.zeros(shape, dtype=self._blocks.dtype, pin_memory=True)
            self._stream = torch.cuda.Stream(self._blocks.device)  # type: ignore[no-untyped-call]  # torch has no types
            self._buffer = torch.empty(
                (min(num_places, _BUFFER_BLOCKS), shape[1]), dtype=self._blocks.dtype, device=self._blocks.device
            )
            self._copier = None
        else:
            self._copier = MemoryCopier(torch.get_num_threads())
            self.places = _zeros(shape, self._blocks.dtype, self._blocks.device)
        """[num_places, 8-byte words of a block]"""
        self._running: deque[tuple[BlockCopy, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._timings: list[CopyTiming] = []

    @property
    def block_bytes(self) -> int:
        return self._blocks.shape[1] * self._blocks.element_size()

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Do them in this order. On CUDA they have begun when this returns, and the next forward waits for them."""
        if not self._cuda:
            for copy in copies:
                started_s = self._clock()
                self._copy(copy)
                seconds = self._clock() - started_s
                self._timings.append(CopyTiming(copy.direction, len(copy.blocks), seconds, copy.row))
            return
        compute = torch.cuda.current_stream(self._blocks.device)
        self._stream.wait_stream(compute)
        with torch.cuda.stream(self._stream):
            for copy in copies:
                begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                begun.record(self._stream)
                self._copy(copy)
                done.record(self._stream)
                self._running.append((copy, begun, done))
        compute.wait_stream(self._stream)

    def take_timings(self) -> list[CopyTiming]:
        """What copies took that are done, since the last call."""
        while self._running and self._running[0][2].query():  # type: ignore[no-untyped-call]
            copy, begun, done = self._running.popleft()
            seconds = begun.elapsed_time(done) / 1000
            self._timings.append(CopyTiming(copy.direction, len(copy.blocks), seconds, copy.row))
        taken, self._timings = self._timings, []
        return taken

    def _copy(self, copy: BlockCopy) -> None:
        if self._copier is not None:
            self._copier.copy([*self._pieces(copy)])
            return
        for start, end in runs(copy.places):
            places = self.places[copy.places[start] : copy.places[start] + end - start]
            blocks = copy.blocks[start:end]
            if len([*runs(blocks)]) == 1:
                together = self._blocks[blocks[0] : blocks[0] + len(blocks)]
                into, out_of = (places, together) if copy.direction is Direction.OUT else (together, places)
                into.copy_(out_of, non_blocking=True)
            else:
                for piece in range(0, len(blocks), len(self._buffer)):
                    self._through_buffer(copy.direction, blocks[piece : piece + len(self._buffer)], places[piece:])

    def _pieces(self, copy: BlockCopy) -> Iterator[Piece]:
        """On a CPU: one for each stretch that lies together on both sides."""
        size, blocks, places = self.block_bytes, self._blocks.data_ptr(), self.places.data_ptr()
        for start, end in runs(copy.places):
            for begin, stop in runs(copy.blocks[start:end]):
                block = blocks + copy.blocks[start + begin] * size
                place = places + copy.places[start + begin] * size
                to, source = (place, block) if copy.direction is Direction.OUT else (block, place)
                yield Piece(to, source, (stop - begin) * size)

    def _through_buffer(self, direction: Direction, blocks: tuple[int, ...], places: torch.Tensor) -> None:
        """The stream's order keeps one piece from overwriting another's buffer."""
        # From pinned memory: an ordinary tensor's copy would wait for all that the device has to do.
        ids = torch.tensor(blocks).pin_memory().to(self._blocks.device, non_blocking=True)
        buffer, places = self._buffer[: len(blocks)], places[: len(blocks)]
        if direction is Direction.OUT:
            torch.index_select(self._blocks, 0, ids, out=buffer)
            places.copy_(buffer, non_blocking=True)
        else:
            buffer.copy_(places, non_blocking=True)
            self._blocks.index_copy_(0, ids, buffer)


_BUFFER_BLOCKS = 256


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
