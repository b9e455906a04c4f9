"""Reading stretches of a topic's partitions, without a group, again and again over one connection.

Knows offsets and times as places in a log. Does not know what records say: who reads takes them one by one. Records of
open and of aborted transactions are read like all others (`topics.partition_reader` is for those who mind).

A reader is used by one at a time; whoever comes meanwhile waits. Everything has a deadline, and a stretch that is too
long is refused before it is read.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from topics.aiokafka_consumer import close_consumer, inbound_record, open_consumer
from topics.aiokafka_producer import KafkaUnavailableError
from topics.kafka_settings import KafkaSettings
from topics.record import InboundRecord

__all__ = ["LogReader", "Stretch", "StretchTooLongError"]

_MAX_RECORDS = 1_000
_POLL_MS = 100
_CLOSE_TIMEOUT_S = 2.0


class StretchTooLongError(Exception):
    """More stands there than the reader may read."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Of one partition: from `since_ms` (None: the oldest record) to before `end` (None: as it is now)."""

    since_ms: int | None = None
    end: int | None = None


class LogReader:
    """Owned by one event loop. Connects on first use, and again after a failure."""

    def __init__(self, settings: KafkaSettings, role: str, *, timeout_s: float = 10.0) -> None:
        """`timeout_s`: of one call."""
        self._settings = settings
        self._role = role
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._consumer: Any = None

    async def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_consumer(consumer, timeout_s=_CLOSE_TIMEOUT_S)

    async def read(
        self,
        topic: str,
        stretches: Mapping[int, Stretch],
        take: Callable[[InboundRecord], None],
        *,
        max_offsets: int | None = None,
    ) -> None:
        """Give every record of the stretches (by partition) to `take`, in the order of each partition.

        Raises `StretchTooLongError` if they cover more than `max_offsets`, `KafkaUnavailableError`.
        """
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._read(topic, stretches, take, max_offsets)
            except (KafkaError, TimeoutError) as error:
                await self.close()
                raise KafkaUnavailableError(self._settings, error) from error
            except BaseException:
                await self.close()
                raise

    async def partitions(self, topic: str) -> int:
        """How many the topic has. Raises `KafkaUnavailableError`."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_s):
                    consumer = await self._connected()
                    return len(await consumer._client._wait_on_metadata(topic))
            except (KafkaError, TimeoutError) as error:
                await self.close()
                raise KafkaUnavailableError(self._settings, error) from error

    async def length(self, topic: str, since_ms: int) -> int:
        """Offsets of all partitions since then; transaction markers count too. Raises `KafkaUnavailableError`."""
        wanted = {TopicPartition(topic, each): Stretch(since_ms) for each in range(await self.partitions(topic))}
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_s):
                    consumer = await self._connected()
                    begins, ends = await _begins(consumer, wanted), await _ends(consumer, wanted)
            except (KafkaError, TimeoutError) as error:
                await self.close()
                raise KafkaUnavailableError(self._settings, error) from error
        return sum(ends[place] - begins[place] for place in wanted)

    async def _connected(self) -> Any:
        if self._consumer is None:
            self._consumer = await open_consumer(
                self._settings,
                self._role,
                timeout_s=self._timeout_s,
                group_id=None,
                fetch_max_wait_ms=_POLL_MS,
                max_partition_fetch_bytes=4 * 2**20,
            )
        return self._consumer

    async def _read(
        self,
        topic: str,
        stretches: Mapping[int, Stretch],
        take: Callable[[InboundRecord], None],
        max_offsets: int | None,
    ) -> None:
        consumer = await self._connected()
        wanted = {TopicPartition(topic, partition): stretch for partition, stretch in stretches.items()}
        begins = await _begins(consumer, wanted)
        ends = await _ends(consumer, wanted)
        left = {place for place in wanted if begins[place] < ends[place]}
        length = sum(ends[place] - begins[place] for place in left)
        if max_offsets is not None and length > max_offsets:
            raise StretchTooLongError(f"{length} offsets of {topic} would have to be read, the limit is {max_offsets}")
        if not left:
            return
        consumer.assign(list(left))
        for place in left:
            consumer.seek(place, begins[place])
        try:
            while left:
                batches = await consumer.getmany(*left, timeout_ms=_POLL_MS, max_records=_MAX_RECORDS)
                for place, records in batches.items():
                    for record in records:
                        if record.offset < ends[place]:
                            take(inbound_record(record))
                for place in list(left):
                    # Behind gaps and transaction markers too, which are no records.
                    if await consumer.position(place) >= ends[place]:
                        consumer.pause(place)
                        left.discard(place)
                # The records may all have been at hand: let the loop have its turn.
                await asyncio.sleep(0)
        finally:
            consumer.unsubscribe()


async def _begins(consumer: Any, wanted: Mapping[TopicPartition, Stretch]) -> dict[TopicPartition, int]:
    begins = dict(await consumer.beginning_offsets(list(wanted)))
    times = {place: stretch.since_ms for place, stretch in wanted.items() if stretch.since_ms is not None}
    if times:
        found: Mapping[TopicPartition, Any] = await consumer.offsets_for_times(times)
        late = _without_answer(times, found)
        ends = await consumer.end_offsets(late) if late else {}
        # Nothing is as late as that: the stretch is empty.
        begins |= {place: ends[place] if found.get(place) is None else found[place].offset for place in times}
    return begins


def _without_answer(times: Iterable[TopicPartition], found: Mapping[TopicPartition, Any]) -> list[TopicPartition]:
    return [place for place in times if found.get(place) is None]


async def _ends(consumer: Any, wanted: Mapping[TopicPartition, Stretch]) -> dict[TopicPartition, int]:
    ends = {place: stretch.end for place, stretch in wanted.items() if stretch.end is not None}
    unknown = [place for place in wanted if place not in ends]
    return ends | (dict(await consumer.end_offsets(unknown)) if unknown else {})
