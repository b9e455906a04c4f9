"""Terminal replies and what comes of them: the seam between a worker and its guarantee of delivery.

Knows a reply, the record that it answers, and the outcomes. Does not know Kafka. Two implementations:
`AtLeastOnceReplies` here, and `topics.transactional_replies`, the default.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from topics.assignment import PartitionEpoch
from topics.known_topics import RecordRefusedError
from topics.offsets import OffsetRefusal
from topics.producer import ReplyProducer
from topics.record_producer import ProducerStatistics
from topics.replies import OutboundRecord

__all__ = ["AtLeastOnceReplies", "Fate", "Outcome", "TerminalReplies", "TerminalReply"]


@dataclass(frozen=True, slots=True)
class TerminalReply:
    """A final, an error or a dead letter, and the record whose end it is."""

    record: OutboundRecord
    partition: PartitionEpoch
    """Of the request, and the assignment under which it came."""
    offset: int
    beside: tuple[OutboundRecord, ...] = ()
    """What stands or falls with it: the tombstone of its progress, a dead letter. To topics of our own."""

    @property
    def records(self) -> tuple[OutboundRecord, ...]:
        return (*self.beside, self.record)


class Fate(Enum):
    DELIVERED = "delivered"
    """It is on the broker, and its request counts as complete."""
    LOST = "lost"
    """The request's partition is another assignment's now: whoever owns it answers. It may have been delivered."""
    UNDELIVERED = "undelivered"
    """The same, and it certainly was not: no transaction held it, or that one is aborted."""


Outcome = Fate | RecordRefusedError
"""A refusal is of this one record, however often it were sent: another may take its place."""


class TerminalReplies(Protocol):
    """How the terminal replies of one class leave, whatever the guarantee behind it is."""

    async def start(self) -> None:
        """Raises `KafkaUnavailableError`."""

    async def stop(self, grace_s: float = 10.0) -> None:
        """Deliver what is in flight within `grace_s`."""

    async def deliver(self, replies: Sequence[TerminalReply]) -> list[Outcome]:
        """The outcome of each, in their order. While brokers are away the caller waits.

        Raises `ProducerStoppedError`.
        """

    async def settle(self) -> None:
        """Return when nothing is half delivered: before partitions are given back."""

    def statistics(self) -> ProducerStatistics:
        """Of the records under way."""


class AtLeastOnceReplies:
    """A reply is acknowledged, then its request counts as complete. What a crash comes between is answered again."""

    def __init__(
        self, producer: ReplyProducer, complete: Callable[[PartitionEpoch, int], OffsetRefusal | None]
    ) -> None:
        self._producer = producer
        self._complete = complete

    async def start(self) -> None:
        await self._producer.start()

    async def stop(self, grace_s: float = 10.0) -> None:
        await self._producer.stop(grace_s)

    async def deliver(self, replies: Sequence[TerminalReply]) -> list[Outcome]:
        refused: dict[int, RecordRefusedError] = {}
        # Tombstones last: after a crash between the two the attempt must still be known.
        for last in (False, True):
            due = [
                (place, record)
                for place, reply in enumerate(replies)
                for record in reply.records
                if (record.value is None) is last
            ]
            answers = await self._producer.send_terminals([record for _, record in due])
            refused |= {place: answer for (place, _), answer in zip(due, answers, strict=True) if answer is not None}
        outcomes: list[Outcome] = []
        for place, reply in enumerate(replies):
            if place in refused:
                outcomes.append(refused[place])
            elif self._complete(reply.partition, reply.offset) is None:
                outcomes.append(Fate.DELIVERED)
            else:
                outcomes.append(Fate.LOST)
        return outcomes

    async def settle(self) -> None:
        return

    def statistics(self) -> ProducerStatistics:
        return self._producer.statistics()
