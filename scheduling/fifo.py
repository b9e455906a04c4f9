"""First in, first out: pure arrival order, head-of-line blocking included.

Knows the order of arrival. Does not know classes, tenants or costs.

Algorithm: one queue; the head waits for room and everybody behind it waits with it.

Source: the first-come-first-served policy of vLLM's scheduler (`SchedulingPolicy.FCFS`). Why: the baseline every
other policy is compared with, and what a plain consumer of one topic would do.

Advantage: no state, no parameters, no starvation, constant time. Drawback: whoever sends most gets most; an urgent
request waits behind all that came before; one blocked head blocks all classes. Limits: none.
"""

from collections.abc import Iterator
from itertools import islice

from scheduling.flat import Flat
from scheduling.index import Index
from scheduling.row_list import RowLinks, RowList

__all__ = ["Fifo"]

_LOOK_ROWS = 4096
"""How far `order` looks for classes that are not skipped."""


class Fifo(Flat):
    """Implements `scheduling.discipline.Discipline[None]`: cost changes nothing, so there is nothing to remember."""

    def __init__(self, index: Index, links: RowLinks | None = None) -> None:
        self._index = index
        self._service = index.service
        self._links = links or RowLinks()
        self._queue = RowList()

    def push(self, row: int, now: float) -> None:
        self._links.append(self._queue, row)

    def pick(self, now: float, blocked: int) -> int | None:
        if not self._queue.count:
            return None
        head = self._queue.head
        return None if blocked >> self._service[head] & 1 else head

    def pop(self, now: float, blocked: int) -> tuple[int, int, None] | None:
        row = self.pick(now, blocked)
        if row is None:
            return None
        self._links.remove(self._queue, row)
        return row, self._index.predicted_cost(row), None

    def take(self, row: int, cost: int, now: float) -> None:
        self._links.remove(self._queue, row)

    def correct(self, grant: None, cost: int, now: float) -> None:
        """Cost has no say."""

    def end(self, grant: None, cost: int, now: float) -> None:
        """Cost has no say."""

    def restore(self, row: int, grant: None, cost: int, now: float) -> None:
        self._links.restore(self._queue, row)

    def remove(self, row: int, now: float) -> None:
        self._links.remove(self._queue, row)

    def order(self, skip: int) -> Iterator[int]:
        service = self._service
        near = islice(self._links.rows(self._queue), _LOOK_ROWS)
        return (row for row in near if not skip >> service[row] & 1)

    def rows(self) -> Iterator[int]:
        return self._links.rows(self._queue)

    def check_integrity(self) -> None:
        self._links.check_integrity(self._queue)

    def __len__(self) -> int:
        return self._queue.count
