"""A log in stretches has the records that aiokafka's own reading of it has, wherever it begins."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from topics.aiokafka_records import _ReadableRecords
from topics.aiokafka_stretches import IN_STRETCHES, _Stretches

_CONTROL_BIT = 0x20
_ATTRIBUTES_AT, _CRC_AT, _CHECKED_FROM = 21, 17, 21


class Stretches(_Stretches):
    """Short ones."""

    enough = 3


@dataclass(frozen=True)
class Batch:
    producer: int | None
    """Of a transaction; None: of none."""
    records: int
    ends: bool | None = None
    """A marker: whether it commits what the producer wrote."""


BATCHES = st.lists(
    st.builds(Batch, st.none() | st.integers(1, 2), st.integers(1, 4))
    | st.builds(Batch, st.integers(1, 2), st.just(1), st.booleans()),
    max_size=12,
)


def batch_bytes(batch: Batch, offset: int) -> bytes:
    builder = _DefaultRecordBatchBuilderPy(
        magic=2,
        compression_type=0,
        is_transactional=int(batch.producer is not None),
        producer_id=-1 if batch.producer is None else batch.producer,
        producer_epoch=0,
        base_sequence=0,
        batch_size=2**16,
    )
    for place in range(batch.records):
        key = b"k" if batch.ends is None else struct.pack(">hh", 0, batch.ends)
        builder.append(place, 1_000 + place, key, b"value", [("name", b"%d" % (offset + place)), ("empty", None)])
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, offset)
    if batch.ends is not None:
        (attributes,) = struct.unpack_from(">h", data, _ATTRIBUTES_AT)
        struct.pack_into(">h", data, _ATTRIBUTES_AT, attributes | _CONTROL_BIT)
        struct.pack_into(">I", data, _CRC_AT, calc_crc32c(bytes(data[_CHECKED_FROM:])))
    return bytes(data)


def log(batches: Sequence[Batch], start: int = 0) -> tuple[bytes, list[tuple[int, int]]]:
    """What a fetch at `start` brings, from the batch on that holds it; and the transactions that were aborted: producer
    and first offset.
    """
    data, aborted, offset = b"", [], 0
    begun: dict[int | None, int] = {}
    for batch in batches:
        if offset + batch.records > start:
            data += batch_bytes(batch, offset)
        if batch.ends is None:
            begun.setdefault(batch.producer, offset)
        elif (first := begun.pop(batch.producer, None)) is not None and not batch.ends:
            assert batch.producer is not None
            aborted.append((batch.producer, first))
        offset += batch.records
    return data, aborted


@given(batches=BATCHES, start=st.integers(0, 20), isolation=st.sampled_from([READ_COMMITTED, READ_UNCOMMITTED]))
def test_the_same_records_as_one_by_one(batches: list[Batch], start: int, isolation: int) -> None:
    data, aborted = log(batches, start)
    place = TopicPartition("t", 0)
    theirs = PartitionRecords(place, _ReadableRecords(data), aborted, start, None, None, True, isolation)
    expected = [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in theirs]
    ours = Stretches(place, _ReadableRecords(data), aborted, start, None, IN_STRETCHES, True, isolation)
    found = []
    for stretch in ours:
        assert stretch
        found += [(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in stretch]
        assert found[-1][0] < ours.next_fetch_offset
        assert all(offset < ours.next_fetch_offset for offset, *_ in found)
        assert expected[len(found) :] == [one for one in expected if one[0] >= ours.next_fetch_offset]
    assert found == expected
    # Where nothing is left aiokafka stands behind the last batch, as if it had been read.
    assert ours.next_fetch_offset == theirs.next_fetch_offset


def test_a_corrupt_batch_takes_nothing_of_the_stretches_before_it_along() -> None:
    data, _ = log([Batch(None, 3), Batch(None, 1), Batch(None, 1)])
    corrupt = data[:-1] + bytes([data[-1] ^ 1])
    records = Stretches(TopicPartition("t", 0), _ReadableRecords(corrupt), [], 0, None, IN_STRETCHES, True, 0)
    assert [record.offset for record in next(records)] == [0, 1, 2]
    with pytest.raises(CorruptRecordException):
        next(records)
    assert records.next_fetch_offset == 3
