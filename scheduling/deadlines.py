"""Hard deadlines of requests that were not admitted: which have passed, and when the next one does.

Knows rows and their deadlines. Does not end a request: `scheduling.batch` does, and answers for it.

A heap with lazy removal: an entry whose row was admitted, ended or given to another request meanwhile is dropped when
it comes up, or when the heap has doubled since it was last swept. So adding is O(log n) amortised, and memory stays
within twice the entries that still count. Requests without a hard deadline, most of them, are not in it.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf

__all__ = ["Deadlines"]

_SWEEP_AT_LEAST = 1024


class Deadlines:
    def __init__(self, still_due: Callable[[int, float], bool]) -> None:
        """`still_due(row, deadline)`: whether the row waits, and for that deadline."""
        self._still_due = still_due
        self._heap: list[tuple[float, int]] = []
        self._sweep_at = _SWEEP_AT_LEAST

    def add(self, row: int, deadline_s: float) -> None:
        if deadline_s == inf:
            return
        if len(self._heap) >= self._sweep_at:
            self._heap = [(due, waiting) for due, waiting in self._heap if self._still_due(waiting, due)]
            heapify(self._heap)
            self._sweep_at = max(_SWEEP_AT_LEAST, 2 * len(self._heap))
        heappush(self._heap, (deadline_s, row))

    def take_passed(self, now: float) -> int | None:
        """A row that still waits and whose deadline is `now` or before, the earliest first; None if there is none.

        The caller ends it, or it is no longer due for another reason, before it asks again.
        """
        while self._heap and self._heap[0][0] <= now:
            deadline_s, row = heappop(self._heap)
            if self._still_due(row, deadline_s):
                return row
        return None

    def next_due(self) -> float | None:
        """When the next one passes."""
        while self._heap:
            deadline_s, row = self._heap[0]
            if self._still_due(row, deadline_s):
                return deadline_s
            heappop(self._heap)
        return None

    def __len__(self) -> int:
        """Entries, stale ones included."""
        return len(self._heap)
