"""The payloads of one class's waiting requests: which are in memory, within a budget, and which are only known.

Knows records by the assignment of their partition and their offset. Does not know how a record is read again
(`workers.intake.payload_source`) or who needs it. Pure and synchronous. The event loop's; `find` may be called from any
thread.

A request that waits is an `Arrival`, which has all that scheduling needs. Its record (key, value, headers) is needed
again when its prompt is prepared, when it moves into another class, and when it becomes a dead letter. Beyond the
budget payloads are **evicted**, those first that are likely to run last (`workers.intake.eviction_order`): what stays
is a bit that says so, and it is read again before it is needed. So a backlog is bounded by the number of its rows
(`workers.intake.residency`), and not by its bytes.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from topics.assignment import PartitionEpoch
from topics.record import InboundRecord
from workers.intake.eviction_order import EvictionOrder
from workers.intake.offset_set import OffsetSet
from workers.intake.request import Arrival

__all__ = ["PayloadStatistics", "Payloads", "Sender", "record_size"]

_RECORD_OVERHEAD_BYTES = 512
"""Of the objects around a record's bytes: itself, its headers, its place in the order."""


def record_size(record: InboundRecord) -> int:
    """What a record takes in memory, about."""
    return record.size_bytes + _RECORD_OVERHEAD_BYTES


class Sender(NamedTuple):
    """Whose a request is taken for, by the eviction order as by the scheduler."""

    tenant: str
    flow: str


@dataclass(frozen=True, slots=True)
class PayloadStatistics:
    bytes: int
    """Resident."""
    max_bytes: int
    resident: int
    """Payloads in memory."""
    evicted: int
    """Requests whose payload is not, now."""
    evictions: int
    """Since the start."""


@dataclass(slots=True, eq=False)
class _Kept:
    shelf: "_Shelf"
    sender: Sender
    record: InboundRecord
    size: int


class _Shelf:
    """Of one assignment of a partition, by offset."""

    __slots__ = ("evicted", "kept")

    def __init__(self) -> None:
        self.kept: dict[int, _Kept] = {}
        self.evicted = OffsetSet()


class Payloads:
    def __init__(self, max_bytes: int, sender_of: Callable[[InboundRecord], Sender]) -> None:
        """`sender_of`: of one that was read again; what its arrival said."""
        self._max_bytes = max_bytes
        self._sender_of = sender_of
        self._shelves: dict[PartitionEpoch, _Shelf] = {}
        """No empty ones."""
        self._leaving: deque[dict[int, _Kept]] = deque()
        """Of partitions that are gone; counted until they are swept, and the first to make room."""
        self._order: EvictionOrder[_Kept] = EvictionOrder()
        self._bytes = self._resident = self._evicted = self._evictions = 0

    # --- records come and go --------------------------------------------------------------------------------------

    def keep(self, arrival: Arrival, record: InboundRecord) -> None:
        """A request has come, as the newest of its flow. Others may be evicted for it, or itself."""
        partition = arrival.assignment
        shelf = self._shelves.get(partition)
        if shelf is None:
            shelf = self._shelves[partition] = _Shelf()
        self._put(shelf, Sender(arrival.tenant, arrival.flow), record, oldest=False)
        self._evict()

    def restore(self, partition: PartitionEpoch, record: InboundRecord) -> bool:
        """The record was read again. It is kept if its request still waits without it, as the oldest of its flow: what
        is behind it in its flow goes first. False: nobody misses it."""
        shelf = self._shelves.get(partition)
        if shelf is None or not shelf.evicted.discard(record.id.offset):
            return False
        self._evicted -= 1
        self._put(shelf, self._sender_of(record), record, oldest=True)
        self._evict()
        return True

    def drop(self, partition: PartitionEpoch, offset: int) -> None:
        """Its request was answered, or had never been one. One of an assignment that is gone has left already."""
        shelf = self._shelves.get(partition)
        if shelf is None:
            return
        kept = shelf.kept.pop(offset, None)
        if kept is not None:
            self._let_go(kept)
        elif shelf.evicted.discard(offset):
            self._evicted -= 1
        if not shelf.kept and not shelf.evicted:
            del self._shelves[partition]

    def revoke(self, partition: PartitionEpoch) -> None:
        """It is another worker's now: nothing of it is found any more. `sweep` lets go of the memory."""
        shelf = self._shelves.pop(partition, None)
        if shelf is not None:
            self._evicted -= len(shelf.evicted)
            self._leaving.append(shelf.kept)

    def sweep(self, most: int) -> bool:
        """Let go of so many payloads of partitions that are gone. Whether there is more."""
        while self._leaving and most:
            kept = self._leaving[0]
            if kept:
                self._let_go(kept.popitem()[1])
                most -= 1
            else:
                self._leaving.popleft()
        return bool(self._leaving)

    # --- reading --------------------------------------------------------------------------------------------------

    def find(self, arrival: Arrival) -> InboundRecord | None:
        """None: it is not in memory. From any thread: each look is one act under the interpreter's lock."""
        shelf = self._shelves.get(arrival.assignment)
        kept = None if shelf is None else shelf.kept.get(arrival.id.offset)
        return None if kept is None else kept.record

    def misses(self, partition: PartitionEpoch, offset: int) -> bool:
        """Whether a request waits whose payload was evicted."""
        shelf = self._shelves.get(partition)
        return shelf is not None and offset in shelf.evicted

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    def statistics(self) -> PayloadStatistics:
        return PayloadStatistics(self._bytes, self._max_bytes, self._resident, self._evicted, self._evictions)

    def check_integrity(self) -> None:
        """Assert that shelves and counts agree, and that the budget holds. Linear in the rows."""
        shelves = list(self._shelves.values())
        kept = [each for shelf in shelves for each in shelf.kept.values()]
        kept += [each for left in self._leaving for each in left.values()]
        assert len(kept) == self._resident, f"{len(kept)} payloads are kept, counted {self._resident}"
        assert sum(each.size for each in kept) == self._bytes, "the bytes don't add up"
        assert sum(len(shelf.evicted) for shelf in shelves) == self._evicted, "the evicted don't add up"
        assert self._bytes <= self._max_bytes, f"{self._bytes} bytes of {self._max_bytes}"
        for shelf in shelves:
            assert shelf.kept.keys().isdisjoint(shelf.evicted), "a payload is kept and evicted"
        assert all(shelf.kept or shelf.evicted for shelf in self._shelves.values()), "an empty shelf is remembered"

    # --- the budget -----------------------------------------------------------------------------------------------

    def _put(self, shelf: _Shelf, sender: Sender, record: InboundRecord, *, oldest: bool) -> None:
        kept = shelf.kept[record.id.offset] = _Kept(shelf, sender, record, record_size(record))
        self._order.add(*sender, kept, kept.size, oldest=oldest)
        self._bytes += kept.size
        self._resident += 1

    def _let_go(self, kept: _Kept) -> None:
        self._order.remove(*kept.sender, kept)
        self._bytes -= kept.size
        self._resident -= 1

    def _evict(self) -> None:
        while self._bytes > self._max_bytes:
            if self._leaving:
                self.sweep(1)
                continue
            kept = self._order.first()
            self._let_go(kept)
            shelf, offset = kept.shelf, kept.record.id.offset
            # In this order: whoever looks from another thread finds it in neither place, and has it read again.
            del shelf.kept[offset]
            shelf.evicted.add(offset)
            self._evicted += 1
            self._evictions += 1
