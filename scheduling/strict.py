"""Strict priority: the most urgent class that has a request goes, in arrival order within it.

Knows classes and the order of arrival. Does not know tenants or costs.

Algorithm: a queue a class; the first non-empty one that has room, from P0 down.

Source: the priority policies of vLLM's scheduler and of llm-d's router (priority bands), and tc's `prio`. Why: the
usual answer to urgent traffic, and what it costs the others must be visible beside `htb`.

Advantage: an urgent request waits for nobody but its own class. Drawback: a class that never empties starves all
below it; within a class the heaviest sender wins. Limits: none.
"""

from collections.abc import Iterator
from itertools import chain

from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.row_list import RowLinks, RowList
from scheduling.tree import TreeConfig

__all__ = ["Strict"]


class Strict:
    """Implements `scheduling.discipline.Discipline[None]`: cost changes nothing, so there is nothing to remember."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._service = index.service
        self._links = RowLinks()
        self._queues = [RowList() for _ in PriorityClass]

    def push(self, row: int, now: float) -> None:
        self._links.append(self._queues[self._service[row]], row)

    def pick(self, now: float, blocked: int) -> int | None:
        for priority, queue in enumerate(self._queues):
            if queue.count and not blocked >> priority & 1:
                return queue.head
        return None

    def pop(self, now: float, blocked: int) -> tuple[int, int, None] | None:
        row = self.pick(now, blocked)
        if row is None:
            return None
        self._links.remove(self._queues[self._service[row]], row)
        return row, self._index.predicted_cost(row), None

    def take(self, row: int, cost: int, now: float) -> None:
        self._links.remove(self._queues[self._service[row]], row)

    def correct(self, grant: None, cost: int, now: float) -> None:
        """Cost has no say."""

    def end(self, grant: None, cost: int, now: float) -> None:
        """Cost has no say."""

    def restore(self, row: int, grant: None, cost: int, now: float) -> None:
        self._links.restore(self._queues[self._service[row]], row)

    def remove(self, row: int, now: float) -> None:
        self._links.remove(self._queues[self._service[row]], row)

    def order(self, skip: int) -> Iterator[int]:
        for priority, queue in enumerate(self._queues):
            if not skip >> priority & 1:
                yield from self._links.rows(queue)

    def rows(self) -> Iterator[int]:
        return chain.from_iterable(self._links.rows(queue) for queue in self._queues)

    def next_event(self, now: float) -> float | None:
        return None

    def borrowed_cost(self, priority: PriorityClass) -> int:
        return 0

    def set_capacity(self, units_s: float, now: float) -> None:
        """No rate is a share of anything."""

    def reload(self, config: TreeConfig, now: float) -> None:
        """There is no tree."""

    def close(self) -> None:
        """Nothing is remembered."""

    def check_integrity(self) -> None:
        for priority, queue in enumerate(self._queues):
            self._links.check_integrity(queue)
            for row in self._links.rows(queue):
                assert self._service[row] == priority, f"row {row} is in the queue of P{priority}"

    def __len__(self) -> int:
        return sum(queue.count for queue in self._queues)
