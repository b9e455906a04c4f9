"""The swap pool of a worker: how large it is, how fast copies are on this machine, and who does them.

Knows memory, configuration and the storage. Does not know requests: `kvcache.manager` says what is copied where.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kvcache.sizing import CPU_SHARE
from kvcache.storage import CopyTiming, KVStorage, SwapSpace
from kvcache.swap_plan import BlockCopy, Direction
from scheduling.swap_rule import SwapRates
from workers.models.devices import free_memory_bytes

__all__ = ["BlockSwapper", "SwapPool", "make_swap_pool", "measure_swap"]

log = logging.getLogger(__name__)

_PROBE_BLOCKS = 64
_PROBES = 5


class BlockSwapper(Protocol):
    """Owned by the engine thread."""

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Do them in this order, before whatever the runner does next."""
        ...

    def take_timings(self) -> list[CopyTiming]:
        """What copies took that are done, since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class SwapPool:
    swapper: BlockSwapper
    places: int
    rates: SwapRates


def make_swap_pool(storage: KVStorage, swap_bytes: int | None, clock: Callable[[], float]) -> SwapPool | None:
    """As configured, or half of the KV pool; None where there is to be none, or no memory for it."""
    statistics = storage.statistics()
    if swap_bytes is None:
        swap_bytes = min(statistics.total_bytes // 2, int(free_memory_bytes(torch.device("cpu")) * CPU_SHARE.fraction))
    places = swap_bytes // statistics.block_bytes
    if places < 1:
        return None
    try:
        space = SwapSpace(storage, places, clock)
    except (MemoryError, RuntimeError) as error:
        log.warning("no memory for a swap pool of %d bytes (%s): suspended requests are recomputed", swap_bytes, error)
        return None
    return SwapPool(space, places, measure_swap(space, storage.num_blocks, places))


def measure_swap(space: SwapSpace, num_blocks: int, num_places: int) -> SwapRates:
    """Copy some scattered blocks out and in again, a few times; nothing may run meanwhile, no content changes."""
    count = max(1, min(_PROBE_BLOCKS, num_blocks // 2, num_places))
    blocks = tuple(range(0, 2 * count, 2)) if 2 * count <= num_blocks else tuple(range(count))
    places = tuple(range(count))
    seconds: dict[Direction, list[float]] = {Direction.OUT: [], Direction.IN: []}
    for _ in range(_PROBES):
        space.copy([BlockCopy(direction, blocks, places) for direction in Direction])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        for timing in space.take_timings():
            seconds[timing.direction].append(timing.seconds)
    out_s, in_s = (max(1e-9, sorted(seconds[direction])[_PROBES // 2]) for direction in Direction)
    size_bytes = count * space.block_bytes
    return SwapRates(space.block_bytes, size_bytes / out_s, size_bytes / in_s)
