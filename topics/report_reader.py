"""Reading workers' reports, the latest and each that comes: `async with ReportReader(…) as reader`, `async for report`.

Knows the one partition of the topic for reports. Does not know what is made of them (`workers.telemetry.top_figures`).
A report that can't be read, of another version or not a worker's at all, is skipped and counted.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from topics.admin import AdminError, KafkaAdmin
from topics.aiokafka_producer import KafkaUnavailableError
from topics.client import TopicMissingError
from topics.kafka_settings import KafkaSettings
from topics.partition_reader import PartitionReader
from topics.worker_reports import WorkerReport

__all__ = ["ReportReader"]

_LOOK_EVERY_S = 0.25

logger = logging.getLogger(__name__)


class ReportReader:
    def __init__(self, kafka: KafkaSettings, topic: str, *, history_s: float) -> None:
        """`history_s`: what was reported so long ago, or since, comes first."""
        self._kafka = kafka
        self._topic = topic
        self._history_s = history_s
        self._reader = PartitionReader(kafka, topic, 0, read_committed=False)
        self._exit = AsyncExitStack()
        self.unreadable = 0

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError`, `TopicMissingError`."""
        async with KafkaAdmin(self._kafka) as admin:
            try:
                topics = (await admin.cluster()).topics
            except AdminError as error:
                raise KafkaUnavailableError(self._kafka, error) from error
        if self._topic not in topics:
            raise TopicMissingError(self._topic)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._reader)
            await self._reader.seek_time(round(1000 * (time.time() - self._history_s)))
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    async def __aiter__(self) -> AsyncIterator[WorkerReport]:
        """For ever. Raises `KafkaUnavailableError`."""
        while True:
            async for records in self._reader.read_to_end():
                for record in records:
                    try:
                        report = WorkerReport.model_validate_json(record.value or b"")
                    except ValidationError as error:
                        self.unreadable += 1
                        logger.warning("a report on %s can't be read: %d problems", self._topic, error.error_count())
                    else:
                        yield report
            await asyncio.sleep(_LOOK_EVERY_S)
