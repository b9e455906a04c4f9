"""When nodes change their mode by time alone: a queue of wake-ups.

Knows nodes by their `event_at` and clock readings. Does not know what happens then.

A node has one valid entry at most. Charges only put its time off, and then the entry is left where it is: it fires
early, finds the node still in debt, and is set again. Only an earlier time needs a second entry; the first is stale
then (its time is no longer the node's `event_at`) and dropped when it comes up.
"""

from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, Protocol, TypeVar

__all__ = ["EventQueue", "Scheduled"]

_COMPACT_FROM = 64


class Scheduled(Protocol):
    event_at: float | None


N = TypeVar("N", bound=Scheduled)


class EventQueue(Generic[N]):
    __slots__ = ("_count", "_heap", "_valid")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, N]] = []
        self._count = 0
        self._valid = 0

    def schedule(self, node: N, at: float) -> bool:
        """Wake the node at `at` or earlier. False: an entry that is early enough stands already."""
        standing = node.event_at
        if standing is not None:
            if standing <= at:
                return False
        else:
            self._valid += 1
        node.event_at = at
        self._count += 1
        heap = self._heap
        heappush(heap, (at, self._count, node))
        if len(heap) > _COMPACT_FROM and len(heap) > 2 * self._valid:
            # A node whose time came forward and back again could stand here twice with the same time; firing it twice
            # does nothing more than firing it once.
            heap[:] = [entry for entry in heap if entry[2].event_at == entry[0]]
            heapify(heap)
        return True

    def cancel(self, node: N) -> None:
        """The node sleeps on; its entry is stale."""
        if node.event_at is not None:
            node.event_at = None
            self._valid -= 1

    def due(self, clock: float) -> list[N]:
        """The nodes whose time has come, in the order of their times; they have no entry any more."""
        heap = self._heap
        nodes = []
        while heap and heap[0][0] <= clock:
            at, _, node = heappop(heap)
            if node.event_at == at:
                node.event_at = None
                self._valid -= 1
                nodes.append(node)
        return nodes

    def next(self) -> float:
        """Nobody's time comes earlier; `inf` if nobody waits. (It may be a stale entry's: then nobody's comes.)"""
        return self._heap[0][0] if self._heap else inf
