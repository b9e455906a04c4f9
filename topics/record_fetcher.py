"""Records of a topic read once more by their offsets, without a group.

Knows offsets of records that were read before, and how few reads bring them. Does not know whose they are or what they
say: each record that is read is given to whoever asked, also those that stand beside the wanted ones, since a read
brings a stretch of the log in any case.

Never seeks the group's consumer, whose position is what the class reads next; reads what is committed, as that one
does. Not in the log any more is what retention or compaction removed: that is a value, and never taken for an outage.
Everything has a deadline; a reader is used by one at a time.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from topics.aiokafka_consumer import close_consumer, inbound_record, open_consumer
from topics.aiokafka_producer import KafkaUnavailableError
from topics.kafka_settings import KafkaSettings
from topics.record import InboundRecord, RecordId

__all__ = ["RecordFetcher"]

_POLL_MS = 100
_MAX_RECORDS = 500
"""Given to the taker without a break: the loop has its turn after so many."""
_READ_BYTES = 256 * 2**10
"""Of one read of one partition, a batch of the log at least: some hundred requests, a few milliseconds."""
_NEAR_OFFSETS = 500
"""Wanted records so near to one another are read in one stretch: seeking costs a round trip."""
_CLOSE_TIMEOUT_S = 2.0


class RecordFetcher:
    """Owned by one event loop. Connects on first use, and again after a failure."""

    def __init__(self, settings: KafkaSettings, role: str, topic: str, *, timeout_s: float = 10.0) -> None:
        """`timeout_s`: without getting on."""
        self._settings = settings
        self._role = role
        self._topic = topic
        self._timeout_s = timeout_s
        self._consumer: Any = None

    async def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_consumer(consumer, timeout_s=_CLOSE_TIMEOUT_S)

    async def fetch(
        self, wanted: Mapping[int, Collection[int]], take: Callable[[InboundRecord], None]
    ) -> list[RecordId]:
        """Give the records at these offsets (by partition) to `take`, and others that stand near them.

        Returns those that are not in the log any more. Raises `KafkaUnavailableError`: some may have been given.
        """
        try:
            async with asyncio.timeout(self._timeout_s) as deadline:
                return await self._fetch(wanted, take, deadline)
        except (KafkaError, TimeoutError) as error:
            await self.close()
            raise KafkaUnavailableError(self._settings, error) from error
        except BaseException:
            await self.close()
            raise

    async def _fetch(
        self,
        wanted: Mapping[int, Collection[int]],
        take: Callable[[InboundRecord], None],
        deadline: asyncio.Timeout,
    ) -> list[RecordId]:
        if self._consumer is None:
            self._consumer = await open_consumer(
                self._settings,
                self._role,
                timeout_s=self._timeout_s,
                group_id=None,
                isolation_level="read_committed",
                # What is asked for is there: nothing is waited for, and no read at the end of the log is in the way.
                fetch_max_wait_ms=1,
                max_partition_fetch_bytes=_READ_BYTES,
            )
        gone: list[RecordId] = []
        # One after the other: records of another partition that nobody takes yet would hold the next read back.
        for partition, offsets in wanted.items():
            at = TopicPartition(self._topic, partition)
            self._consumer.assign([at])
            try:
                lost = await self._read(self._consumer, at, sorted(offsets), take, deadline)
            finally:
                self._consumer.unsubscribe()
            gone += [RecordId(self._topic, partition, offset) for offset in lost]
        return gone

    async def _read(
        self,
        consumer: Any,
        at: TopicPartition,
        offsets: Sequence[int],
        take: Callable[[InboundRecord], None],
        deadline: asyncio.Timeout,
    ) -> list[int]:
        """Rising offsets of one partition. Those that are not there."""
        loop = asyncio.get_running_loop()
        gone: list[int] = []
        position, done, moved_s = offsets[0], 0, loop.time()
        consumer.seek(at, position)
        while done < len(offsets):
            before, (found, position) = position, await self._poll(consumer, at, position, take)
            if position > before:
                moved_s = loop.time()
                deadline.reschedule(moved_s + self._timeout_s)
            elif loop.time() > moved_s + self._timeout_s / 2 and await _ends_before(consumer, at, offsets[done]):
                position = offsets[-1] + 1
            passed = bisect_left(offsets, position, lo=done)
            gone += [offset for offset in offsets[done:passed] if offset not in found]
            done = passed
            if done < len(offsets) and offsets[done] - position > _NEAR_OFFSETS:
                position = offsets[done]
                consumer.seek(at, position)
            # The records may all have been at hand: let the loop have its turn.
            await asyncio.sleep(0)
        return gone

    async def _poll(
        self, consumer: Any, at: TopicPartition, position: int, take: Callable[[InboundRecord], None]
    ) -> tuple[Collection[int], int]:
        """The offsets of the records that came, and the position behind them."""
        try:
            batches = await consumer.getmany(at, timeout_ms=_POLL_MS, max_records=_MAX_RECORDS)
        except OffsetOutOfRangeError:
            # The log begins behind it; or ends before it, or seems to, while its leader changes.
            position = max(position, (await consumer.beginning_offsets([at]))[at])
            consumer.seek(at, position)
            return (), position
        found: set[int] = set()
        for record in batches.get(at, ()):
            found.add(record.offset)
            take(inbound_record(record))
        # Behind gaps and transaction markers too, which are no records.
        return found, await consumer.position(at)


async def _ends_before(consumer: Any, at: TopicPartition, offset: int) -> bool:
    """Whether the log has lost its end, or its topic was made anew."""
    return bool((await consumer.end_offsets([at]))[at] <= offset)
