"""Who holds which KV blocks: admission, growth, release, swapping, by request.

Knows requests by their index row (an integer), token counts, the names of what blocks contain, and classes as numbers.
Does not know what is in a block (`kvcache.storage`), nor why a request is admitted or evicted (`scheduling`).

**Admission.** A newcomer must fit with its prompt now and with everybody's predicted growth at the worst moment to come
(`kvcache.growth`), beside what is held back: a watermark, so that growth finds a block at once, and what an urgent
class used lately of its reserve. A class that stays within its reserve has only to find its own blocks. A
running request that grows takes any free block; predictions can be too low, and when nothing is free `grow` says so and
the scheduler evicts somebody. Admitting by the prompt alone would fill the pool with requests that then evict each
other; reserving the longest answer would leave most of the pool idle, for most requests end early. Where nobody may be
evicted (`firm`), that is what is done.

**Reserves** (`kvcache.partitions`) are lent: who has more than its own gives way; of an urgent class's what it used
lately is held back (`kvcache.reserves`).

**Prefix cache.** Blocks that are computed get a name; a newcomer, and one that comes back after it was evicted, starts
behind the longest prefix that is still there (`kvcache.prefix_cache`). At least one token is always computed, for its
logits are what the next token is sampled from.

**Swap.** `swap_out` gives a place in a bounded pool (`kvcache.swap_places`) to each block that only this request holds,
and says what to copy; `allocate` brings it back. Copies are to be done in the order in which they were planned. Blocks
at the start that others share stay where they are and are found by their names; if they are gone by then, everything is
computed again.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kvcache.block_pool import BlockPool
from kvcache.block_table import BlockTable
from kvcache.growth import Growing, worst_need
from kvcache.ownership import Ownership
from kvcache.partitions import Part
from kvcache.prefix_cache import PrefixCache
from kvcache.reserves import Reserves
from kvcache.statistics import KVCacheStatistics
from kvcache.swap_places import SwappedTable, SwapPlaces
from kvcache.swap_plan import BlockCopy, Direction

__all__ = ["Allocation", "KVCacheManager"]

_WATERMARK = 0.01
"""Of the pool: kept free by admissions beyond a class's reserve."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What an admitted request got."""

    blocks: int
    cached_tokens: int
    """Tokens at the start whose KV is in the blocks already, or will be by `swap_in`: computing starts behind them."""
    found_tokens: int
    """Those of them that the prefix cache had."""
    swap_in: BlockCopy | None = None
    """To be done before anything is computed."""


class KVCacheManager:
    """One pool for all classes.

    Every method is O(blocks it takes or gives back), admission O(n log n) in the running requests as well.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        parts: Mapping[int, Part] | None = None,
        following: Collection[int] = (),
        lend: bool = True,
        firm: bool = False,
        swap_places: int = 0,
    ) -> None:
        """`block_size`: tokens a block, the attention backend's own property. `parts`: by class, in blocks; a class
        that is not named has no reserve and no ceiling. `following`: classes whose reserve follows their use. `lend`:
        who is within his reserve may have others evicted, so that it can be lent meanwhile. `firm`: nobody is ever
        evicted, and predictions are the longest that requests can get. `swap_places`: blocks that may be swapped out at
        the same time."""
        if block_size < 1:
            raise ValueError(f"a block holds at least one token, got {block_size=}")
        self.block_size = block_size
        self._pool = BlockPool(num_blocks)
        self._cache = PrefixCache()
        self._reserves = Reserves(num_blocks, parts or {}, following, lend=lend and not firm)
        self._firm = firm
        self._watermark = int(num_blocks * _WATERMARK)
        self._tables: dict[int, BlockTable] = {}
        self._owners = Ownership()
        self._places = SwapPlaces(swap_places)
        self._asked: Counter[int] = Counter()
        self._hit: Counter[int] = Counter()
        self._allocations = self._refused_allocations = 0
        self._growths = self._refused_growths = self._grown_past_prediction = 0
        self._swapped_out = self._swapped_in = self._swaps_lost = 0

    # --- figures --------------------------------------------------------------------------------------------------

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
        return sum(table.promised(self.block_size) for table in self._tables.values())

    def used_blocks(self, owner_class: int) -> int:
        """Blocks charged to a class."""
        return self._owners.charged(owner_class)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def cached_prefix(self, names: Sequence[int], tokens: int) -> int:
        """Of so many tokens, those that an allocation now would find computed."""
        return len(self._cache.longest(names, self._most_hits(tokens))) * self.block_size

    def is_borrower(self, owner_class: int, given_back: int = 0) -> bool:
        """Whether the class holds more than its reserve, were it to give back so many blocks."""
        return self._owners.charged(owner_class) - given_back > self._reserves.part(owner_class).reserve

    def within_reserve(self, tokens: int, owner_class: int) -> bool:
        """Whether the class would hold no more than its reserve with another request of so many tokens."""
        promised = sum(
            table.promised(self.block_size) for table in self._tables.values() if table.owner_class == owner_class
        )
        held = self._owners.charged(owner_class) + promised
        return held + self.blocks_for(tokens) <= self._reserves.part(owner_class).reserve

    def reserve_left(self, owner_class: int) -> int:
        """Blocks of the class's reserve that it does not hold."""
        return max(0, self._reserves.part(owner_class).reserve - self._owners.charged(owner_class))

    def holds(self, row: int) -> bool:
        return row in self._tables

    def table(self, row: int) -> Sequence[int]:
        """The request's blocks in token order: a live view, to be read and not kept past the next call."""
        return self._tables[row].blocks

    def runs(self, row: int) -> int:
        """Pieces of consecutive blocks in the request's table."""
        return self._tables[row].runs()

    def own_blocks(self, row: int) -> int:
        """Blocks that would be free if this request let go of its own: those that nobody else holds."""
        return sum(self._pool.holders(block) == 1 for block in self._tables[row].blocks)

    def set_following(self, owners: Collection[int]) -> None:
        """The reserve of these classes follows their use from now on; of those that stay, what they used is known."""
        self._reserves.set_following(owners)

    def tick(self, now: float) -> None:
        """Time passes: what the classes with a following reserve use now, and used lately."""
        self._reserves.tick(now, self._owners.charged)

    # --- admission ------------------------------------------------------------------------------------------------

    def fits(
        self,
        row: int,
        tokens: int,
        *,
        owner_class: int,
        predicted_tokens: int | None = None,
        names: Sequence[int] = (),
        without: Collection[int] = (),
        spare: int = 0,
    ) -> bool:
        """Whether `allocate` would succeed, were the rows `without` to release their blocks first.

        `spare`: blocks that must stay free beside it, unless its class is within its reserve.
        """
        expected = max(tokens, predicted_tokens or 0)
        hits = self._cache.longest(names, self._most_hits(tokens))
        gone = Counter(block for other in without for block in self._tables[other].blocks)
        held = self._pool.holders
        freed = sum(held(block) == count for block, count in gone.items())
        fresh = self.blocks_for(tokens) - sum(held(block) > gone[block] for block in hits)
        left = self._pool.free_blocks + freed - fresh
        if left < 0:
            return False
        blocks = self.blocks_for(tokens)
        growth = self.blocks_for(expected) - blocks
        charged = self._owners.charged(owner_class)
        others = {other: table for other, table in self._tables.items() if other not in without}
        own = [table for table in others.values() if table.owner_class == owner_class]
        part = self._reserves.part(owner_class)
        promised = sum(table.promised(self.block_size) for table in own)
        entitled = charged + promised + fresh + growth <= part.reserve
        if self._firm:
            left -= sum(table.promised(self.block_size) for table in others.values())
        if not others or entitled:
            return growth <= left
        newcomer = Growing(expected - tokens, tokens, blocks, blocks - len(hits))
        if charged and part.ceiling < self.num_blocks:
            need = worst_need([*map(self._growing, own), newcomer], self.block_size)
            if charged + fresh + need > part.ceiling:
                return False
        left -= self._watermark + max(spare, self._reserves.held_back(owner_class, self._owners.charged))
        if self._firm:
            return growth <= left
        return worst_need([*map(self._growing, others.values()), newcomer], self.block_size) <= left

    def allocate(
        self,
        row: int,
        tokens: int,
        *,
        owner_class: int,
        predicted_tokens: int | None = None,
        names: Sequence[int] = (),
        spare: int = 0,
    ) -> Allocation | None:
        """Blocks for `tokens` tokens of a request that has none, and a promise up to `predicted_tokens`.

        `names`: of the content of its whole blocks, as far as it is known; the list may grow, and is kept.
        None, and nothing is taken, if it doesn't fit (`fits`).
        """
        assert row not in self._tables, f"row {row} has blocks already"
        assert tokens > 0, f"{tokens=}"
        if not self.fits(
            row, tokens, owner_class=owner_class, predicted_tokens=predicted_tokens, names=names, spare=spare
        ):
            self._refused_allocations += 1
            return None
        hits = self._cache.longest(names, self._most_hits(tokens))
        for block in hits:
            self._pool.share(block)
        fresh = self._take(self.blocks_for(tokens) - len(hits), hits[-1] if hits else None)
        assert fresh is not None, f"it fits, and {self._pool.free_blocks} blocks are free"
        table = BlockTable(owner_class, tokens, max(tokens, predicted_tokens or 0), hits + fresh, names, len(hits))
        self._tables[row] = table
        self._owners.hold(table.blocks, owner_class)
        self._allocations += 1
        cached_tokens = len(hits) * self.block_size
        self._asked[owner_class] += tokens
        self._hit[owner_class] += cached_tokens
        swapped = self._places.take(row)
        if swapped is None:
            return Allocation(len(table.blocks), cached_tokens, cached_tokens)
        return self._bring_back(row, swapped, table, len(hits))

    def _bring_back(self, row: int, swapped: SwappedTable, table: BlockTable, hits: int) -> Allocation:
        cached_tokens = hits * self.block_size
        if hits < swapped.head or swapped.computed_tokens <= cached_tokens:
            self._swaps_lost += hits < swapped.head
            return Allocation(len(table.blocks), cached_tokens, cached_tokens)
        places = swapped.places[hits - swapped.head :]
        self._swapped_in += len(places)
        copy = BlockCopy(Direction.IN, tuple(table.blocks[hits : hits + len(places)]), places, row)
        return Allocation(len(table.blocks), swapped.computed_tokens, cached_tokens, copy)

    def grow(self, row: int, tokens: int) -> bool:
        """Make the table hold `tokens` tokens; False, and nothing is taken, if the pool has too few free blocks."""
        table = self._tables[row]
        needed = table.missing(tokens, self.block_size)
        if needed:
            blocks = self._take(needed, table.blocks[-1])
            if blocks is None:
                self._refused_growths += 1
                return False
            self._growths += needed
            self._grown_past_prediction += max(0, needed - table.promised(self.block_size))
            table.blocks.extend(blocks)
            self._owners.hold(blocks, table.owner_class)
        table.tokens = tokens
        return True

    def computed(self, row: int, tokens: int) -> None:
        """The KV of so many tokens is in the blocks now: whole blocks can be found by their names."""
        table = self._tables[row]
        whole = min(tokens // self.block_size, len(table.names))
        for place in range(table.named, whole):
            self._cache.add(table.names[place], table.blocks[place])
        table.named = max(table.named, whole)

    # --- the way out ----------------------------------------------------------------------------------------------

    def release(self, row: int) -> int:
        """Give up a request's blocks and promise; the number of blocks it let go of."""
        table = self._tables.pop(row)
        # The last block first: it is taken again first, and the start of a prompt, which others may share, last.
        self._pool.free(reversed(table.blocks), keep=self._cache)
        self._owners.let_go(table.blocks, table.owner_class)
        return len(table.blocks)

    def swap_out(self, row: int, computed_tokens: int) -> BlockCopy | None:
        """Give up a request's blocks as `release` does, and keep what they contain, to be copied now.

        None, and nothing has changed, if the swap pool is full.
        """
        table = self._tables[row]
        head = self._shared_head(table)
        blocks = tuple(table.blocks[head : self.blocks_for(computed_tokens)])
        places = self._places.put(row, computed_tokens, head, len(blocks))
        if places is None:
            return None
        self._swapped_out += len(blocks)
        self.release(row)
        return BlockCopy(Direction.OUT, blocks, places, row)

    def blocks_to_swap(self, row: int, computed_tokens: int) -> int:
        """Blocks that `swap_out` would copy. What is computed before them would be found again, if not for long."""
        table = self._tables[row]
        return max(0, self.blocks_for(computed_tokens) - self._shared_head(table))

    @property
    def free_places(self) -> int:
        return self._places.free

    def forget_swapped(self, row: int) -> None:
        """A request that may have been swapped out has ended."""
        self._places.take(row)

    def distrust(self, blocks: Collection[int]) -> list[int]:
        """What is in these blocks is not what their names say; the rows that hold any of them."""
        self._cache.forget(blocks)
        bad = set(blocks)
        return [row for row, table in self._tables.items() if not bad.isdisjoint(table.blocks)]

    # --- inside ---------------------------------------------------------------------------------------------------

    def _most_hits(self, tokens: int) -> int:
        return (tokens - 1) // self.block_size

    def _growing(self, table: BlockTable) -> Growing:
        left = max(1, table.expected_tokens - table.tokens)
        own = sum(self._pool.holders(block) == 1 for block in table.blocks[: table.named])
        return Growing(left, table.tokens, len(table.blocks), own + len(table.blocks) - table.named)

    def _shared_head(self, table: BlockTable) -> int:
        head = 0
        for block in table.blocks[: table.named]:
            if self._pool.holders(block) == 1 or block not in self._cache:
                break
            head += 1
        return head

    def _take(self, count: int, behind: int | None) -> list[int] | None:
        blocks = self._pool.allocate(count, behind=behind, keep=self._cache)
        if blocks:
            self._cache.forget(blocks)
        return blocks

    def statistics(self) -> KVCacheStatistics:
        return KVCacheStatistics(
            pool=self._pool.statistics(),
            block_size=self.block_size,
            tables=len(self._tables),
            reserved=self.reserved_blocks,
            used_by_class=MappingProxyType(self._owners.by_class()),
            allocations=self._allocations,
            refused_allocations=self._refused_allocations,
            growths=self._growths,
            refused_growths=self._refused_growths,
            grown_past_prediction=self._grown_past_prediction,
            cached=len(self._cache),
            asked_tokens_by_class=MappingProxyType(dict(self._asked)),
            hit_tokens_by_class=MappingProxyType(dict(self._hit)),
            swap_places=self._places.total,
            swapped=self._places.total - self._places.free,
            swapped_out=self._swapped_out,
            swapped_in=self._swapped_in,
            swaps_lost=self._swaps_lost,
        )

    def check_integrity(self) -> None:
        """Assert that every block is free or held, exactly as often as tables name it, charged to one class, and that
        the swap pool's places are those of swapped tables. Linear in the pool."""
        holders: dict[int, list[int]] = {}
        for row, table in self._tables.items():
            assert len(set(table.blocks)) == len(table.blocks), f"row {row} names a block twice"
            assert self.blocks_for(table.tokens) <= len(table.blocks), f"row {row} has too few blocks"
            assert table.named <= min(len(table.names), len(table.blocks)), f"row {row}: {table.named} blocks named"
            for block in table.blocks:
                holders.setdefault(block, []).append(table.owner_class)
        self._pool.check_integrity({block: len(classes) for block, classes in holders.items()})
        self._owners.check_integrity(holders)
        self._cache.check_integrity()
        self._places.check_integrity(self._tables)
