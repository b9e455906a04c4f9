"""What disciplines without a class tree answer where only a tree would have something to say.

Knows nothing. A policy that orders requests by class, client or arrival inherits these and adds its order.
"""

from scheduling.priority import PriorityClass
from scheduling.tree import TreeConfig
from scheduling.tree_statistics import TreeStatistics

__all__ = ["Flat"]


class Flat:
    """The part of `scheduling.discipline.Discipline` that is about rates, limits and the past."""

    def pick_strict(self, now: float, blocked: int) -> int | None:
        """No class is strict."""
        return None

    def next_event(self, now: float) -> float | None:
        """No hard limit blocks anything."""
        return None

    def over_rate(self, priority: PriorityClass, now: float) -> bool:
        """Nobody has a rate."""
        return False

    def borrowed_cost(self, priority: PriorityClass) -> int:
        """Nobody has a rate, so nobody borrows."""
        return 0

    def reason(self, grant: object) -> str:
        return "turn"

    def tree(self, now: float) -> TreeStatistics | None:
        return None

    def set_capacity(self, units_s: float, now: float) -> None:
        """No rate is a share of anything."""

    def reload(self, config: TreeConfig, now: float) -> None:
        """There is no tree."""

    def close(self) -> None:
        """Nothing is remembered."""
