"""Strict priority: the most urgent class that has a request goes, in arrival order within it.

Knows classes and the order of arrival. Does not know tenants or costs.

Algorithm: a queue a class; the first non-empty one that has room, from P0 down.

Source: the priority policies of vLLM's scheduler and of llm-d's router (priority bands), and tc's `prio`. Why: the
usual answer to urgent traffic, and what it costs the others must be visible beside `htb`.

Advantage: an urgent request waits for nobody but its own class. Drawback: a class that never empties starves all
below it; within a class the heaviest sender wins. Limits: none.
"""

from collections.abc import Iterator

from scheduling.class_queues import ClassQueues
from scheduling.priority import PriorityClass

__all__ = ["Strict"]


class Strict(ClassQueues):
    """Implements `scheduling.discipline.Discipline[int]`; cost has no say."""

    def choose(self, now: float, blocked: int) -> int | None:
        for priority, queue in enumerate(self._queues):
            if queue.count and not blocked >> priority & 1:
                return priority
        return None

    def pick_strict(self, now: float, blocked: int) -> int | None:
        return self.first_of(PriorityClass.P0, blocked)

    def order(self, skip: int) -> Iterator[int]:
        for priority in range(len(self._queues)):
            if not skip >> priority & 1:
                yield from self.rows_of(priority)
