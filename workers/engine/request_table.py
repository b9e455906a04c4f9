"""Every request that the engine knows, by its row: from its arrival until it has ended.

Knows which row is whose, which partition's assignment it came with, and which rows go on though that is over. Does not
know states, blocks or turns. Owned by the engine thread.

A row number is used again as soon as its request has ended, and staging or a revocation may still speak of the one
before: so who asks after a row says whose it should be.

**Orphans** are rows that are computed when their partition is taken away. They go on; when their record comes back they
are renewed under its new assignment, and when it has gone to another worker they are dropped. Of one that ended before
its record came back, the ending is on its way already, so the record is no new row: whoever reads the endings says when
that need not be remembered any more, by dropping it.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from topics.record import RecordId
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
        self._orphans: dict[RecordId, int] = {}
        self._ended_orphans: set[RecordId] = set()
        """Until they are dropped."""

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
        if self._orphans.get(arrival.id) == row:
            del self._orphans[arrival.id]
            self._ended_orphans.add(arrival.id)

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

    def revoke(self, assignment: Revoked, goes_on: Callable[[int], bool]) -> None:
        """Of its rows, those that are staged or run and that `goes_on` become orphans; the others are to be dropped:
        `next_revoked` names them."""
        rows = self._by_assignment.pop(assignment, {})
        for row in [row for row in self._staged if row in rows and goes_on(row)]:
            self._orphans[rows.pop(row).id] = row
        self._dropping.extend(rows.items())

    def renew(self, arrival: Arrival) -> bool:
        """The record of an orphan has come back with this arrival. False: there is no such orphan."""
        row = self._orphans.pop(arrival.id, None)
        if row is None:
            return False
        renewed = self._arrivals[row] = replace(self._arrivals[row], epoch=arrival.epoch)
        self._staged[row].arrival = renewed
        self._by_assignment.setdefault(_assignment(renewed), {})[row] = renewed
        return True

    def ended_as_orphan(self, record: RecordId) -> bool:
        """Whether it did, and is not dropped yet."""
        return record in self._ended_orphans

    def drop_orphans(self, records: Iterable[RecordId]) -> None:
        """Nobody waits for them any more: `next_revoked` names them first. Those that have ended are forgotten."""
        for record in records:
            self._ended_orphans.discard(record)
            row = self._orphans.pop(record, None)
            if row is not None:
                self._dropping.appendleft((row, self._arrivals[row]))

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
