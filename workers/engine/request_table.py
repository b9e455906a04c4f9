"""Every request that the engine knows, by its row: from its arrival until it has ended.

Knows which row is whose, which partition's assignment it came with, and which rows go on though that is over. Does not
know states, blocks or turns. Owned by the engine thread.

A row number is used again as soon as its request has ended, and staging or a revocation may still speak of the one
before: so who asks after a row says whose it should be. An arrival that waits is kept packed (`packed_arrivals`), and
is another object each time that it is asked for.

**Orphans** are rows that are computed when their partition is taken away. They go on; when their record comes back they
are renewed under its new assignment, and when it has gone to another worker they are dropped. Of one that ended before
its record came back, the ending is on its way already, so the record is no new row: whoever reads the endings says when
that need not be remembered any more, by dropping it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from scheduling.index import Index
from scheduling.row_list import RowChain, RowList
from topics.assignment import PartitionEpoch
from topics.record import RecordId
from workers.engine.packed_arrivals import PackedArrivals
from workers.intake.request import Arrival, EngineRequest

__all__ = ["RequestTable"]


class RequestTable:
    def __init__(self, index: Index) -> None:
        """`index`: has the row of each arrival that is added, until it is forgotten here. Only read."""
        self._arrivals = PackedArrivals(index)
        """Every row that the worker knows, until it has ended."""
        self._staged: dict[int, EngineRequest] = {}
        """Rows that are staged or run."""
        self._lists: dict[PartitionEpoch, RowList] = {}
        """Rows by the assignment of their partition, oldest first, but for orphans. No empty ones."""
        self._chain = RowChain()
        self._gone: dict[PartitionEpoch, None] = {}
        """Assignments that are over, and of which there are rows to be dropped. The oldest first."""
        self._orphans: dict[RecordId, int] = {}
        self._unwanted: dict[int, None] = {}
        """Rows that were orphans, and are to be dropped."""
        self._ended_orphans: set[RecordId] = set()
        """Until they are dropped."""

    def add(self, row: int, arrival: Arrival) -> None:
        assignment = arrival.assignment
        self._arrivals.put(row, arrival, assignment)
        self._enlist(row, assignment)

    def stage(self, request: EngineRequest) -> None:
        """The row's tokens are made."""
        self._staged[request.row] = request

    def forget(self, row: int) -> None:
        """It has ended: the row may be another request's from now on."""
        place = self._arrivals.place(row)
        if self._orphans.get(place) == row:
            del self._orphans[place]
            self._ended_orphans.add(place)
        elif row in self._unwanted:
            del self._unwanted[row]
        else:
            self._delist(row)
        self._staged.pop(row, None)
        self._arrivals.forget(row)

    # --- reading --------------------------------------------------------------------------------------------------

    def __getitem__(self, row: int) -> EngineRequest:
        """A staged or running request."""
        return self._staged[row]

    def staged(self, row: int) -> EngineRequest | None:
        """None: its tokens are not made yet."""
        return self._staged.get(row)

    def arrival(self, row: int) -> Arrival:
        """Of one that waits it is unpacked: some ten microseconds."""
        request = self._staged.get(row)
        return self._arrivals.get(row) if request is None else request.arrival

    def request_id(self, row: int) -> str:
        return self._arrivals.request_id(row)

    def job_id(self, row: int) -> str | None:
        return self._arrivals.job_id(row)

    def tenant(self, row: int) -> str:
        return self._arrivals.tenant(row)

    def sent_ms(self, row: int) -> int:
        """See `RequestHeaders.sent_ms`."""
        return self._arrivals.sent_ms(row)

    def key(self, row: int) -> tuple[PartitionEpoch, int]:
        """What no other request has: an offset under one assignment."""
        return self._arrivals.key(row)

    def knows(self, row: int) -> bool:
        """Whether the row is some request's that has not ended."""
        return self._arrivals.knows(row)

    @property
    def end(self) -> int:
        """All rows are below it."""
        return self._arrivals.end

    @property
    def begun(self) -> Collection[int]:
        """Rows that are staged or run; a view."""
        return self._staged.keys()

    def holds(self, row: int, arrival: Arrival) -> bool:
        """Whether the row is this arrival's. It may have ended, and even be another request's."""
        return self._arrivals.holds(row, arrival)

    def oldest(self, waits: Callable[[int], bool]) -> Iterator[Arrival]:
        """Of each partition's assignment: the arrival of the first row that `waits`."""
        for assignment, rows in self._lists.items():
            if assignment not in self._gone:
                first = next((row for row in self._chain.rows(rows) if waits(row)), None)
                if first is not None:
                    yield self.arrival(first)

    def every_staged(self) -> Iterator[EngineRequest]:
        """Those that are staged or run."""
        return iter(self._staged.values())

    # --- partitions that are gone ---------------------------------------------------------------------------------

    def revoke(self, assignment: PartitionEpoch, goes_on: Callable[[int], bool]) -> None:
        """Of its rows, those that are staged or run and that `goes_on` become orphans; the others are to be dropped:
        `next_revoked` names them."""
        for row in [row for row in self._staged if self._listed(row, assignment) and goes_on(row)]:
            self._delist(row)
            self._orphans[self._arrivals.place(row)] = row
        if assignment in self._lists:
            self._gone[assignment] = None

    def renew(self, arrival: Arrival) -> bool:
        """The record of an orphan has come back with this arrival. False: there is no such orphan."""
        row = self._orphans.pop(arrival.id, None)
        if row is None:
            return False
        request = self._staged[row]
        request.arrival = replace(request.arrival, epoch=arrival.epoch)
        self._arrivals.renew(row, arrival.epoch)
        self._enlist(row, arrival.assignment)
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
                self._unwanted[row] = None

    def revoked(self, arrival: Arrival) -> bool:
        """Whether the partition of an arrival that has not ended is gone: its rows are about to be dropped."""
        return arrival.assignment in self._gone or arrival.assignment not in self._lists

    @property
    def dropping(self) -> bool:
        return bool(self._unwanted or self._gone)

    def next_revoked(self, most: int) -> list[int]:
        """Rows to be dropped now, at most so many; each is named until it is forgotten."""
        rows = list(islice(self._unwanted, most))
        for assignment in self._gone:
            if len(rows) == most:
                break
            rows.extend(islice(self._chain.rows(self._lists[assignment]), most - len(rows)))
        return rows

    def check_integrity(self) -> None:
        """Assert that every row is in its assignment's list, or an orphan or was one. Linear in the rows."""
        self._arrivals.check_integrity()
        apart = {*self._orphans.values(), *self._unwanted}
        listed: set[int] = set()
        for assignment, rows in self._lists.items():
            self._chain.check_integrity(rows)
            assert rows.count, f"an empty list is kept of {assignment}"
            for row in self._chain.rows(rows):
                assert self._arrivals.assignment(row) == assignment, f"row {row} is listed under {assignment}"
                listed.add(row)
        assert self._gone.keys() <= self._lists.keys(), "an assignment is over, and nothing of it is to be dropped"
        assert not apart & listed, "a row is listed and an orphan"
        assert apart | listed == {row for row in range(self.end) if self.knows(row)}, "rows don't add up"

    # --- whose rows -----------------------------------------------------------------------------------------------

    def _listed(self, row: int, assignment: PartitionEpoch) -> bool:
        """Whether the row is in this assignment's list."""
        listed = self._arrivals.assignment(row) == assignment and row not in self._unwanted
        return listed and self._orphans.get(self._arrivals.place(row)) != row

    def _enlist(self, row: int, assignment: PartitionEpoch) -> None:
        rows = self._lists.get(assignment)
        if rows is None:
            rows = self._lists[assignment] = RowList()
        self._chain.append(rows, row)

    def _delist(self, row: int) -> None:
        assignment = self._arrivals.assignment(row)
        rows = self._lists[assignment]
        self._chain.remove(rows, row)
        if not rows.count:
            del self._lists[assignment]
            self._gone.pop(assignment, None)
