"""The manager against a naive model, in any order of calls: no block lost, none held twice, sums exact, and whatever is
found or swapped in is what its name and its request say.

The model keeps for each block what was last written into it, as the engine would write it: the tokens themselves.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from kvcache.manager import KVCacheManager
from kvcache.partitions import Part
from kvcache.swap_plan import BlockCopy, Direction

BLOCKS = 24
PLACES = 10
BLOCK_SIZE = 4
PARTS = {0: Part(4, 10), 1: Part(6, BLOCKS), 3: Part(0, 16)}
lengths = st.integers(1, BLOCKS * BLOCK_SIZE + 8)


def blocks_for(count: int) -> int:
    return (count + BLOCK_SIZE - 1) // BLOCK_SIZE


@dataclass
class Request:
    owner_class: int
    text: str
    """Its tokens, each a letter."""
    computed: int = 0
    names: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name()

    def name(self) -> None:
        """Stands for a hash of all tokens up to the block's end."""
        for end in range((len(self.names) + 1) * BLOCK_SIZE, len(self.text) + 1, BLOCK_SIZE):
            self.names.append(int.from_bytes(self.text[:end].encode()))


class KVCacheMachine(RuleBasedStateMachine):
    rows = Bundle("rows")
    swapped_rows = Bundle("swapped_rows")

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVCacheManager(BLOCKS, BLOCK_SIZE, parts=PARTS, following=[0], swap_places=PLACES)
        self.running: dict[int, Request] = {}
        self.swapped: dict[int, Request] = {}
        self.memory = [""] * BLOCKS
        """What was last written into each block."""
        self.pool = [""] * PLACES
        self.next_row = 0
        self.now = 0.0

    # --- what the engine would do --------------------------------------------------------------------------------

    def copy(self, copy: BlockCopy) -> None:
        for block, place in zip(copy.blocks, copy.places, strict=True):
            if copy.direction is Direction.OUT:
                self.pool[place] = self.memory[block]
            else:
                self.memory[block] = self.pool[place]

    def compute(self, row: int, tokens: int) -> None:
        request = self.running[row]
        for position in range(request.computed, tokens):
            block = self.kv.table(row)[position // BLOCK_SIZE]
            self.memory[block] = self.memory[block][: position % BLOCK_SIZE] + request.text[position]
        request.computed = tokens
        self.kv.computed(row, tokens)

    def start(self, row: int, request: Request, predicted: int) -> bool:
        kv, tokens = self.kv, len(request.text)
        free, charged = kv.free_blocks, kv.used_blocks(request.owner_class)
        arguments: dict[str, Any] = {"predicted_tokens": predicted, "names": request.names}
        arguments["owner_class"] = request.owner_class
        fits = kv.fits(row, tokens, **arguments)
        allocation = kv.allocate(row, tokens, **arguments)
        assert (allocation is not None) == fits
        if allocation is None:
            assert kv.free_blocks == free
            growth = blocks_for(max(tokens, predicted)) - blocks_for(tokens)
            part = PARTS.get(request.owner_class, Part(0, BLOCKS))
            promised = kv.reserved_blocks
            if charged + promised + blocks_for(tokens) + growth <= part.reserve:
                assert growth + blocks_for(tokens) > free, "a class within its reserve was refused what is free"
            return False
        assert allocation.blocks == blocks_for(tokens)
        assert allocation.cached_tokens < tokens, "one token at least is to be computed"
        if allocation.swap_in is not None:
            assert allocation.swap_in.direction is Direction.IN
            self.copy(allocation.swap_in)
        request.computed = allocation.cached_tokens
        self.running[row] = request
        return True

    # --- what may happen -----------------------------------------------------------------------------------------

    @rule(
        target=rows,
        head=st.integers(0, 40),
        tail=st.text("xyz", min_size=1, max_size=30),
        growth=st.integers(0, 30),
        owner_class=st.integers(0, 3),
    )
    def allocate(self, head: int, tail: str, growth: int, owner_class: int) -> object:
        row, self.next_row = self.next_row, self.next_row + 1
        request = Request(owner_class, "abcdefgh" * (head // 8) + tail)
        return row if self.start(row, request, len(request.text) + growth) else multiple()

    @rule(row=rows, share=st.floats(0, 1))
    def prefill(self, row: int, share: float) -> None:
        request = self.running.get(row)
        if request is not None:
            self.compute(row, request.computed + int(share * (len(request.text) - request.computed)))

    @rule(row=rows, tokens=st.text("xyz", min_size=1, max_size=9))
    def grow(self, row: int, tokens: str) -> None:
        request = self.running.get(row)
        if request is None:
            return
        before, free = list(self.kv.table(row)), self.kv.free_blocks
        length = len(request.text) + len(tokens)
        grown = self.kv.grow(row, length)
        assert grown == (max(0, blocks_for(length) - len(before)) <= free)
        assert list(self.kv.table(row))[: len(before)] == before, "growth moved what was there"
        if grown:
            request.text += tokens
            request.name()

    @rule(row=consumes(rows))
    def release(self, row: int) -> None:
        request = self.running.pop(row, None)
        if request is not None:
            assert self.kv.release(row) == blocks_for(len(request.text))

    @rule(target=swapped_rows, row=rows)
    def swap_out(self, row: int) -> object:
        request = self.running.get(row)
        if request is None:
            return multiple()
        copied, places = self.kv.blocks_to_swap(row, request.computed), self.kv.free_places
        copy = self.kv.swap_out(row, request.computed)
        assert (copy is not None) == (0 < copied <= places)
        if copy is None:
            assert self.kv.holds(row)
            return multiple()
        assert len(copy.blocks) == copied
        self.copy(copy)
        self.swapped[row] = self.running.pop(row)
        return row

    @rule(target=rows, row=consumes(swapped_rows), growth=st.integers(0, 20))
    def bring_back(self, row: int, growth: int) -> object:
        request = self.swapped.pop(row, None)
        if request is None:
            return multiple()
        if self.start(row, request, len(request.text) + growth):
            return row
        self.kv.forget_swapped(row)
        return multiple()

    @rule(row=consumes(swapped_rows))
    def cancel_swapped(self, row: int) -> None:
        if self.swapped.pop(row, None) is not None:
            self.kv.forget_swapped(row)

    @rule(row=rows, place=st.integers(0, 5))
    def fault(self, row: int, place: int) -> None:
        """A block turns out to hold nonsense: all that hold it end."""
        if row not in self.running:
            return
        blocks = self.kv.table(row)[place : place + 1]
        for block in blocks:
            self.memory[block] = "?"
        holders = {other for other in self.running if not set(blocks).isdisjoint(self.kv.table(other))}
        assert set(self.kv.distrust(blocks)) == holders
        for other in holders:
            del self.running[other]
            self.kv.release(other)

    @rule(seconds=st.floats(0, 100))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.kv.tick(self.now)

    # --- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self) -> None:
        self.kv.check_integrity()
        held = {block for row in self.running for block in self.kv.table(row)}
        assert self.kv.free_blocks == BLOCKS - len(held)
        assert sum(self.kv.used_blocks(owner) for owner in range(4)) == len(held)
        for row, request in self.running.items():
            assert len(self.kv.table(row)) == blocks_for(len(request.text))

    @invariant()
    def what_is_computed_is_what_the_blocks_contain(self) -> None:
        for row, request in self.running.items():
            content = "".join(self.memory[block][:BLOCK_SIZE].ljust(BLOCK_SIZE, "?") for block in self.kv.table(row))
            assert content[: request.computed] == request.text[: request.computed], f"row {row} has others' KV"


KVCacheMachine.TestCase.settings = settings(stateful_step_count=50)
TestKVCache = KVCacheMachine.TestCase
