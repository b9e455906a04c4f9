"""The two producers of a worker: deltas as they come, and terminal replies that are waited for.

Knows what each promises and how much it may hold. Does not know how a record is delivered (`topics.record_producer`)
or what it says (`topics.replies`).

Deltas and terminal replies never share a producer: a stream's next words must not wait for anyone's final, and one
class's finals must not wait for another's, hence one `ReplyProducer` a class.
"""

import asyncio
from collections.abc import Sequence

from topics.kafka_settings import KafkaSettings
from topics.record import RecordId
from topics.record_producer import ProducerStatistics, RecordProducer, RecordRefusedError
from topics.replies import OutboundRecord

__all__ = ["DeltaProducer", "ReplyProducer"]


class DeltaProducer:
    """Deltas, in order, without waiting. `send` never blocks; while `has_room` is false, coalesce instead.

    No linger: the first words of a stream are what its reader waits for, and while one request to the broker is under
    way aiokafka batches whatever else comes.
    """

    def __init__(self, settings: KafkaSettings, *, max_in_flight_bytes: int = 8 * 2**20) -> None:
        self._records = RecordProducer(
            settings, "deltas", max_in_flight_bytes=max_in_flight_bytes, max_record_bytes=1_000_000
        )

    async def start(self) -> None:
        """Raises `KafkaUnavailableError`."""
        await self._records.start()

    async def stop(self, grace_s: float = 10.0) -> None:
        """Deliver what is in flight within `grace_s`; the rest fails with `ProducerStoppedError`."""
        await self._records.stop(grace_s)

    @property
    def has_room(self) -> bool:
        return self._records.has_room

    async def wait_for_room(self) -> None:
        await self._records.wait_for_room()

    def send(self, delta: OutboundRecord) -> asyncio.Future[RecordId]:
        """The future resolves when a broker has the delta, with where it stands, and may be dropped.

        It fails with `RecordRefusedError` or `ProducerStoppedError`. Raises `ProducerFullError` without room,
        `ProducerStoppedError` after `stop`.
        """
        return self._records.submit(delta)

    def statistics(self) -> ProducerStatistics:
        return self._records.statistics()


class ReplyProducer:
    """Terminal replies of one class, each acknowledged, without transactions.

    While brokers are away the caller waits; nothing is buffered beyond `max_in_flight_bytes`.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        label: str,
        *,
        max_in_flight_bytes: int = 32 * 2**20,
        max_record_bytes: int = 8 * 2**20,
    ) -> None:
        """`label`: the class's (`p0` …), to name the connection."""
        self._records = RecordProducer(
            settings,
            f"replies-{label}",
            max_in_flight_bytes=max_in_flight_bytes,
            max_record_bytes=max_record_bytes,
        )

    async def start(self) -> None:
        await self._records.start()

    async def stop(self, grace_s: float = 10.0) -> None:
        await self._records.stop(grace_s)

    async def send_terminal(self, reply: OutboundRecord) -> None:
        """Return when a broker has the reply.

        Cancelling stops the waiting, not the delivery. Raises `RecordRefusedError`, `ProducerStoppedError`.
        """
        while not self._records.has_room:
            await self._records.wait_for_room()
        await self._records.submit(reply)

    async def send_terminals(self, replies: Sequence[OutboundRecord]) -> list[RecordRefusedError | None]:
        """Send together, so that they share requests to the broker. Raises `ProducerStoppedError`."""
        acknowledgements: list[asyncio.Future[RecordId]] = []
        for reply in replies:
            while not self._records.has_room:
                await self._records.wait_for_room()
            acknowledgements.append(self._records.submit(reply))
        outcomes: list[RecordRefusedError | None] = []
        for acknowledgement in acknowledgements:
            try:
                await acknowledgement
            except RecordRefusedError as refusal:
                outcomes.append(refusal)
            else:
                outcomes.append(None)
        return outcomes

    def statistics(self) -> ProducerStatistics:
        return self._records.statistics()
