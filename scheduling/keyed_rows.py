"""Queues of rows by a key (earliest deadline, least cost) instead of by arrival.

Knows rows, keys and ties (by arrival). Does not know what a key means. Same calls as `row_list.RowLinks`, so that a
flow's order is a choice.

A heap a flow; a row that leaves from the middle leaves its entry behind until it comes to the top. About 120 bytes a
row. Keys are read when a row is queued: staging may change its cost afterwards without moving it.
"""

from array import array
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from scheduling.columns import grown
from scheduling.row_list import NO_ROW

__all__ = ["KeyedEnds", "KeyedRows"]

_COMPACT_FROM = 64


class KeyedEnds(Protocol):
    head: int
    tail: int
    count: int
    heap: list[tuple[float, int, int]]
    """(key, number of arrival, row); stale when the row's number is another now."""


class KeyedRows:
    def __init__(self, key_of: Callable[[int], float]) -> None:
        self._key_of = key_of
        self.number: array[int] = array("Q")
        """By row: its number of arrival while it is queued; 0 when it is not."""
        self._count = 0

    def append(self, queue: KeyedEnds, row: int) -> None:
        if row >= len(self.number):
            more = grown(len(self.number), row) - len(self.number)
            self.number.frombytes(bytes(more * self.number.itemsize))
        self._count = self.number[row] = self._count + 1
        heappush(queue.heap, (self._key_of(row), self._count, row))
        queue.count += 1
        queue.head = queue.heap[0][2]

    def relist(self, queue: KeyedEnds, row: int) -> None:
        """A row that is in no queue now, into this one."""
        self.append(queue, row)

    def remove(self, queue: KeyedEnds, row: int) -> None:
        assert self.number[row], f"row {row} is not queued"
        self.number[row] = 0
        queue.count -= 1
        heap = queue.heap
        if len(heap) > _COMPACT_FROM and len(heap) > 2 * queue.count:
            heap[:] = [entry for entry in heap if self.number[entry[2]] == entry[1]]
            heapify(heap)
        while heap and self.number[heap[0][2]] != heap[0][1]:
            heappop(heap)
        queue.head = heap[0][2] if heap else NO_ROW

    def pop(self, queue: KeyedEnds) -> None:
        """The head leaves."""
        self.remove(queue, queue.head)

    def restore(self, queue: KeyedEnds, row: int) -> None:
        """Its key is its place; among equals it comes last now."""
        self.append(queue, row)

    def rows(self, queue: KeyedEnds) -> Iterator[int]:
        """In order, lazily: k rows cost O(k log k)."""
        heap = queue.heap
        near = [(heap[0], 0)] if heap else []
        while near:
            (_, number, row), position = heappop(near)
            if self.number[row] == number:
                yield row
            for below in (2 * position + 1, 2 * position + 2):
                if below < len(heap):
                    heappush(near, (heap[below], below))

    def check_integrity(self, queue: KeyedEnds) -> None:
        """Assert that heap, head and count agree. Linear."""
        rows = [row for _, number, row in queue.heap if self.number[row] == number]
        assert len(rows) == len(set(rows)) == queue.count, f"{len(rows)} rows, counted {queue.count}"
        assert queue.head == (queue.heap[0][2] if queue.heap else NO_ROW), "the head is not the first"
