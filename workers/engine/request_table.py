"""Every request that the engine knows, by its row: from its arrival until it has ended.

Knows which row is whose, and which partition's assignment it came with. Does not know states, blocks or turns. Owned by
the engine thread.

A row number is used again as soon as its request has ended, and staging or a revocation may still speak of the one
before: so who asks after a row says whose it should be.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping

from workers.engine.messages import Revoked
from workers.intake.request import Arrival, EngineRequest

__all__ = ["RequestTable"]


class RequestTable:
    def __init__(self) -> None:
        self._arrivals: dict[int, Arrival] = {}
        """Every row that the worker knows, until it has ended."""
        self._staged: dict[int, EngineRequest] = {}
        """Rows that are staged or run."""
        self._by_assignment: dict[Revoked, dict[int, Arrival]] = {}
        """Rows by the assignment of their partition, to be dropped when that is revoked. No empty ones."""
        self._dropping: deque[tuple[int, Arrival]] = deque()
        """Rows of revoked partitions, still to be dropped."""

    def add(self, row: int, arrival: Arrival) -> None:
        self._arrivals[row] = arrival
        self._by_assignment.setdefault(_assignment(arrival), {})[row] = arrival

    def stage(self, request: EngineRequest) -> None:
        """The row's tokens are made."""
        self._staged[request.row] = request

    def forget(self, row: int) -> None:
        """It has ended: the row may be another request's from now on."""
        arrival = self._arrivals.pop(row)
        assignment = _assignment(arrival)
        rows = self._by_assignment.get(assignment)
        if rows is not None:
            rows.pop(row, None)
            if not rows:
                del self._by_assignment[assignment]
        self._staged.pop(row, None)

    # --- reading --------------------------------------------------------------------------------------------------

    def __getitem__(self, row: int) -> EngineRequest:
        """A staged or running request."""
        return self._staged[row]

    def staged(self, row: int) -> EngineRequest | None:
        """None: its tokens are not made yet."""
        return self._staged.get(row)

    def arrival(self, row: int) -> Arrival:
        return self._arrivals[row]

    def knows(self, row: int) -> bool:
        """Whether the row is some request's that has not ended."""
        return row in self._arrivals

    @property
    def arrivals(self) -> Mapping[int, Arrival]:
        """By row; a view, which stays true."""
        return self._arrivals

    @property
    def begun(self) -> Collection[int]:
        """Rows that are staged or run; a view."""
        return self._staged.keys()

    def holds(self, row: int, arrival: Arrival) -> bool:
        """Whether the row is this arrival's. It may have ended, and even be another request's."""
        return self._arrivals.get(row) is arrival

    def oldest(self, waits: Callable[[int], bool]) -> Iterator[Arrival]:
        """Of each partition's assignment: the arrival of the first row that `waits`."""
        for rows in self._by_assignment.values():
            first = next((arrival for row, arrival in rows.items() if waits(row)), None)
            if first is not None:
                yield first

    def every_staged(self) -> Iterator[EngineRequest]:
        """Those that are staged or run."""
        return iter(self._staged.values())

    # --- partitions that are gone ---------------------------------------------------------------------------------

    def revoke(self, assignment: Revoked) -> None:
        """Its rows are to be dropped: `next_revoked` names them."""
        self._dropping.extend(self._by_assignment.pop(assignment, {}).items())

    def revoked(self, arrival: Arrival) -> bool:
        """Whether the partition of an arrival that has not ended is gone: its rows are about to be dropped."""
        return _assignment(arrival) not in self._by_assignment

    @property
    def dropping(self) -> bool:
        return bool(self._dropping)

    def next_revoked(self, looks: int) -> list[int]:
        """Rows to be dropped now. At most so many are looked at; some may have ended since."""
        rows = []
        for _ in range(min(len(self._dropping), looks)):
            row, arrival = self._dropping.popleft()
            if self.holds(row, arrival):
                rows.append(row)
        return rows


def _assignment(arrival: Arrival) -> Revoked:
    """What will be said when the arrival's partition is taken away."""
    return Revoked(arrival.id.topic, arrival.id.partition, arrival.epoch)
