"""A compacted topic of one partition as a table: read whole, then what is new, and written to.

Knows the partition, its reader and its producer, which connects for the first record: most who read never write. Does
not know what the records mean (`topics.control_orders`, `topics.jobs.board`). Raw aiokafka objects stay in
`topics.partition_reader` and `topics.record_producer`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from topics.aiokafka_producer import KafkaUnavailableError
from topics.kafka_settings import KafkaSettings
from topics.partition_reader import PartitionReader
from topics.record import InboundRecord, RecordId
from topics.record_producer import RecordProducer
from topics.replies import OutboundRecord

__all__ = ["CompactedTopic"]

_WRITE_TIMEOUT_S = 20.0


class CompactedTopic:
    """An async context manager. Entering raises `KafkaUnavailableError`, also where the topic is not there."""

    def __init__(self, settings: KafkaSettings, topic: str, role: str) -> None:
        """`role`: of its producer, for the log."""
        self._settings = settings
        # What is written here is in no transaction, and nobody's open one may hold it up.
        self._reader = PartitionReader(settings, topic, 0, read_committed=False)
        self._producer = RecordProducer(settings, role)
        self._connecting = asyncio.Lock()
        self._connected = False
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._reader)
            stack.push_async_callback(self._producer.stop)
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    def news(self) -> AsyncIterator[Sequence[InboundRecord]]:
        """What was not read yet, up to the end as of now. Raises `KafkaUnavailableError`."""
        return self._reader.read_to_end()

    async def write(self, record: OutboundRecord) -> RecordId:
        """Return when a broker has it. Raises `KafkaUnavailableError`, `RecordRefusedError`."""
        async with self._connecting:
            if not self._connected:
                await self._producer.start()
                self._connected = True
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                while not self._producer.has_room:
                    await self._producer.wait_for_room()
                return await self._producer.submit(record)
        except TimeoutError as error:
            raise KafkaUnavailableError(self._settings, error) from error
