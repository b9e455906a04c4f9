"""All replies that are in the middle, by the record of their request.

Knows which there are, whose partition they are of, and what their ended sequences count in the outbox. Does not know
what is said in them (`workers.answers.growing_reply`) or when a delta is due. Owned by the event loop.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator

from topics.assignment import PartitionEpoch
from topics.record import RecordId
from workers.answers.growing_reply import GrowingReply
from workers.answers.reply_stream import ReplyStream

__all__ = ["GrowingReplies"]


class GrowingReplies:
    """Bounded by what the engine has admitted."""

    def __init__(self, release: Callable[[int], None]) -> None:
        """`release`: so many bytes of endings will never be delivered."""
        self._release = release
        self._replies: dict[RecordId, GrowingReply] = {}
        self._fewer = asyncio.Event()

    def get(self, record: RecordId) -> GrowingReply | None:
        return self._replies.get(record)

    def add(self, reply: GrowingReply) -> None:
        self._replies[reply.arrival.id] = reply

    def of(self, topic: str, partition: int) -> list[GrowingReply]:
        return [reply for place, reply in self._replies.items() if (place.topic, place.partition) == (topic, partition)]

    def streams(self) -> Iterator[tuple[GrowingReply, ReplyStream]]:
        return ((reply, stream) for reply in self._replies.values() for stream in reply.streams.values())

    def forget(self, record: RecordId) -> None:
        """Its terminal reply is on its way, or it is another's to give."""
        self._replies.pop(record, None)
        self._fewer.set()

    def drop(self, records: Iterable[RecordId]) -> None:
        """They are another worker's now, or are run again. One that was dropped must not begin again in the middle: its
        final would lack the text before."""
        for record in records:
            reply = self._replies.pop(record, None)
            if reply is not None:
                self._release(reply.ended_bytes)
                reply.ended_bytes = 0
        self._fewer.set()

    async def wait_told(self, partitions: Collection[PartitionEpoch]) -> None:
        """Return when of these partitions none is in the middle of its answer."""
        while any(self.of(partition.topic, partition.partition) for partition in partitions):
            self._fewer.clear()
            await self._fewer.wait()
