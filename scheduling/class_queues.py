"""A queue a class: what every policy shares that chooses among classes and serves a class's requests in one order.

Knows rows and the queues they are in. Does not know which class goes next: a policy says so in `choose`, and is told
what was served and what it came to cost.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain

from scheduling.flat import Flat
from scheduling.index import Index
from scheduling.keyed_rows import KeyedRows
from scheduling.priority import PriorityClass
from scheduling.row_list import NO_ROW, RowLinks

__all__ = ["ClassQueue", "ClassQueues"]


class ClassQueue:
    """The ends of one class's queue, and where rows are ordered by a key, its heap."""

    __slots__ = ("count", "head", "heap", "tail")

    def __init__(self) -> None:
        self.head = NO_ROW
        self.tail = NO_ROW
        self.count = 0
        self.heap: list[tuple[float, int, int]] = []


class ClassQueues(Flat, ABC):
    """Implements `scheduling.discipline.Discipline[int]`: the grant is the class."""

    def __init__(self, index: Index, rows: KeyedRows | None = None) -> None:
        """`rows`: the order within a class; that of arrival where absent."""
        self._index = index
        self._service = index.service
        self._rows: RowLinks | KeyedRows = rows or RowLinks()
        self._queues = [ClassQueue() for _ in PriorityClass]

    # --- the policy's part ----------------------------------------------------------------------------------------

    @abstractmethod
    def choose(self, now: float, blocked: int) -> int | None:
        """The class that goes next: one that has a row and is not blocked. Must change nothing."""

    @abstractmethod
    def order(self, skip: int) -> Iterator[int]: ...

    def woke(self, priority: int) -> None:
        """The class has its first row."""

    def slept(self, priority: int) -> None:
        """The class's last row left, unserved or out of turn."""

    def served(self, priority: int, cost: int) -> None:
        """The class that was chosen was served, at this predicted cost. Its queue may be empty now."""

    def adjusted(self, priority: int, cost: int) -> None:
        """What the class was served cost so much more, or (negative) less; or it was served out of turn."""

    # --- a row's way ----------------------------------------------------------------------------------------------

    def push(self, row: int, now: float) -> None:
        priority = self._service[row]
        queue = self._queues[priority]
        self._rows.append(queue, row)
        if queue.count == 1:
            self.woke(priority)

    def pick(self, now: float, blocked: int) -> int | None:
        priority = self.choose(now, blocked)
        return None if priority is None else self._queues[priority].head

    def pop(self, now: float, blocked: int) -> tuple[int, int, int] | None:
        priority = self.choose(now, blocked)
        if priority is None:
            return None
        queue = self._queues[priority]
        row = queue.head
        cost = self._index.predicted_cost(row)
        self._rows.pop(queue)
        self.served(priority, cost)
        return row, cost, priority

    def take(self, row: int, cost: int, now: float) -> int:
        priority = self._leave(row)
        self.adjusted(priority, cost)
        return priority

    def correct(self, grant: int, cost: int, now: float) -> None:
        self.adjusted(grant, cost)

    def end(self, grant: int, cost: int, now: float) -> None:
        if cost:
            self.adjusted(grant, cost)

    def restore(self, row: int, grant: int, cost: int, now: float) -> None:
        self.adjusted(grant, -cost)
        queue = self._queues[grant]
        self._rows.restore(queue, row)
        if queue.count == 1:
            self.woke(grant)

    def remove(self, row: int, now: float) -> None:
        self._leave(row)

    def _leave(self, row: int) -> int:
        priority = self._service[row]
        queue = self._queues[priority]
        self._rows.remove(queue, row)
        if not queue.count:
            self.slept(priority)
        return priority

    # --- looking --------------------------------------------------------------------------------------------------

    def first_of(self, priority: int, blocked: int) -> int | None:
        """A class's next row, unless it is blocked."""
        queue = self._queues[priority]
        return queue.head if queue.count and not blocked >> priority & 1 else None

    def rows_of(self, priority: int) -> Iterator[int]:
        """A class's rows in their order."""
        return self._rows.rows(self._queues[priority])

    def rows(self) -> Iterator[int]:
        return chain.from_iterable(map(self.rows_of, PriorityClass))

    def check_integrity(self) -> None:
        for priority, queue in enumerate(self._queues):
            self._rows.check_integrity(queue)
            for row in self._rows.rows(queue):
                assert self._service[row] == priority, f"row {row} is in the queue of P{priority}"

    def __len__(self) -> int:
        return sum(queue.count for queue in self._queues)
