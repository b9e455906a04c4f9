"""Batches that aiokafka can't decode, read as its fetcher reads them."""

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords

from tests.topics.raw_batches import RawName, raw_batch
from topics.aiokafka_records import _ReadableRecords

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
GOOD = (b"k", b"v" * 300, [("name", b"value"), ("empty", None)])
BAD = (None, None, [("before", b"1"), (RawName(b"t\xffnant"), b"\x00"), ("after", b"")])


def read(data: bytes) -> list[tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    records = _ReadableRecords(data)
    found = []
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        for record in batch:
            place = (record.offset, record.timestamp, record.timestamp_type)
            found.append((*place, record.key, record.value, record.headers))
    return found


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_name_that_is_not_utf_8_is_escaped_and_nothing_else_is_changed(codec: int) -> None:
    data = raw_batch([GOOD, GOOD, BAD, GOOD], codec=codec)
    with pytest.raises((UnicodeDecodeError, CorruptRecordException)):
        list(MemoryRecords(data).next_batch())
    records = read(data)
    assert [record[:3] for record in records] == [(0, 1000, 0), (1, 1001, 0), (2, 1002, 0), (3, 1003, 0)]
    assert [record[3:] for record in records if record[0] != 2] == [GOOD] * 3
    assert records[2][3:] == (None, None, [("before", b"1"), (r"t\xffnant", b"\x00"), ("after", b"")])


def test_batches_behind_the_bad_one_are_read_too() -> None:
    good = raw_batch([GOOD, GOOD])
    assert [record[0] for record in read(good + raw_batch([BAD]) + good)] == [0, 1, 0, 0, 1]


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    whole = raw_batch([BAD])
    records = _ReadableRecords(whole + whole[:-1])
    records.next_batch()
    assert not records.has_next()
    assert records.size_in_bytes() == 2 * len(whole) - 1


def test_what_the_fetcher_asks_of_a_batch_is_as_aiokafka_says() -> None:
    data = raw_batch([GOOD, BAD])
    ours, theirs = _ReadableRecords(data).next_batch(), MemoryRecords(data).next_batch()
    assert ours.validate_crc()
    for name in ("base_offset", "next_offset", "producer_id", "is_control_batch", "is_transactional"):
        assert getattr(ours, name) == getattr(theirs, name)
