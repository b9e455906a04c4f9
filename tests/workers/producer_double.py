"""What doubles of Kafka producers have in common in unit tests: room, and acknowledgements when they are told to."""

import asyncio

from topics.record import RecordId

__all__ = ["ProducerDouble"]


class ProducerDouble:
    """Acknowledges what it is given at once; or, while `acknowledges` is false, when `acknowledge` is called."""

    def __init__(self, topic: str) -> None:
        self._place = RecordId(topic, 0, 0)
        self.open: list[asyncio.Future[RecordId]] = []
        self.acknowledges = True
        self.room = asyncio.Event()
        self.room.set()

    @property
    def has_room(self) -> bool:
        return self.room.is_set()

    async def wait_for_room(self) -> None:
        await self.room.wait()

    def take(self, count: int) -> list[asyncio.Future[RecordId]]:
        """The acknowledgements of so many records."""
        futures = [asyncio.get_running_loop().create_future() for _ in range(count)]
        self.open += futures
        if self.acknowledges:
            self.acknowledge()
        return futures

    def acknowledge(self) -> None:
        for future in self.open:
            future.set_result(self._place)
        self.open.clear()
