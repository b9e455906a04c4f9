"""Priorities that grow with waiting: nobody starves, and no share is promised.

Knows classes and arrival times. Does not know tenants or costs.

Algorithm, `aging`: score = base of the class + α × seconds waited; the highest goes. All age alike, so only each
class's oldest can be it: four comparisons. Algorithm, `aging-steps`: a request that has waited longer than `_STEPS_S`
counts as one class more urgent at each step: P3 as P2 after 5 s, P2 as P1 after 15 s, P1 as P0 after 30 s; among
equals the oldest. Both look at the clock on *dequeue*: at enqueue every wait is nought, and aging would do nothing.

Source: Silberschatz et al., "Operating System Concepts", on starvation; the thresholds are those of published LLM
queue write-ups (design page, section 4). Why: the usual patch to `strict`, to be seen beside shares.

Advantage: no starvation, almost strict while queues are short. Drawback: under lasting overload all waits grow until
everybody is most urgent, and the order is that of arrival again; who sends most gets most. Limits: none.
"""

from collections.abc import Iterator
from heapq import merge
from typing import Final

from scheduling.class_queues import ClassQueues
from scheduling.index import Index

__all__ = ["Aging", "AgingSteps"]

_BASE: Final = (3.0, 2.0, 1.0, 0.0)
"""Score of P0 … P3 on arrival."""
_ALPHA: Final = 0.1
"""Score a second: ten seconds of waiting weigh as much as one class."""
_STEPS_S: Final = (30.0, 15.0, 5.0)
"""Seconds after which P1 counts as P0, P2 as P1, P3 as P2."""


class Aging(ClassQueues):
    """Implements `scheduling.discipline.Discipline[int]`; cost has no say."""

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self._arrival_s = index.arrival_s

    def choose(self, now: float, blocked: int) -> int | None:
        best: tuple[float, float] | None = None
        chosen = None
        for priority, queue in enumerate(self._queues):
            if queue.count and not blocked >> priority & 1:
                rank = self.rank(priority, self._arrival_s[queue.head], now)
                if best is None or rank < best:
                    best, chosen = rank, priority
        return chosen

    def rank(self, priority: int, arrival_s: float, now: float) -> tuple[float, float]:
        """Less goes first; then the older, then the more urgent class."""
        return -(_BASE[priority] + _ALPHA * (now - arrival_s)), arrival_s

    def order(self, skip: int) -> Iterator[int]:
        """As if asked when the youngest of the classes' oldest arrived; later it changes in favour of the old."""
        waiting = [priority for priority, queue in enumerate(self._queues) if queue.count and not skip >> priority & 1]
        now = max((self._arrival_s[self._queues[priority].head] for priority in waiting), default=0.0)
        return (row for _, row in merge(*(self._ranked(priority, now) for priority in waiting)))

    def _ranked(self, priority: int, now: float) -> Iterator[tuple[tuple[float, float], int]]:
        for row in self.rows_of(priority):
            yield self.rank(priority, self._arrival_s[row], now), row


class AgingSteps(Aging):
    """The same by thresholds."""

    def rank(self, priority: int, arrival_s: float, now: float) -> tuple[float, float]:
        waited_s = now - arrival_s
        while priority and waited_s > _STEPS_S[priority - 1]:
            priority -= 1
        return float(priority), arrival_s
