"""Classes take turns by weight: what `drr`, `wfq` and `hybrid` share.

Knows classes, their quanta and predicted costs. Does not know tenants or time. The turns are those of
`scheduling.rotation`: a class in debt waits for as many rounds as it takes to have paid; what a request turns out to
cost more or less moves its class's turn.
"""

from collections.abc import Iterator

from scheduling.class_queues import ClassQueues
from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.rotation import Rotation, Turn, interleave
from scheduling.tree import TreeConfig, TreeError

__all__ = ["ClassTurns", "class_weights"]

_SHIPPED_WEIGHTS = (16.0, 8.0, 4.0, 2.0)
"""Of a class that the tree does not have (design page, section 1)."""


def class_weights(tree: TreeConfig) -> list[float]:
    """The weight of each priority class among all, whatever groups the tree puts them into."""
    weights = list(_SHIPPED_WEIGHTS)
    for config in tree.walk():
        if config.priority is not None:
            weights[config.priority] = config.weight
    return weights


class ClassTurns(ClassQueues):
    """Implements `scheduling.discipline.Discipline[int]`."""

    def __init__(
        self, index: Index, tree: TreeConfig, unit: int, *, by_request: bool = False, outside: int = 0
    ) -> None:
        """`unit`: the quantum of weight 1, in cost units, or in requests with `by_request`. `outside`: classes, as
        bits, that take no turns: who chooses them does so without the rotation."""
        super().__init__(index)
        self._unit = unit
        self._by_request = by_request
        self._outside = outside
        self._rotation: Rotation[int] = Rotation()
        quanta = self._quanta(tree)
        self._turns = [Turn(int(priority), quanta[priority]) for priority in PriorityClass]

    def choose(self, now: float, blocked: int) -> int | None:
        turn = self._rotation.front()
        if turn is None:
            return None
        if not blocked >> turn.owner & 1:
            return turn.owner
        for other in self._rotation.in_order():
            if not blocked >> other.owner & 1:
                return other.owner
        return None

    def woke(self, priority: int) -> None:
        if not self._outside >> priority & 1:
            self._rotation.join(self._turns[priority])

    def slept(self, priority: int) -> None:
        if not self._outside >> priority & 1:
            self._rotation.leave(self._turns[priority])

    def served(self, priority: int, cost: int) -> None:
        if self._outside >> priority & 1:
            return
        turn = self._turns[priority]
        self._rotation.serve_past(turn, 1 if self._by_request else cost)
        if not self._queues[priority].count:
            self._rotation.leave(turn)

    def adjusted(self, priority: int, cost: int) -> None:
        if not self._by_request and not self._outside >> priority & 1:
            self._rotation.adjust(self._turns[priority], cost)

    def order(self, skip: int) -> Iterator[int]:
        def rows_of(priority: int) -> Iterator[int]:
            return iter(()) if skip >> priority & 1 else self.rows_of(priority)

        return interleave(self._rotation, rows_of, self._price)

    def reload(self, config: TreeConfig, now: float) -> None:
        """New weights from now on; what a class owes it still waits for, round by round."""
        for turn, quantum in zip(self._turns, self._quanta(config), strict=True):
            turn.quantum = quantum
            turn.deficit = min(turn.deficit, quantum)

    def check_integrity(self) -> None:
        super().check_integrity()
        self._rotation.check_integrity()
        for priority, queue in enumerate(self._queues):
            wants = queue.count > 0 and not self._outside >> priority & 1
            assert self._turns[priority].active is wants, f"P{priority} has {queue.count} rows"

    def _price(self, row: int) -> int:
        return 1 if self._by_request else self._index.predicted_cost(row)

    def _quanta(self, tree: TreeConfig) -> list[int]:
        weights = class_weights(tree)
        if min(weights) * self._unit < 0.5:
            raise TreeError(
                f"weights {weights}: a turn of the least is {min(weights) * self._unit:g}; turns by classes need "
                "weights that are whole numbers, or nearly so"
            )
        return [max(1, round(weight * self._unit)) for weight in weights]
