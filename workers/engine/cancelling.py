"""Which of the engine's requests an order to cancel ends, and when: those that run at once, a large backlog in slices.

Knows rows, their arrivals and orders (`topics.control_orders.Cancel`). Does not know how a request is ended. Owned by
the engine thread.

A request is found by its id. Of a job's or a tenant's, what is staged or runs is looked at when the order comes, and
everything that waits in slices, so that no step waits for a hundred thousand rows. Until that is done `stops` says of
each request that is about to go on whether it may: from the order on none is dispatched.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from topics.control_orders import Cancel
from workers.intake.request import Arrival

__all__ = ["Cancelling"]

_LOOKS_A_TURN = 20_000
"""Some milliseconds."""
_ENDS_A_TURN = 500
"""Some tens of milliseconds: between steps of 50 ms, 5,000 a second and more."""


class Cancelling:
    def __init__(self, arrivals: Mapping[int, Arrival]) -> None:
        """`arrivals`: every row that has not ended, as the engine keeps them. Only read."""
        self._arrivals = arrivals
        self._row_of: dict[str, int] = {}
        self._namesakes: dict[str, set[int]] = {}
        """Further rows of a request id: somebody sent it twice."""
        self._due: dict[int, tuple[Arrival, Cancel]] = {}
        """Rows that were found by id, and are not ended yet."""
        self._waiting: dict[tuple[str, str], Cancel] = {}
        """Orders that the next look through all rows is for."""
        self._looking: dict[tuple[str, str], Cancel] = {}
        """Orders that the present one is for."""
        self._left: deque[tuple[int, Arrival]] = deque()
        """Rows that it has not come to."""

    def entered(self, row: int, arrival: Arrival) -> None:
        request_id = arrival.headers.request_id
        if self._row_of.setdefault(request_id, row) != row:
            self._namesakes.setdefault(request_id, set()).add(row)

    def left(self, row: int, arrival: Arrival) -> None:
        request_id = arrival.headers.request_id
        others = self._namesakes.get(request_id)
        if self._row_of.get(request_id) == row:
            del self._row_of[request_id]
            if others:
                self._row_of[request_id] = others.pop()
        elif others is not None:
            others.discard(row)
        if others is not None and not others:
            del self._namesakes[request_id]

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
            arrival = self._arrivals[row]
            by_id = self._due.pop(row, None)
            # The row may have been another request's when the order found it.
            found = by_id[1] if by_id is not None and by_id[0] is arrival else _first(wide, arrival)
            if found is not None:
                ended[row] = found
        return ended

    def take(self) -> dict[int, Cancel]:
        """The next rows to end; a slice."""
        found: dict[int, Cancel] = {}
        for row in list(islice(self._due, _ENDS_A_TURN)):
            arrival, order = self._due.pop(row)
            if self._arrivals.get(row) is arrival:
                found[row] = order
        if not self._left and self._waiting:
            self._looking, self._waiting = self._waiting, {}
            self._left.extend(self._arrivals.items())
        looks = _LOOKS_A_TURN
        while self._left and looks and len(found) < _ENDS_A_TURN:
            looks -= 1
            row, arrival = self._left.popleft()
            # It may have ended since, and its row may be another request's, which came after the order.
            if self._arrivals.get(row) is arrival and (first := _first(self._looking.values(), arrival)) is not None:
                found[row] = first
        if not self._left:
            self._looking = {}
        return found

    def stops(self, row: int) -> Cancel | None:
        """The order that is going to end this row: it must not go on until it does."""
        arrival = self._arrivals[row]
        if (due := self._due.get(row)) is not None and due[0] is arrival:
            return due[1]
        return _first(self._looking.values(), arrival) or _first(self._waiting.values(), arrival)

    @property
    def busy(self) -> bool:
        return bool(self._due or self._left or self._waiting)

    def _find(self, order: Cancel) -> None:
        row = self._row_of.get(order.name)
        if row is None:
            return
        for each in (row, *self._namesakes.get(order.name, ())):
            arrival = self._arrivals[each]
            if _covers(order, arrival):
                self._due[each] = (arrival, order)


def _first(orders: Iterable[Cancel], arrival: Arrival) -> Cancel | None:
    return next((order for order in orders if _covers(order, arrival)), None)


def _covers(order: Cancel, arrival: Arrival) -> bool:
    headers = arrival.headers
    return order.covers(headers.request_id, headers.job_id, arrival.tenant, arrival.sent_ms)
