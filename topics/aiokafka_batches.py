"""Many records at once through an aiokafka producer: one batch for each partition that they go to.

Knows aiokafka's batches, and the insides of its producer as far as finding a record's partition needs. Does not know
transactions or what the records say (`topics.transactional_replies`). The broker tests hold it to aiokafka 0.14.

`AIOKafkaProducer.send` makes a future and several calls of each record, and looks the topic up each time; for a
thousand small records that is most of what sending them costs.
"""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import BrokerResponseError
from aiokafka.partitioner import murmur2

from topics.replies import OutboundRecord

__all__ = ["send_together"]


async def send_together(producer: Any, records: Sequence[OutboundRecord]) -> list[BaseException | None]:
    """Send them, each partition's in their order, and wait for all of them: of each what went wrong, or None.

    What goes wrong with one record goes wrong with all that stand in a batch with it.
    """
    outcomes: list[BaseException | None] = [None] * len(records)
    of_partition: dict[TopicPartition, list[int]] = defaultdict(list)
    partitions: dict[str, list[TopicPartition]] = {}
    for topic in dict.fromkeys(record.topic for record in records):
        await producer.client._wait_on_metadata(topic)
        partitions[topic] = [
            TopicPartition(topic, each) for each in sorted(producer._metadata.partitions_for_topic(topic))
        ]
    for place, record in enumerate(records):
        if record.size_bytes > producer._max_request_size // 2:
            try:
                producer._serialize(record.key, record.value, list(record.headers))
            except BrokerResponseError as error:
                outcomes[place] = error  # it is too large
                continue
        of_partition[_partition(partitions[record.topic], record)].append(place)
    now_ms = time.time_ns() // 1_000_000
    sent: list[tuple[list[int], asyncio.Future[Any]]] = []
    for where, places in of_partition.items():
        within: list[int] = []
        batch = producer.create_batch()
        for place in places:
            if not _append(batch, records[place], now_ms):
                sent.append((within, await producer.send_batch(batch, where.topic, partition=where.partition)))
                batch, within = producer.create_batch(), []
                appended = _append(batch, records[place], now_ms)
                assert appended, "the first record of a batch always fits"
            within.append(place)
        sent.append((within, await producer.send_batch(batch, where.topic, partition=where.partition)))
    results = await asyncio.gather(*(acknowledged for _, acknowledged in sent), return_exceptions=True)
    for (places, _), result in zip(sent, results, strict=True):
        if isinstance(result, BaseException):
            for place in places:
                outcomes[place] = result
    return outcomes


def _partition(partitions: Sequence[TopicPartition], record: OutboundRecord) -> TopicPartition:
    """Of a topic's: the one it names, or as every producer finds it by the key; of a record without, any."""
    if record.partition is not None:
        return TopicPartition(record.topic, record.partition)
    if record.key is None:
        return random.choice(partitions)
    return partitions[(murmur2(record.key) & 0x7FFFFFFF) % len(partitions)]


def _append(batch: Any, record: OutboundRecord, now_ms: int) -> bool:
    return batch.append(timestamp=now_ms, key=record.key, value=record.value, headers=list(record.headers)) is not None
