"""What a group's committed offset and metadata say of a partition.

Knows where a map of completed offsets may stand: in the metadata, or in a record that it points to. Does not know when
it is read (`topics.consumer`) or how it is encoded (`topics.offset_map`).

Metadata that can't be read is counted and warned of, and the partition begins at its base: what was completed beyond
runs again. A broker that doesn't answer is another matter: the map is there, so the partition waits for it.
"""

import asyncio
import logging

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from topics.aiokafka_consumer import close_consumer, open_consumer
from topics.aiokafka_fencing import CommittedOffset
from topics.aiokafka_producer import KafkaUnavailableError
from topics.assignment import Progress
from topics.kafka_settings import KafkaSettings
from topics.offset_map import MapPlace, UnreadableMapError, decode_map, map_in_text, map_place

__all__ = ["CommittedProgress"]

logger = logging.getLogger(__name__)


class CommittedProgress:
    """Reads commits of one group."""

    def __init__(self, settings: KafkaSettings, group: str, maps_topic: str | None, *, timeout_s: float) -> None:
        """`maps_topic`: where maps stand that outgrow their commit; None: nowhere."""
        self._settings = settings
        self._group = group
        self._maps_topic = maps_topic
        self._timeout_s = timeout_s
        self._unreadable = 0

    @property
    def unreadable(self) -> int:
        """Commits whose metadata could not be read."""
        return self._unreadable

    async def read(self, place: TopicPartition, committed: CommittedOffset | None) -> Progress | None:
        """None: the group has committed nothing here. Raises `KafkaError`, `TimeoutError`: ask again."""
        if committed is None:
            return None
        try:
            if (stands := map_place(committed.metadata)) is not None:
                runs = decode_map(committed.offset, await self._fetch(stands))
            else:
                runs = map_in_text(committed.offset, committed.metadata)
        except UnreadableMapError as error:
            self._unreadable += 1
            logger.warning(
                "the map of completed offsets that %s has committed for %s-%d can't be read (%s): what was done beyond "
                "the offset %d is done again",
                *(self._group, place.topic, place.partition, error, committed.offset),
            )
            return Progress(committed.offset)
        return Progress(committed.offset, runs)

    async def _fetch(self, place: MapPlace) -> bytes:
        """One record of the maps' topic."""
        if self._maps_topic is None:
            raise UnreadableMapError("it stands on another topic, and this consumer has none")
        where = TopicPartition(self._maps_topic, place.partition)
        try:
            consumer = await open_consumer(self._settings, f"maps-{self._group}", timeout_s=self._timeout_s)
        except KafkaUnavailableError as error:
            raise TimeoutError(str(error)) from error
        try:
            consumer.assign([where])
            consumer.seek(where, place.offset)
            async with asyncio.timeout(self._timeout_s):
                record = await consumer.getone(where)
        except OffsetOutOfRangeError as error:
            raise UnreadableMapError(f"its record {where.topic}-{place.partition}-{place.offset} is gone") from error
        except KafkaError as error:
            raise TimeoutError(f"the map's record can't be fetched: {error!r}") from error
        finally:
            await close_consumer(consumer, timeout_s=self._timeout_s)
        if record.offset != place.offset or record.value is None:
            raise UnreadableMapError(f"its record {where.topic}-{place.partition}-{place.offset} is gone")
        value: bytes = record.value
        return value
