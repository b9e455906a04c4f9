"""Every row's arrival, packed: what ingress knows of a request, in columns beside the index's.

Knows how an `Arrival` is taken apart and made again. Does not know why a row is looked at, nor whose turn it is. Owned
by the engine thread.

As an object a request took a kilobyte, and half a million of them wait in a full worker; here it is some 30 bytes in
columns and its client's own words as one bytes object (`workers.intake.packed_words`). What is the same for many
(their assignment, the class they ask for, their sender's shared words) is kept once. An arrival is made anew whenever
somebody asks, which takes some ten microseconds: so that is done for a row that is staged or ends, and who looks
through a hundred thousand rows asks for less.
"""

from array import array
from math import inf
from typing import NamedTuple

from scheduling.columns import grown
from scheduling.index import Index
from scheduling.interner import Interner
from scheduling.priority import PriorityClass
from topics.assignment import PartitionEpoch
from topics.record import RecordId
from workers.intake.packed_words import SharedWords, pack_words, unpack_request_id, unpack_words, was_moved
from workers.intake.request import Arrival

__all__ = ["PackedArrivals"]


class _Shared(NamedTuple):
    """What many rows have alike."""

    assignment: PartitionEpoch
    service_class: PriorityClass
    max_tokens: int | None
    body_unread: bool
    prompts: int
    choices: int
    words: SharedWords


class PackedArrivals:
    def __init__(self, index: Index) -> None:
        """`index`: has class, tenant, flow and times of every row that is put here. Only read."""
        self._index = index
        self._offset: array[int] = array("Q")
        self._timestamp_ms: array[int] = array("q")
        self._body_bytes: array[int] = array("I")
        self._shared: array[int] = array("I")
        self._sharing: Interner[_Shared] = Interner()
        self._words: list[bytes | None] = []
        """By row; None: it is nobody's."""

    def put(self, row: int, arrival: Arrival, assignment: PartitionEpoch) -> None:
        """The row of the index is this arrival's; `assignment` is the arrival's own."""
        headers = arrival.headers
        if row >= len(self._words):
            self._grow(row)
        self._offset[row] = arrival.id.offset
        self._timestamp_ms[row] = arrival.timestamp_ms
        self._body_bytes[row] = arrival.body_bytes
        self._shared[row] = self._sharing.intern(
            _Shared(
                assignment,
                arrival.service_class,
                arrival.max_tokens,
                arrival.body_unread,
                arrival.prompts,
                arrival.choices,
                SharedWords.of(headers),
            )
        )
        self._words[row] = pack_words(headers, arrival.id, arrival.tenant, arrival.flow)

    def get(self, row: int) -> Arrival:
        """As it came."""
        index, packed = self._index, self._packed(row)
        shared = self._sharing.name(self._shared[row])
        place = RecordId(shared.assignment.topic, shared.assignment.partition, self._offset[row])
        tenant, flow = index.tenant_name(row), index.flow_name(row)
        ttft_deadline_s, hard_deadline_s = index.ttft_deadline_s[row], index.hard_deadline_s[row]
        return Arrival(
            id=place,
            timestamp_ms=self._timestamp_ms[row],
            epoch=shared.assignment.epoch,
            headers=unpack_words(packed, shared.words, place, tenant, flow),
            origin_class=index.origin_of(row),
            service_class=shared.service_class,
            tenant=tenant,
            flow=flow,
            arrived_s=index.arrival_s[row],
            ttft_deadline_s=None if ttft_deadline_s == inf else ttft_deadline_s,
            hard_deadline_s=None if hard_deadline_s == inf else hard_deadline_s,
            body_bytes=self._body_bytes[row],
            max_tokens=shared.max_tokens,
            body_unread=shared.body_unread,
            prompts=shared.prompts,
            choices=shared.choices,
        )

    def forget(self, row: int) -> None:
        """It is nobody's."""
        self._words[row] = None
        self._sharing.drop(self._shared[row])

    def renew(self, row: int, epoch: int) -> None:
        """Its record has come back under another assignment of its partition."""
        before = self._shared[row]
        shared = self._sharing.name(before)
        self._shared[row] = self._sharing.intern(shared._replace(assignment=shared.assignment._replace(epoch=epoch)))
        self._sharing.drop(before)

    # --- at a glance ----------------------------------------------------------------------------------------------

    def knows(self, row: int) -> bool:
        return row < len(self._words) and self._words[row] is not None

    def holds(self, row: int, arrival: Arrival) -> bool:
        """Whether the row is this record's, under this assignment."""
        return self.knows(row) and self.key(row) == (arrival.assignment, arrival.id.offset)

    def key(self, row: int) -> tuple[PartitionEpoch, int]:
        """What no other request has: an offset under one assignment."""
        return self.assignment(row), self._offset[row]

    def assignment(self, row: int) -> PartitionEpoch:
        return self._sharing.name(self._shared[row]).assignment

    def place(self, row: int) -> RecordId:
        assignment = self.assignment(row)
        return RecordId(assignment.topic, assignment.partition, self._offset[row])

    def tenant(self, row: int) -> str:
        return self._index.tenant_name(row)

    def job_id(self, row: int) -> str | None:
        return self._sharing.name(self._shared[row]).words.job_id

    def request_id(self, row: int) -> str:
        return unpack_request_id(self._packed(row), self.job_id(row), self.place(row))

    def sent_ms(self, row: int) -> int:
        return self.get(row).sent_ms if was_moved(self._packed(row)) else self._timestamp_ms[row]

    @property
    def end(self) -> int:
        """All rows are below it."""
        return len(self._words)

    def check_integrity(self) -> None:
        """Assert that what is shared is held by as many rows as have it. Linear in the rows."""
        self._sharing.check_integrity()
        holders: dict[int, int] = {}
        for row, packed in enumerate(self._words):
            if packed is not None:
                holders[self._shared[row]] = holders.get(self._shared[row], 0) + 1
        for shared, rows in holders.items():
            assert self._sharing.holders(shared) == rows, f"{rows} rows share {shared}"
        assert len(holders) == len(self._sharing), "something is kept that no row shares"

    def _packed(self, row: int) -> bytes:
        packed = self._words[row]
        assert packed is not None, f"row {row} is nobody's"
        return packed

    def _grow(self, row: int) -> None:
        size = len(self._words)
        more = grown(size, row) - size
        for column in (self._offset, self._timestamp_ms, self._body_bytes, self._shared):
            column.frombytes(bytes(more * column.itemsize))
        self._words = self._words + [None] * more  # `extend` would keep another eighth in reserve
