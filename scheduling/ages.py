"""Which request of a class has waited longest, and whether that is too long.

Knows rows in the order they came, their arrival times and each class's `max_wait_s`. Does not know whose turn it is.
"""

from collections.abc import Iterable

from scheduling.index import Index
from scheduling.row_list import RowLinks, RowList

__all__ = ["Ages"]


class Ages:
    """Lists for the classes that have a `max_wait_s`; the rows of others are not kept."""

    def __init__(self, index: Index) -> None:
        self._arrival_s = index.arrival_s
        self._links = RowLinks()
        self._queues: dict[int, RowList] = {}
        self._max_wait_s: dict[int, float] = {}

    def limit(self, priority: int, max_wait_s: float | None, rows: Iterable[int] = ()) -> None:
        """Set a class's limit. `rows` are those it has queued."""
        if max_wait_s is None:
            self._max_wait_s.pop(priority, None)
            self._queues.pop(priority, None)
            return
        self._max_wait_s[priority] = max_wait_s
        if priority not in self._queues:
            queue = self._queues[priority] = RowList()
            for row in sorted(rows, key=self._arrival_s.__getitem__):
                self._links.append(queue, row)

    def add(self, priority: int, row: int) -> None:
        queue = self._queues.get(priority)
        if queue is not None:
            self._links.append(queue, row)

    def remove(self, priority: int, row: int) -> None:
        queue = self._queues.get(priority)
        if queue is not None:
            self._links.remove(queue, row)

    def restore(self, priority: int, row: int) -> None:
        """The row is back, as old as it was."""
        queue = self._queues.get(priority)
        if queue is not None:
            self._links.restore(queue, row)

    def overdue(self, priority: int, now: float) -> int | None:
        """The class's oldest row, if it has waited too long."""
        queue = self._queues.get(priority)
        if queue is None or not queue.count:
            return None
        return queue.head if now - self._arrival_s[queue.head] > self._max_wait_s[priority] else None

    def check_integrity(self) -> None:
        for queue in self._queues.values():
            self._links.check_integrity(queue)
