"""Which terminal replies go together: answers first, and as many as a transaction takes within a bounded time.

Knows what is ready, how much a batch may hold, and how long the last ones took. Does not know where replies go, or what
becomes of them (`workers.answers.terminal_writer`). Time is an argument.

A reply that comes while a batch is delivered waits for its end, so a batch should be short; what a batch costs besides
its replies is the same for a few and for many, so it should be large. So its size follows the clock: it grows while
batches are full and quick, and shrinks while they are slow. Never below what even a broker far away should be given.

An order may end thousands at once. Their errors wait in a line of their own: a batch takes answers first, and errors
fill it; but a part of it is always theirs, so that they end in any case.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

from topics.replies import OutboundRecord

__all__ = ["Batched", "TerminalBatches"]

_FEWEST, _MOST = 256, 2_048
"""Replies."""
_MOST_BYTES = 4 * 2**20
_SHORT_S, _LONG_S = 0.04, 0.06
"""The batch grows below, and shrinks above: twice as long, and a bit, is the longest that a reply waits."""
_GROWS, _SHRINKS = 1.25, 0.8
_BULK_PART = 4
"""One in so many places is theirs that an order has ended."""


class Batched(Protocol):
    """What a batch is made of."""

    @property
    def in_bulk(self) -> bool:
        """It ended with perhaps thousands of others: it may wait behind answers."""

    @property
    def records(self) -> tuple[OutboundRecord, ...]:
        """That it takes."""


T = TypeVar("T", bound=Batched)


class TerminalBatches(Generic[T]):
    """Bounded by the residency: every reply in it holds the row of its record."""

    def __init__(self) -> None:
        self._answers: deque[T] = deque()
        self._bulk: deque[T] = deque()
        self._size = _FEWEST
        """Of the next batch, at most."""

    def __len__(self) -> int:
        return len(self._answers) + len(self._bulk)

    def put(self, reply: T) -> None:
        (self._bulk if reply.in_bulk else self._answers).append(reply)

    def take(self) -> list[T]:
        """The next batch; empty if nothing is ready."""
        room = self._size - min(len(self._bulk), self._size // _BULK_PART)
        batch: list[T] = []
        size_bytes = self._move(self._answers, room, batch, 0)
        self._move(self._bulk, self._size - len(batch), batch, size_bytes)
        return batch

    def delivered(self, replies: int, took_s: float) -> None:
        """So many were taken together, and that took so long."""
        if took_s > _LONG_S:
            self._size = max(_FEWEST, int(self._size * _SHRINKS))
        elif took_s < _SHORT_S and replies >= self._size:
            self._size = min(_MOST, int(self._size * _GROWS))

    @staticmethod
    def _move(line: deque[T], most: int, batch: list[T], size_bytes: int) -> int:
        """From the line into the batch. Returns the batch's bytes; one that is too large goes alone."""
        for _ in range(min(most, len(line))):
            more_bytes = sum(record.size_bytes for record in line[0].records)
            if batch and size_bytes + more_bytes > _MOST_BYTES:
                break
            size_bytes += more_bytes
            batch.append(line.popleft())
        return size_bytes
