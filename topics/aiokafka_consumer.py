"""Opening and closing aiokafka's consumer, with deadlines; and a record of its as ours.

Knows aiokafka's insides as far as giving up a consumer needs. Does not know groups' work (`topics.consumer`).

`AIOKafkaConsumer.stop()` waits for a rebalance callback and for requests that nobody answers; `_abandon` ends it all
the same. It touches private attributes; the broker tests hold it to aiokafka 0.14.
"""

import asyncio
import logging
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from topics.aiokafka_producer import KafkaUnavailableError
from topics.kafka_settings import KafkaSettings
from topics.record import InboundRecord, RecordId

__all__ = ["close_consumer", "inbound_record", "open_consumer"]

logger = logging.getLogger(__name__)

_ABANDON_STEP_S = 2.0


async def open_consumer(settings: KafkaSettings, role: str, *, timeout_s: float, **arguments: Any) -> Any:
    """A connected `AIOKafkaConsumer` that reads nothing yet: `subscribe` or `assign` it.

    Commits only what it is told to, and starts nowhere by itself: a partition without a committed offset, or with one
    that is out of range, is an error of `getmany`. Raises `KafkaUnavailableError` after `timeout_s`.
    """
    consumer = AIOKafkaConsumer(
        enable_auto_commit=False,
        auto_offset_reset="none",
        **settings.client_arguments(role),
        **arguments,
    )
    try:
        async with asyncio.timeout(timeout_s):
            await consumer.start()
    except (KafkaError, TimeoutError, OSError) as error:
        await _abandon(consumer)
        raise KafkaUnavailableError(settings, error) from error
    except BaseException:
        await _abandon(consumer)
        raise
    return consumer


async def close_consumer(consumer: Any, *, timeout_s: float) -> None:
    """Leave the group and close; after `timeout_s` just close."""
    try:
        async with asyncio.timeout(timeout_s):
            await consumer.stop()
    except (KafkaError, TimeoutError) as error:
        logger.info("dropping a Kafka consumer that did not close in order: %r", error)
        await _abandon(consumer)
    except BaseException:
        await _abandon(consumer)
        raise


def inbound_record(record: Any) -> InboundRecord:
    """aiokafka's `ConsumerRecord` as ours. A header without a value gets an empty one."""
    return InboundRecord(
        id=RecordId(record.topic, record.partition, record.offset),
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value,
        headers=tuple((name, b"" if value is None else value) for name, value in record.headers),
    )


async def _abandon(consumer: Any) -> None:
    """Close at once, without a word to the group: it notices when the session times out."""
    consumer._closed = True
    coordinator = consumer._coordinator
    if coordinator is not None and hasattr(coordinator, "_coordination_task"):
        if not coordinator._closing.done():
            coordinator._closing.set_result(None)
        coordinator._coordination_task.cancel()
        await _within_a_step(asyncio.wait({coordinator._coordination_task}))
        await _within_a_step(coordinator._stop_heartbeat_task())
        await _within_a_step(coordinator._stop_commit_offsets_refresh_task())
    if consumer._fetcher is not None:
        await _within_a_step(consumer._fetcher.close())
    await _within_a_step(consumer._client.close())


async def _within_a_step(closing: Any) -> None:
    try:
        async with asyncio.timeout(_ABANDON_STEP_S):
            await closing
    except (KafkaError, TimeoutError, OSError) as error:
        logger.warning("a part of an abandoned Kafka consumer did not close: %r", error)
