"""The manager against a naive model, in any order of calls: no block lost, none held twice, sums exact."""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from kvcache.manager import KVCacheManager

BLOCKS = 24
BLOCK_SIZE = 4
tokens = st.integers(1, BLOCKS * BLOCK_SIZE + 8)


@dataclass
class ModelTable:
    owner_class: int
    blocks: int
    promised: int


def blocks_for(count: int) -> int:
    return (count + BLOCK_SIZE - 1) // BLOCK_SIZE


class KVCacheMachine(RuleBasedStateMachine):
    rows = Bundle("rows")

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVCacheManager(BLOCKS, BLOCK_SIZE)
        self.tables: dict[int, ModelTable] = {}
        self.next_row = 0

    @property
    def free(self) -> int:
        return BLOCKS - sum(table.blocks for table in self.tables.values())

    @property
    def promised(self) -> int:
        return sum(table.promised for table in self.tables.values())

    @rule(target=rows, tokens=tokens, growth=st.integers(0, 30), owner_class=st.integers(0, 3))
    def allocate(self, tokens: int, growth: int, owner_class: int) -> object:
        row, self.next_row = self.next_row, self.next_row + 1
        fits = blocks_for(tokens + growth) <= self.free - self.promised
        assert self.kv.can_admit(tokens + growth) == fits
        allocation = self.kv.allocate(row, tokens, owner_class=owner_class, predicted_tokens=tokens + growth)
        assert (allocation is not None) == fits
        if allocation is None:
            return multiple()
        assert allocation.blocks == blocks_for(tokens)
        self.tables[row] = ModelTable(owner_class, allocation.blocks, blocks_for(tokens + growth) - allocation.blocks)
        return row

    @rule(row=rows, tokens=tokens)
    def grow(self, row: int, tokens: int) -> None:
        table = self.tables[row]
        before = list(self.kv.table(row))
        needed = max(0, blocks_for(tokens) - table.blocks)
        grown = self.kv.grow(row, tokens)
        assert grown == (needed <= self.free)
        assert list(self.kv.table(row))[: len(before)] == before, "growth moved what was there"
        if grown:
            table.blocks += needed
            table.promised -= min(needed, table.promised)

    @rule(row=consumes(rows))
    def release(self, row: int) -> None:
        assert self.kv.release(row) == self.tables.pop(row).blocks

    @invariant()
    def nothing_is_lost(self) -> None:
        self.kv.check_integrity()
        assert self.kv.free_blocks == self.free
        assert self.kv.reserved_blocks == self.promised
        for owner_class in range(4):
            owned = [table.blocks for table in self.tables.values() if table.owner_class == owner_class]
            assert self.kv.used_blocks(owner_class) == sum(owned)
        for row, table in self.tables.items():
            assert len(self.kv.table(row)) == table.blocks


TestKVCache = KVCacheMachine.TestCase
