"""Names as small integers, with the memory bounded by the names in use.

Knows names and how often each is held. Does not know what a name stands for: one interner holds tenants, another
holds flows (whose names carry their tenant's number, so that two tenants' flows never meet). A name is anything that
can be a key.
"""

from array import array
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Interner"]

N = TypeVar("N", bound=Hashable)


class Interner(Generic[N]):
    """A name ↔ number table with reference counts. A number is recycled once nobody holds it.

    Whoever keeps a number beyond the call that gave it holds it (`hold`, `drop`): a discipline that remembers a
    tenant's debt holds the tenant, so the number can't come to mean somebody else meanwhile.
    """

    def __init__(self) -> None:
        self._numbers: dict[N, int] = {}
        self._names: list[N | None] = []
        self._holders: array[int] = array("I")
        self._free: array[int] = array("I")

    def intern(self, name: N) -> int:
        """The number of `name`, held once more."""
        number = self._numbers.get(name)
        if number is not None:
            self._holders[number] += 1
            return number
        if self._free:
            number = self._free.pop()
            self._names[number] = name
            self._holders[number] = 1
        else:
            number = len(self._names)
            self._names.append(name)
            self._holders.append(1)
        self._numbers[name] = number
        return number

    def hold(self, number: int) -> None:
        """Hold a number that somebody holds already."""
        assert self._holders[number] > 0, f"{number} means nothing now"
        self._holders[number] += 1

    def drop(self, number: int) -> None:
        """Let go of a number once; the last one frees it."""
        holders = self._holders[number]
        assert holders > 0, f"{number} is held by nobody"
        self._holders[number] = holders - 1
        if holders == 1:
            name = self._names[number]
            assert name is not None
            self._names[number] = None
            del self._numbers[name]
            self._free.append(number)

    def number(self, name: N) -> int | None:
        """The number of `name` if it is in use; holds nothing."""
        return self._numbers.get(name)

    def name(self, number: int) -> N:
        name = self._names[number]
        assert name is not None, f"{number} means nothing now"
        return name

    def holders(self, number: int) -> int:
        return self._holders[number]

    def __len__(self) -> int:
        """Names in use."""
        return len(self._numbers)

    def check_integrity(self) -> None:
        """Assert that every number is either named and held or free, exactly once. Linear."""
        free = set(self._free)
        assert len(free) == len(self._free), "a number is free twice"
        for number, name in enumerate(self._names):
            if name is None:
                assert number in free, f"{number} is neither named nor free"
                assert self._holders[number] == 0, f"{number} is held without a name"
            else:
                assert number not in free, f"{number} is named {name!r} and free"
                assert self._holders[number] > 0, f"{name!r} is kept and held by nobody"
                assert self._numbers[name] == number, f"{name!r} is listed under another number"
        assert len(self._numbers) + len(free) == len(self._names), "names and free numbers don't add up"
