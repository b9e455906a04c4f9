"""Which of many keys has the most bytes, about: for whoever has to take from the largest.

Knows keys and sizes. Does not know what is taken. Pure and synchronous.

A heap that is put right when it is asked: a key stands in it under a size that it had, and stands anew only when it has
doubled since. So adding is a look into a dictionary nearly always, and the key that is named is at least half as large
as the largest. (The kernel's SFQ keeps its queues in lists by length for the same purpose, which sizes in bytes would
make many.)
"""

from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

__all__ = ["Longest"]

K = TypeVar("K")

_STALE_AT_LEAST = 64


class Longest(Generic[K]):
    def __init__(self) -> None:
        self._sizes: dict[K, int] = {}
        self._told: dict[K, int] = {}
        """The size under which a key stands in the heap."""
        self._heap: list[tuple[int, int, K]] = []
        """Negative sizes; a number breaks ties, the older first."""
        self._entries = 0

    def __len__(self) -> int:
        """Keys of any size."""
        return len(self._sizes)

    def size(self, key: K) -> int:
        return self._sizes.get(key, 0)

    def grow(self, key: K, size: int) -> None:
        now = self._sizes[key] = self._sizes.get(key, 0) + size
        if now > 2 * self._told.get(key, 0):
            self._stand(key, now)

    def shrink(self, key: K, size: int) -> None:
        left = self._sizes[key] - size
        assert left >= 0, f"{key} has {self._sizes[key]} bytes, {size} are taken"
        if left:
            self._sizes[key] = left
        else:
            del self._sizes[key], self._told[key]

    def longest(self) -> K:
        """There must be one."""
        while True:
            size, _, key = self._heap[0]
            told, now = self._told.get(key), self._sizes.get(key)
            if told != -size or now is None:
                heappop(self._heap)  # it stands elsewhere, or is gone
            elif now < told:
                self._told[key] = now
                self._entries += 1
                heapreplace(self._heap, (-now, self._entries, key))
            else:
                return key

    def _stand(self, key: K, size: int) -> None:
        self._told[key] = size
        self._entries += 1
        heappush(self._heap, (-size, self._entries, key))
        if len(self._heap) > 2 * len(self._sizes) + _STALE_AT_LEAST:
            # Keys that are gone before anybody asks would fill it.
            self._heap = [(-told, number, each) for number, (each, told) in enumerate(self._told.items())]
            self._entries = len(self._heap)
            heapify(self._heap)
