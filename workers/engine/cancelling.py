"""Which of the engine's requests an order to cancel ends, and when: those that run at once, a large backlog in slices.

Knows rows, whose they are and orders (`topics.control_orders.Cancel`). Does not know how a request is ended. Owned by
the engine thread.

A request is found by its id. Of a job's or a tenant's, what is staged or runs is looked at when the order comes, and
everything that waits in slices, so that no step waits for a hundred thousand rows. Until that is done `stops` says of
each request that is about to go on whether it may: from the order on none is dispatched.
"""

from collections.abc import Collection, Iterable
from itertools import islice

from topics.assignment import PartitionEpoch
from topics.control_orders import Cancel
from workers.engine.request_ids import RequestIds
from workers.engine.request_table import RequestTable

__all__ = ["Cancelling"]

_LOOKS_A_TURN = 20_000
"""Some milliseconds."""
_ENDS_A_TURN = 500
"""Some tens of milliseconds: between steps of 50 ms, 5,000 a second and more."""


class Cancelling:
    def __init__(self, requests: RequestTable, max_rows: int) -> None:
        """`requests`: every row that has not ended, as the engine keeps them; at most so many. Only read."""
        self._requests = requests
        self._ids = RequestIds(max_rows)
        self._due: dict[int, tuple[tuple[PartitionEpoch, int], Cancel]] = {}
        """Rows that were found by id, and are not ended yet; with their requests' keys."""
        self._waiting: dict[tuple[str, str], Cancel] = {}
        """Orders that the next look through all rows is for."""
        self._looking: dict[tuple[str, str], Cancel] = {}
        """Orders that the present one is for."""
        self._left = range(0)
        """Rows that it has not come to."""

    def entered(self, row: int, request_id: str) -> None:
        self._ids.enter(row, request_id)

    def left(self, row: int, request_id: str) -> None:
        """`request_id`: as it entered."""
        self._ids.leave(row, request_id)

    def order(self, orders: Iterable[Cancel], begun: Collection[int]) -> dict[int, Cancel]:
        """Take orders; what of `begun` (rows that are staged or run) they end."""
        wide: list[Cancel] = []
        for order in orders:
            if order.scope == "request":
                self._find(order)
            else:
                wide.append(order)
                self._waiting[order.scope, order.name] = order
        ended: dict[int, Cancel] = {}
        for row in begun:
            found = self._still_due(row) or self._first(wide, row)
            self._due.pop(row, None)
            if found is not None:
                ended[row] = found
        return ended

    def take(self) -> dict[int, Cancel]:
        """The next rows to end; a slice."""
        found: dict[int, Cancel] = {}
        for row in list(islice(self._due, _ENDS_A_TURN)):
            if (due := self._still_due(row)) is not None:
                found[row] = due
            del self._due[row]
        if not self._left and self._waiting:
            self._looking, self._waiting = self._waiting, {}
            self._left = range(self._requests.end)
        looked = 0
        for row in self._left[:_LOOKS_A_TURN]:
            if len(found) == _ENDS_A_TURN:
                break
            looked += 1
            # It may be another request's since the order came; then that is meant too, or was sent later.
            if self._requests.knows(row) and (first := self._first(self._looking.values(), row)) is not None:
                found[row] = first
        self._left = self._left[looked:]
        if not self._left:
            self._looking = {}
        return found

    def stops(self, row: int) -> Cancel | None:
        """The order that is going to end this row: it must not go on until it does."""
        return (
            self._still_due(row) or self._first(self._looking.values(), row) or self._first(self._waiting.values(), row)
        )

    @property
    def busy(self) -> bool:
        return bool(self._due or self._left or self._waiting)

    def _find(self, order: Cancel) -> None:
        for row in self._ids.rows(order.name):
            if self._covers(order, row):
                self._due[row] = (self._requests.key(row), order)

    def _still_due(self, row: int) -> Cancel | None:
        """The order by which a row was found by its id; None, too, if the row is another request's now."""
        due = self._due.get(row)
        return due[1] if due is not None and self._requests.knows(row) and self._requests.key(row) == due[0] else None

    def _first(self, orders: Iterable[Cancel], row: int) -> Cancel | None:
        return next((order for order in orders if self._covers(order, row)), None)

    def _covers(self, order: Cancel, row: int) -> bool:
        """Whether it means the row's request."""
        match order.scope:
            case "request":
                name: str | None = self._requests.request_id(row)
            case "job":
                name = self._requests.job_id(row)
            case "tenant":
                name = self._requests.tenant(row)
        return name == order.name and self._requests.sent_ms(row) <= order.before_ms
