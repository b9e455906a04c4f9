"""Which class a block is charged to, also where several hold it.

Knows block numbers and classes as numbers, the smaller the more urgent. Does not know tables or the pool.

**Rule.** A block is charged once: to the most urgent class that holds it. So the charges of all classes add up to the
blocks in use, and a reserve means memory. Charging it to every holder would count memory that isn't there, and make a
class a borrower by a system prompt that costs nothing; splitting it needs fractions; charging the first holder makes
the books depend on who came first, and moves the charge when he leaves. With this rule they depend on who holds the
block now and nothing else. The urgent class would need the block anyway; for the others it is free as long as it does,
and theirs again when it doesn't.

Drawback: when the most urgent holder leaves, the next one's charge jumps, possibly past its ceiling. A ceiling is
looked at on admission only.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

__all__ = ["Ownership"]


class Ownership:
    def __init__(self) -> None:
        self._only: dict[int, int] = {}
        """Blocks that one table holds: its class."""
        self._shared: dict[int, list[int]] = {}
        """Blocks that more tables hold: their classes, sorted."""
        self._charged: Counter[int] = Counter()

    def charged(self, owner_class: int) -> int:
        """Blocks charged to a class."""
        return self._charged[owner_class]

    def by_class(self) -> dict[int, int]:
        return {owner: blocks for owner, blocks in self._charged.items() if blocks}

    def hold(self, blocks: Iterable[int], owner_class: int) -> None:
        """A table of this class holds the blocks now."""
        for block in blocks:
            only = self._only.get(block)
            if only is not None:
                del self._only[block]
                self._shared[block] = sorted((only, owner_class))
                self._move(only, min(only, owner_class))
            elif block in self._shared:
                classes = self._shared[block]
                before = classes[0]
                classes.append(owner_class)
                classes.sort()
                self._move(before, classes[0])
            else:
                self._only[block] = owner_class
                self._charged[owner_class] += 1

    def let_go(self, blocks: Iterable[int], owner_class: int) -> None:
        """A table of this class that held the blocks doesn't any more."""
        for block in blocks:
            if block in self._only:
                assert self._only.pop(block) == owner_class, f"block {block} was never held by class {owner_class}"
                self._charged[owner_class] -= 1
                continue
            classes = self._shared[block]
            before = classes[0]
            classes.remove(owner_class)
            self._move(before, classes[0])
            if len(classes) == 1:
                del self._shared[block]
                self._only[block] = classes[0]

    def _move(self, before: int, after: int) -> None:
        if before != after:
            self._charged[before] -= 1
            self._charged[after] += 1

    def check_integrity(self, holders: Mapping[int, list[int]]) -> None:
        """Assert that exactly the blocks of `holders` are held, by tables of these classes."""
        held = {block: [only] for block, only in self._only.items()} | self._shared
        assert held == {block: sorted(classes) for block, classes in holders.items()}, "a block's holders are wrong"
        charged = Counter(min(classes) for classes in holders.values())
        assert charged == +self._charged, f"{self._charged} blocks charged, the tables say {charged}"
