"""Many records at once through an aiokafka producer: one batch for each partition that they go to.

Knows aiokafka's batches, and the insides of its producer as far as finding a record's partition needs. Does not know
transactions or what the records say (`topics.transactional_replies`). The broker tests hold it to aiokafka 0.14.

`AIOKafkaProducer.send` makes a future and several calls of each record, and looks the topic up each time; for a
thousand small records that is most of what sending them costs.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import BrokerResponseError

from topics.replies import OutboundRecord

__all__ = ["send_together"]


async def send_together(producer: Any, records: Sequence[OutboundRecord]) -> list[BaseException | None]:
    """Send them, each partition's in their order, and wait for all of them: of each what went wrong, or None.

    What goes wrong with one record goes wrong with all that stand in a batch with it.
    """
    outcomes: list[BaseException | None] = [None] * len(records)
    of_partition: dict[TopicPartition, list[int]] = defaultdict(list)
    for topic in dict.fromkeys(record.topic for record in records):
        await producer.client._wait_on_metadata(topic)
    for place, record in enumerate(records):
        try:
            of_partition[_partition(producer, record)].append(place)
        except BrokerResponseError as error:
            outcomes[place] = error  # it is too large
    sent: list[tuple[list[int], asyncio.Future[Any]]] = []
    for where, places in of_partition.items():
        within: list[int] = []
        batch = producer.create_batch()
        for place in places:
            if not _append(batch, records[place]):
                sent.append((within, await producer.send_batch(batch, where.topic, partition=where.partition)))
                batch, within = producer.create_batch(), []
                appended = _append(batch, records[place])
                assert appended, "the first record of a batch always fits"
            within.append(place)
        sent.append((within, await producer.send_batch(batch, where.topic, partition=where.partition)))
    results = await asyncio.gather(*(acknowledged for _, acknowledged in sent), return_exceptions=True)
    for (places, _), result in zip(sent, results, strict=True):
        if isinstance(result, BaseException):
            for place in places:
                outcomes[place] = result
    return outcomes


def _partition(producer: Any, record: OutboundRecord) -> TopicPartition:
    """Raises `BrokerResponseError` for a record that is larger than the producer takes."""
    key, value = producer._serialize(record.key, record.value, list(record.headers))
    return TopicPartition(
        record.topic, producer._partition(record.topic, record.partition, record.key, record.value, key, value)
    )


def _append(batch: Any, record: OutboundRecord) -> bool:
    now_ms = time.time_ns() // 1_000_000
    return batch.append(timestamp=now_ms, key=record.key, value=record.value, headers=list(record.headers)) is not None
