"""Pieces of what is handed out: bounded by number and by bytes, in order, without loss."""

import pytest

from topics.hand_out import hand_outs
from topics.record import InboundRecord, RecordId


def records(*sizes: int) -> list[InboundRecord]:
    return [InboundRecord(RecordId("t", 0, at), 0, None, bytes(size), ()) for at, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "pieces"),
    [
        ([], []),
        ([1, 1, 1], [[0, 1, 2]]),
        ([1] * 7, [[0, 1, 2], [3, 4, 5], [6]]),
        ([6, 4, 1], [[0, 1], [2]]),
        ([11, 1, 11, 11], [[0], [1], [2], [3]]),
        ([0, 0, 10, 0], [[0, 1, 2], [3]]),
    ],
)
def test_pieces_of_at_most_three_records_and_ten_bytes(sizes: list[int], pieces: list[list[int]]) -> None:
    found = hand_outs(records(*sizes), max_records=3, max_bytes=10)
    assert [[record.id.offset for record in piece] for piece in found] == pieces


def test_headers_and_key_count() -> None:
    record = InboundRecord(RecordId("t", 0, 0), 0, b"key", None, (("name", b"value"),))
    assert record.size_bytes == 3 + 4 + 5
