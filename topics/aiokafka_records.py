"""Reading records whose header names are not UTF-8, which aiokafka can't.

Knows the record format of Kafka (magic 2) and aiokafka's insides as far as taking its batches apart needs. Does not
know consumers (`topics.aiokafka_consumer`) or what the records say.

A header's name is bytes on the wire and the broker lets any pass, but aiokafka decodes it strictly: the exception
comes out of `getmany`, the records before it in the same fetch are lost, and none behind it can be reached any more,
since a seek into a batch decodes the batch from its beginning. So whoever may write to a topic could end everyone who
reads it. Here a batch that aiokafka can't decode is decoded again, by this module, with what is not UTF-8 in a name
written as an escape (`\\xff`). Everything else of the record is as it was sent, so it is served or dead-lettered like
any other. (Java's consumer puts U+FFFD there, which would not tell the bytes.)

`aiokafka.consumer.fetcher` looks `MemoryRecords` up as a global: `install` puts ours there, for every consumer of the
process. Batches that aiokafka can decode are still decoded by it, in C.

Source of the format: Kafka's documentation, "Message format". Limit: the batch is held twice while it is read again.
"""

import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import aiokafka.consumer.fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import decode_varint

__all__ = ["decoded_records", "install"]

logger = logging.getLogger(__name__)

_LENGTH_AT = 8
"""In a batch: its length in four bytes, counted from behind them."""
_BODY_AT = 12
_MAGIC_AT = 16


def install() -> None:
    """Let every aiokafka consumer of this process read such records. Idempotent."""
    aiokafka.consumer.fetcher.MemoryRecords = _ReadableRecords


def decoded_records(batch: Any) -> list[Any]:
    """All records of a batch that `install`ed code has read, made at once."""
    return batch.decoded() if isinstance(batch, _ReadableBatch) else list(batch)


class _ReadableRecords:
    """What one fetch brought of one partition: aiokafka's `MemoryRecords`, with batches that can always be read."""

    def __init__(self, data: bytes) -> None:
        self._records = MemoryRecords(data)
        self._data = memoryview(data)
        self._at = 0

    def size_in_bytes(self) -> int:
        return int(self._records.size_in_bytes())

    def has_next(self) -> bool:
        return bool(self._records.has_next())

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        (length,) = struct.unpack_from(">i", self._data, self._at + _LENGTH_AT)
        data = self._data[self._at : self._at + _BODY_AT + length]
        self._at += len(data)
        # Older formats have no headers.
        return batch if data[_MAGIC_AT] < 2 else _ReadableBatch(batch, data)


class _ReadableBatch:
    """aiokafka's batch as its fetcher uses it."""

    def __init__(self, batch: Any, data: memoryview) -> None:
        self._batch = batch
        self._data = data
        self.base_offset: int = batch.base_offset
        self.next_offset: int = batch.next_offset
        self.producer_id: int = batch.producer_id
        self.is_control_batch: bool = batch.is_control_batch
        self.is_transactional: bool = batch.is_transactional

    def validate_crc(self) -> bool:
        return bool(self._batch.validate_crc())

    def __next__(self) -> Any:
        """The first record of a control batch."""
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        read = 0
        try:
            for record in self._batch:
                yield record
                read += 1
        except (UnicodeDecodeError, CorruptRecordException) as error:
            again = self._again(error)
        else:
            return
        yield from islice(again, read, None)

    def decoded(self) -> list[Any]:
        try:
            return list(self._batch)
        except (UnicodeDecodeError, CorruptRecordException) as error:
            return list(self._again(error))

    def _again(self, error: Exception) -> Iterator[Any]:
        """All records from the first one. Raises what is wrong with the batch if it isn't a header's name."""
        # Without its C extension, aiokafka says of a name that the record is corrupt.
        reason = error.__cause__ if isinstance(error, CorruptRecordException) else error
        if not isinstance(reason, UnicodeDecodeError):
            raise error
        logger.debug(
            "a record in the batch at offset %d has a header name that is no UTF-8: %s", self.base_offset, reason
        )
        return _decode(self._data)


@dataclass(frozen=True, slots=True)
class _Record:
    """What aiokafka's fetcher reads of a record."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    checksum: None = None


def _decode(data: memoryview) -> Iterator[_Record]:
    """The records of one batch. Its checksum is right, and the broker has looked at its structure."""
    batch = _DefaultRecordBatchPy(data)
    batch._maybe_uncompress()
    buffer, at = bytearray(batch._buffer), batch._pos
    for _ in range(batch._num_records):
        length, at = decode_varint(buffer, at)
        fields = _Fields(buffer, at)
        at += length
        fields.number()  # attributes: none are in use
        timestamp = batch.first_timestamp + fields.number()
        offset = batch.base_offset + fields.number()
        key, value = fields.data(), fields.data()
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(fields.number()):
            name = fields.data() or b""
            headers.append((name.decode(errors="backslashreplace"), fields.data()))
        if fields.at != at:
            raise CorruptRecordException(f"the record at offset {offset} is not as long as it says")
        appended = batch.timestamp_type == batch.LOG_APPEND_TIME
        yield _Record(offset, batch.max_timestamp if appended else timestamp, batch.timestamp_type, key, value, headers)


class _Fields:
    """Reads one record's fields in turn."""

    def __init__(self, buffer: bytearray, at: int) -> None:
        self._buffer = buffer
        self.at = at

    def number(self) -> int:
        number, self.at = decode_varint(self._buffer, self.at)
        return int(number)

    def data(self) -> bytes | None:
        """Bytes behind their length; −1 stands for none."""
        length = self.number()
        if length < 0:
            return None
        start, self.at = self.at, self.at + length
        return bytes(self._buffer[start : self.at])
