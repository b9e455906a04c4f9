"""Who holds which KV blocks: admission, growth and release, by request.

Knows requests by their index row (an integer), token counts, and classes as numbers. Does not know what is in a
block (`kvcache.storage`), why a request is admitted or evicted (`scheduling`), or what a class is entitled to:
it records the owning class of every table, which is what partitions will be reckoned from.

Two figures decide an admission. *Free* blocks are nobody's. *Reserved* blocks are free ones promised to running
requests for the growth that was predicted for them. A newcomer must fit into free − reserved with its prompt *and*
its own predicted growth; a running request that grows takes any free block, from its own promise first. A promise
is soft: a prediction that was too low draws on what others were promised, and when nothing is free `grow` says so
and the scheduler evicts somebody. Admitting by the prompt alone would fill the pool with requests that then evict
each other; reserving max_tokens would leave most of the pool idle, for most requests end early.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kvcache.block_pool import BlockPool, BlockPoolStatistics
from kvcache.block_table import BlockTable

__all__ = ["Allocation", "KVCacheManager", "KVCacheStatistics"]


@dataclass(frozen=True, slots=True)
class Allocation:
    """What an admitted request got."""

    blocks: int
    cached_tokens: int
    """Tokens at the start whose KV is in the blocks already, by a prefix hit: computing starts behind them."""


@dataclass(frozen=True, slots=True)
class KVCacheStatistics:
    pool: BlockPoolStatistics
    block_size: int
    tables: int
    reserved: int
    """Blocks promised for predicted growth and not taken yet."""
    used_by_class: Mapping[int, int]
    """Blocks in the tables of each class; a block that two tables share counts in both."""
    allocations: int
    refused_allocations: int
    growths: int
    """Blocks taken by `grow`."""
    refused_growths: int
    grown_past_prediction: int
    """Blocks taken by `grow` beyond what was reserved for their table."""


class KVCacheManager:
    """One pool for all classes. Every method is O(blocks it takes or gives back), but for `check_integrity`."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """`block_size`: tokens a block, the attention backend's own property."""
        if block_size < 1:
            raise ValueError(f"a block holds at least one token, got {block_size=}")
        self.block_size = block_size
        self._pool = BlockPool(num_blocks)
        self._tables: dict[int, BlockTable] = {}
        self._reserved = 0
        self._used_by_class: Counter[int] = Counter()
        self._allocations = 0
        self._refused_allocations = 0
        self._growths = 0
        self._refused_growths = 0
        self._grown_past_prediction = 0

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def capacity_tokens(self) -> int:
        """The longest request the pool could hold, alone."""
        return self._pool.num_blocks * self.block_size

    @property
    def free_blocks(self) -> int:
        return self._pool.free_blocks

    @property
    def reserved_blocks(self) -> int:
        return self._reserved

    def used_blocks(self, owner_class: int) -> int:
        """Blocks in the tables of a class."""
        return self._used_by_class[owner_class]

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def can_admit(self, tokens: int) -> bool:
        """Whether a request that is expected to reach `tokens` tokens fits beside what is promised to others."""
        return self.blocks_for(tokens) <= self._pool.free_blocks - self._reserved

    def allocate(
        self, row: int, tokens: int, *, owner_class: int, predicted_tokens: int | None = None
    ) -> Allocation | None:
        """Blocks for `tokens` tokens of a request that has none, and a promise up to `predicted_tokens`.

        None, and nothing is taken, if `predicted_tokens` (`tokens` where none are given) don't fit.
        """
        assert row not in self._tables, f"row {row} has blocks already"
        assert tokens > 0, f"{tokens=}"
        expected = tokens if predicted_tokens is None else max(tokens, predicted_tokens)
        if not self.can_admit(expected):
            self._refused_allocations += 1
            return None
        needed = self.blocks_for(tokens)
        blocks = self._pool.allocate(needed)
        assert blocks is not None, f"{needed} blocks are admitted and {self._pool.free_blocks} free"
        table = BlockTable(owner_class, blocks, reserved=self.blocks_for(expected) - needed)
        self._tables[row] = table
        self._reserved += table.reserved
        self._used_by_class[owner_class] += needed
        self._allocations += 1
        return Allocation(blocks=needed, cached_tokens=0)

    def grow(self, row: int, tokens: int) -> bool:
        """Make the table hold `tokens` tokens; False, and nothing is taken, if the pool has too few free blocks."""
        table = self._tables[row]
        needed = table.missing(tokens, self.block_size)
        if needed == 0:
            return True
        blocks = self._pool.allocate(needed, behind=table.blocks[-1])
        if blocks is None:
            self._refused_growths += 1
            return False
        table.blocks.extend(blocks)
        promised = min(needed, table.reserved)
        table.reserved -= promised
        self._reserved -= promised
        self._used_by_class[table.owner_class] += needed
        self._growths += needed
        self._grown_past_prediction += needed - promised
        return True

    def release(self, row: int) -> int:
        """Give up a request's blocks and promise; the number of blocks it let go of."""
        table = self._tables.pop(row)
        # The last block first: it is taken again first, and the start of a prompt, which others may share, last.
        self._pool.free(reversed(table.blocks))
        self._reserved -= table.reserved
        self._used_by_class[table.owner_class] -= len(table.blocks)
        return len(table.blocks)

    def holds(self, row: int) -> bool:
        return row in self._tables

    def table(self, row: int) -> Sequence[int]:
        """The request's blocks in token order: a live view, to be read and not kept past the next call."""
        return self._tables[row].blocks

    def runs(self, row: int) -> int:
        """Pieces of consecutive blocks in the request's table."""
        return self._tables[row].runs()

    def statistics(self) -> KVCacheStatistics:
        return KVCacheStatistics(
            pool=self._pool.statistics(),
            block_size=self.block_size,
            tables=len(self._tables),
            reserved=self._reserved,
            used_by_class=MappingProxyType({owner: used for owner, used in self._used_by_class.items() if used}),
            allocations=self._allocations,
            refused_allocations=self._refused_allocations,
            growths=self._growths,
            refused_growths=self._refused_growths,
            grown_past_prediction=self._grown_past_prediction,
        )

    def check_integrity(self) -> None:
        """Assert that every block is free or held, exactly as often as tables name it, and that the sums agree.

        Linear in the pool.
        """
        holders: Counter[int] = Counter()
        used: Counter[int] = Counter()
        reserved = 0
        for row, table in self._tables.items():
            assert len(set(table.blocks)) == len(table.blocks), f"row {row} names a block twice"
            assert table.reserved >= 0, f"row {row}: {table.reserved=}"
            holders.update(table.blocks)
            used[table.owner_class] += len(table.blocks)
            reserved += table.reserved
        self._pool.check_integrity(holders)
        assert reserved == self._reserved, f"{self._reserved} blocks promised, the tables say {reserved}"
        assert +used == +self._used_by_class, f"{self._used_by_class} used by class, the tables say {used}"
