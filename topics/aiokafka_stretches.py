"""A fetched log in stretches of records as aiokafka's C code decoded them, for who reads a whole job at once.

Knows aiokafka's insides as far as handing its records on as they are needs. Does not know who reads them
(`topics.partition_reader`).

aiokafka makes a `ConsumerRecord` of each record and takes each through two generators and a loop: more time than it
takes to decode them. A consumer that is opened with `IN_STRETCHES` as its `value_deserializer` gives lists instead,
each of the records of one or more whole batches; of `getmany`, `max_records` then counts lists. What is aborted or a
marker is passed over by aiokafka's own rules.

`aiokafka.consumer.fetcher` looks `PartitionRecords` up as a global: `install` puts a choice there, for every consumer
of the process. Others than those that ask for stretches get aiokafka's own.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import aiokafka.consumer.fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException

from topics.aiokafka_records import decoded_records

__all__ = ["IN_STRETCHES", "LoggedRecord", "install"]


class LoggedRecord(Protocol):
    """A record as it was decoded; it knows its offset, and not of which partition."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...


def IN_STRETCHES(value: bytes) -> bytes:
    """Asks for stretches, given as a consumer's `value_deserializer`. A mark: it is never called."""
    raise AssertionError("a consumer that gives stretches deserialises nothing")


def install() -> None:
    """Let consumers of this process ask for stretches. Idempotent."""
    aiokafka.consumer.fetcher.PartitionRecords = _partition_records


def _partition_records(*arguments: Any) -> Any:
    """In the place of `PartitionRecords`, as the fetcher calls it: the value's deserialiser is the sixth argument."""
    return (_Stretches if arguments[5] is IN_STRETCHES else PartitionRecords)(*arguments)


class _Stretches(PartitionRecords):  # type: ignore[misc] # aiokafka is untyped
    """What one fetch brought of one partition: an iterator of lists of records."""

    next_fetch_offset: int
    enough = 1_000
    """A stretch ends behind the batch that brings so many: a batch of the log has one record or some thousand."""

    def _unpack_records(self) -> Iterator[list[LoggedRecord]]:
        # `next_fetch_offset` is where the consumer stands when it has had what was yielded so far: it moves with each
        # stretch, so that an error in a batch takes nothing of an earlier one along.
        wanted = self.next_fetch_offset
        records = self._records
        stretch: list[LoggedRecord] = []
        end = wanted
        while records.has_next():
            batch = records.next_batch()
            if self._check_crcs and not batch.validate_crc():
                raise CorruptRecordException(f"Invalid CRC - {self._tp}")
            if not self._is_void(batch):
                decoded = decoded_records(batch)
                # A read begins with the whole batch in which it was asked to begin.
                stretch += decoded if batch.base_offset >= wanted else [one for one in decoded if one.offset >= wanted]
            end = batch.next_offset
            if len(stretch) >= self.enough:
                self.next_fetch_offset = end
                yield stretch
                stretch = []
        self.next_fetch_offset = end
        if stretch:
            yield stretch

    def _is_void(self, batch: Any) -> bool:
        """Whether it is a marker, or of a transaction that was aborted and must not be read."""
        if self._isolation_level == READ_COMMITTED and batch.producer_id is not None:
            self._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in self._aborted_producers:
                return True
        return bool(batch.is_control_batch)
