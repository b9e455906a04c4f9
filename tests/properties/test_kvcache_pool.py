"""The pool against a naive model: a list in order of release, and a count of holders."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcache.block_pool import BlockPool

BLOCKS = 12


class BlockPoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.free = list(range(BLOCKS))
        self.holders: Counter[int] = Counter()

    @rule(count=st.integers(0, BLOCKS + 1))
    def allocate(self, count: int) -> None:
        blocks = self.pool.allocate(count)
        if count > len(self.free):
            assert blocks is None
            return
        assert blocks == sorted(self.free[:count]), "not the least recently used"
        del self.free[:count]
        self.holders.update(blocks)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), count=st.integers(1, 4))
    def grow(self, data: st.DataObject, count: int) -> None:
        behind = data.draw(st.sampled_from(sorted(self.holders)))
        blocks = self.pool.allocate(count, behind=behind)
        if count > len(self.free):
            assert blocks is None
            return
        run: list[int] = []
        while len(run) < count and behind + 1 + len(run) in self.free:
            run.append(behind + 1 + len(run))
        self.free = [block for block in self.free if block not in run]
        rest = count - len(run)
        assert blocks == run + sorted(self.free[:rest])
        del self.free[:rest]
        self.holders.update(blocks)

    @rule(block=st.integers(0, BLOCKS - 1))
    def share(self, block: int) -> None:
        self.pool.share(block)
        self.holders[block] += 1
        if block in self.free:
            self.free.remove(block)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.holders)), unique=True))
        self.pool.free(blocks)
        for block in blocks:
            self.holders[block] -= 1
            if self.holders[block] == 0:
                del self.holders[block]
                self.free.append(block)

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity(self.holders)
        assert self.pool.free_blocks == len(self.free)


TestBlockPool = BlockPoolMachine.TestCase
