"""The pool of KV blocks: which are free, in which order they are taken, how many hold each.

Knows block numbers and reference counts. Does not know requests, classes, tokens or memory: a block is the number
of a place in `kvcache.storage`.

Algorithm: a free list in least-recently-used order, doubly linked through two arrays, so that taking the oldest,
giving back to the end and taking *one given* block out of the middle are all O(1). The last is what a prefix cache
needs (a hit on a freed block) and what a run needs (the block right behind one's own). vLLM's
`FreeKVCacheBlockQueue` is the same idea on objects; arrays need no object a block.

Drawback: order of use and order in memory pull apart. The pool therefore returns what it takes in ascending order:
whatever lies together among the oldest blocks becomes a run, and the order of use is not touched by it.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["BlockPool", "BlockPoolStatistics"]


@dataclass(frozen=True, slots=True)
class BlockPoolStatistics:
    blocks: int
    free: int
    free_lowest: int
    """The fewest free blocks since the start."""
    taken: int
    """Blocks handed out since the start."""
    taken_in_run: int
    """Those of them whose predecessor in the same table is the block right before them in memory."""


class BlockPool:
    """Blocks `0 … num_blocks − 1`, each free or held by one or more holders."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a block pool needs at least one block, got {num_blocks=}")
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        # A ring through a sentinel, which is the item behind the last block: its next is the least recently used
        # free block, its previous the most recently freed. A held block's links mean nothing.
        self._sentinel = num_blocks
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]
        self._free = num_blocks
        self._free_lowest = num_blocks
        self._taken = 0
        self._taken_in_run = 0

    @property
    def free_blocks(self) -> int:
        return self._free

    def holders(self, block: int) -> int:
        """How many hold the block; 0 is free."""
        return self._holders[block]

    def allocate(self, count: int, behind: int | None = None, keep: Container[int] = ()) -> list[int] | None:
        """Take `count` free blocks, each held once; None, and nothing is taken, if fewer are free.

        With `behind`, the blocks right behind that one come first as far as they are free, so that a table that
        grows stays a run; but none of `keep`, whose content is worth more than a run. The rest are the least recently
        used, in ascending order.
        """
        assert count >= 0, f"{count=}"
        if count > self._free:
            return None
        run: list[int] = []
        if behind is not None:
            block = behind + 1
            while len(run) < count and block < self.num_blocks and self._holders[block] == 0 and block not in keep:
                self._hold_free(block)
                run.append(block)
                block += 1
        oldest: list[int] = []
        for _ in range(count - len(run)):
            block = self._next[self._sentinel]
            self._hold_free(block)
            oldest.append(block)
        oldest.sort()
        blocks = run + oldest
        self._taken += count
        for before, block in zip([behind, *blocks], blocks, strict=False):
            self._taken_in_run += before is not None and block == before + 1
        return blocks

    def share(self, block: int) -> None:
        """Hold a block once more. A free block is taken out of the free list, with what it still contains."""
        if self._holders[block] == 0:
            self._hold_free(block)
        else:
            self._holders[block] += 1

    def free(self, blocks: Iterable[int], keep: Container[int] | None = None) -> None:
        """Let go of each block once. One that nobody holds any more is free, as the most recently used so far.

        So the first of `blocks` is taken again before the last. With `keep`, only those of it are put there: what the
        others contain is of no use to anybody, and they are taken again first of all.
        """
        sentinel = self._sentinel
        for block in blocks:
            holders = self._holders[block]
            assert holders > 0, f"block {block} is freed and nobody holds it"
            self._holders[block] = holders - 1
            if holders > 1:
                continue
            before = self._previous[sentinel] if keep is None or block in keep else sentinel
            after = self._next[before]
            self._next[before] = self._previous[after] = block
            self._previous[block] = before
            self._next[block] = after
            self._free += 1

    def statistics(self) -> BlockPoolStatistics:
        return BlockPoolStatistics(
            blocks=self.num_blocks,
            free=self._free,
            free_lowest=self._free_lowest,
            taken=self._taken,
            taken_in_run=self._taken_in_run,
        )

    def check_integrity(self, holders: Mapping[int, int]) -> None:
        """Assert that exactly the blocks of `holders` are held, as often as it says, and all others are free, once.

        Linear in the pool.
        """
        seen: set[int] = set()
        block, previous = self._next[self._sentinel], self._sentinel
        while block != self._sentinel:
            assert block not in seen, f"block {block} is in the free list twice"
            assert self._previous[block] == previous, f"block {block}: the free list's links disagree"
            assert self._holders[block] == 0, f"block {block} is free and held {self._holders[block]} times"
            seen.add(block)
            block, previous = self._next[block], block
        assert self._previous[self._sentinel] == previous, "the free list's end is not its last block"
        assert len(seen) == self._free, f"{len(seen)} blocks in the free list, {self._free} counted"
        for block, counted in enumerate(self._holders):
            expected = holders.get(block, 0)
            assert counted == expected, f"block {block} is held {counted} times, its owners say {expected}"
            assert (block in seen) == (counted == 0), f"block {block} is lost: neither free nor held"

    def _hold_free(self, block: int) -> None:
        """Unlink a free block and hold it once."""
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._holders[block] = 1
        self._free -= 1
        if self._free < self._free_lowest:
            self._free_lowest = self._free
