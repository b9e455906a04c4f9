"""Reading one partition from any offset up to its end, without a group.

Knows one partition of a topic. Does not know what its records say. Raw aiokafka objects stay inside.

With `read_committed` the end is the last stable offset: what an open transaction holds back is not there yet.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from topics.aiokafka_consumer import close_consumer, log_range, open_consumer, record_at
from topics.aiokafka_producer import KafkaUnavailableError
from topics.aiokafka_stretches import IN_STRETCHES, LoggedRecord
from topics.kafka_settings import KafkaSettings
from topics.record import InboundRecord

__all__ = ["PartitionReader", "end_offsets"]

_POLL_MS = 100
_CLOSE_TIMEOUT_S = 5.0


async def end_offsets(
    settings: KafkaSettings,
    topic: str,
    partitions: Iterable[int],
    *,
    timeout_s: float = 15.0,
    isolation_level: str = "read_uncommitted",
) -> dict[int, int]:
    """Partition → the offset behind its last record; with `read_committed`, its last stable offset.

    Raises `KafkaUnavailableError`.
    """
    consumer = await open_consumer(
        settings, f"end-of-{topic}", timeout_s=timeout_s, group_id=None, isolation_level=isolation_level
    )
    try:
        async with asyncio.timeout(timeout_s):
            ends = await consumer.end_offsets([TopicPartition(topic, partition) for partition in partitions])
    except (KafkaError, TimeoutError) as error:
        raise KafkaUnavailableError(settings, error) from error
    finally:
        await close_consumer(consumer, timeout_s=_CLOSE_TIMEOUT_S)
    return {place.partition: end for place, end in ends.items()}


class PartitionReader:
    """An async context manager; stands at the oldest record until `seek`."""

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        partition: int,
        *,
        read_committed: bool,
        timeout_s: float = 15.0,
    ) -> None:
        """The topic must exist. `timeout_s`: for a broker to answer any one question."""
        self._settings = settings
        self._partition = TopicPartition(topic, partition)
        self._isolation = "read_committed" if read_committed else "read_uncommitted"
        self._timeout_s = timeout_s
        self._consumer: Any = None
        self.position = 0
        """The offset of the next record that is read."""

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError`."""
        self._consumer = await open_consumer(
            self._settings,
            f"read-{self._partition.topic}",
            timeout_s=self._timeout_s,
            group_id=None,
            isolation_level=self._isolation,
            fetch_max_wait_ms=_POLL_MS,
            max_partition_fetch_bytes=4 * 2**20,
            value_deserializer=IN_STRETCHES,
        )
        try:
            first, _ = await log_range(self._consumer, self._partition, timeout_s=self._timeout_s)
            self._consumer.assign([self._partition])
            # Only fetched from while somebody reads: a question must not wait behind an idle fetch.
            self._consumer.pause(self._partition)
            self._stand_at(first)
        except (KafkaError, TimeoutError) as error:
            await self._close()
            raise KafkaUnavailableError(self._settings, error) from error
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        await close_consumer(self._consumer, timeout_s=_CLOSE_TIMEOUT_S)

    async def seek(self, offset: int) -> int:
        """Stand at `offset`, or at the oldest record where that is newer. Returns where it stands.

        Raises `KafkaUnavailableError`.
        """
        first, _ = await self._range()
        self._stand_at(max(offset, first))
        return self.position

    async def seek_time(self, since_ms: int) -> int:
        """Stand at the first record with this time stamp or a later one, at the end if there is none.

        Milliseconds since the epoch. Returns where it stands. Raises `KafkaUnavailableError`.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._consumer.offsets_for_times({self._partition: since_ms})
        except (KafkaError, TimeoutError) as error:
            raise KafkaUnavailableError(self._settings, error) from error
        place = found.get(self._partition)
        self._stand_at(await self.end() if place is None else place.offset)
        return self.position

    def _stand_at(self, offset: int) -> None:
        self.position = offset
        self._consumer.seek(self._partition, offset)

    async def end(self) -> int:
        """The offset behind the last record that can be read now. Raises `KafkaUnavailableError`."""
        return (await self._range())[1]

    async def _range(self) -> tuple[int, int]:
        try:
            return await log_range(self._consumer, self._partition, timeout_s=self._timeout_s)
        except (KafkaError, TimeoutError) as error:
            raise KafkaUnavailableError(self._settings, error) from error

    async def read_on(self) -> list[InboundRecord]:
        """What is new at the position; none if nothing comes within a tenth of a second. Keep asking.

        Raises `KafkaUnavailableError`; the position is then as it was.
        """
        self._consumer.resume(self._partition)
        return self._inbound(await self._poll())

    async def read_to_end(self, end: int | None = None) -> AsyncIterator[list[InboundRecord]]:
        """What stands between the position and `end`, in order. Records behind it may come with the last of these.

        `end`: what `end()` gave; as it is now where absent. Raises `KafkaUnavailableError` when a broker doesn't answer
        for `timeout_s`.
        """
        async with aclosing(self.scan_to_end(await self.end() if end is None else end)) as stretches:
            async for records in stretches:
                yield self._inbound(records)

    async def scan_to_end(self, end: int) -> AsyncGenerator[Sequence[LoggedRecord], None]:
        """`read_to_end`, with the records as they were decoded: for readers of so many that making them anew tells."""
        loop = asyncio.get_running_loop()
        heard_s = loop.time()
        self._consumer.resume(self._partition)
        try:
            while self.position < end:
                records = await self._poll()
                if records:
                    heard_s = loop.time()
                    yield records
                elif loop.time() > heard_s + self._timeout_s:
                    silence = TimeoutError(f"{self._partition} was silent at {self.position}, its end is {end}")
                    raise KafkaUnavailableError(self._settings, silence)
                # The records may all have been at hand: let the loop have its turn.
                await asyncio.sleep(0)
        finally:
            self._consumer.pause(self._partition)

    def _inbound(self, records: Iterable[LoggedRecord]) -> list[InboundRecord]:
        topic, partition = self._partition.topic, self._partition.partition
        return [record_at(topic, partition, record) for record in records]

    async def _poll(self) -> Sequence[LoggedRecord]:
        try:
            stretches = await self._consumer.getmany(timeout_ms=_POLL_MS, max_records=1)
            found: list[Sequence[LoggedRecord]] = stretches.get(self._partition, [()])
            # Behind gaps and transaction markers too, which are no records.
            self.position = await self._consumer.position(self._partition)
        except KafkaError as error:
            # What it had begun to hand out comes again.
            self._consumer.seek(self._partition, self.position)
            raise KafkaUnavailableError(self._settings, error) from error
        return found[0]
