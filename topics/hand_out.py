"""In what pieces records are handed out.

Knows sizes. Does not know to whom they go (`topics.consumer`). Pure and synchronous.

Whoever takes records parses them on the event loop, which serves nobody else meanwhile: so a piece is bounded by bytes
as well as by number.
"""

from collections.abc import Iterable, Iterator

from topics.record import InboundRecord

__all__ = ["hand_outs"]


def hand_outs(records: Iterable[InboundRecord], max_records: int, max_bytes: int) -> Iterator[list[InboundRecord]]:
    """The records in their order, in pieces of at most so many and at most so large; a larger one comes alone."""
    piece: list[InboundRecord] = []
    size_bytes = 0
    for record in records:
        if piece and (len(piece) == max_records or size_bytes + record.size_bytes > max_bytes):
            yield piece
            piece, size_bytes = [], 0
        piece.append(record)
        size_bytes += record.size_bytes
    if piece:
        yield piece
