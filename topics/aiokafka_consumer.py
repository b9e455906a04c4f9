"""Opening and closing aiokafka's consumer, with deadlines; and a record of its as ours.

Knows aiokafka's insides as far as giving up a consumer needs. Does not know groups' work (`topics.consumer`).

`AIOKafkaConsumer.stop()` waits for a rebalance callback and for requests that nobody answers; `_abandon` ends it all
the same. It touches private attributes; the broker tests hold it to aiokafka 0.14.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.protocol.group import HeartbeatRequest, SyncGroupRequest

from topics import aiokafka_records, aiokafka_stretches
from topics.aiokafka_closing import close_bootstrap_connection, close_client, closes_within
from topics.aiokafka_producer import KafkaUnavailableError
from topics.kafka_settings import KafkaSettings
from topics.record import InboundRecord, RecordId

__all__ = [
    "close_consumer",
    "inbound_record",
    "join_group",
    "log_range",
    "open_consumer",
    "record_at",
    "seek_to_the_start",
    "standing_places",
    "watch_membership",
]

_ABANDON_STEP_S = 2.0


async def open_consumer(
    settings: KafkaSettings, role: str, *, timeout_s: float, topics: Sequence[str] = (), **arguments: Any
) -> Any:
    """A connected `AIOKafkaConsumer`. Without `topics` it reads nothing yet: `subscribe` or `assign` it.

    Commits only what it is told to. Unless `arguments` say otherwise it starts nowhere by itself: a partition without a
    committed offset, or with one that is out of range, is an error of `getmany`.

    Raises `KafkaUnavailableError` after `timeout_s`.
    """
    aiokafka_records.install()
    aiokafka_stretches.install()
    defaults = {"enable_auto_commit": False, "auto_offset_reset": "none"}
    consumer = AIOKafkaConsumer(*topics, **{**defaults, **settings.client_arguments(role), **arguments})
    try:
        async with asyncio.timeout(timeout_s):
            await consumer.start()
    except (KafkaError, TimeoutError, OSError) as error:
        close_bootstrap_connection(error)
        await _abandon(consumer)
        raise KafkaUnavailableError(settings, error) from error
    except BaseException as error:
        close_bootstrap_connection(error)
        await _abandon(consumer)
        raise
    return consumer


async def close_consumer(consumer: Any, *, timeout_s: float) -> None:
    """Leave the group and close; after `timeout_s` just close."""
    closed = False
    try:
        closed = await closes_within(consumer.stop(), timeout_s, "a Kafka consumer")
    finally:
        if not closed:
            await _abandon(consumer)


def inbound_record(record: Any) -> InboundRecord:
    """aiokafka's `ConsumerRecord` as ours."""
    return record_at(record.topic, record.partition, record)


def record_at(topic: str, partition: int, record: aiokafka_stretches.LoggedRecord) -> InboundRecord:
    """A record as it was decoded as ours. A header without a value gets an empty one."""
    return InboundRecord(
        id=RecordId(topic, partition, record.offset),
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value,
        headers=tuple((name, b"" if value is None else value) for name, value in record.headers),
    )


def join_group(
    consumer: Any,
    topic: str,
    *,
    on_assigned: Callable[[list[int]], None],
    on_revoked: Callable[[list[int]], Awaitable[None]],
) -> None:
    """Subscribe to a topic. Both are told numbers of partitions; the group waits while partitions are revoked."""

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka is untyped
        async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
            await on_revoked([place.partition for place in revoked])

        async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
            on_assigned([place.partition for place in assigned])

    consumer.subscribe([topic], listener=Listener())


async def seek_to_the_start(consumer: Any, partition: TopicPartition, *, timeout_s: float) -> None:
    """Stand at the oldest record. Raises `KafkaError` (`IllegalStateError`: not assigned any more), `TimeoutError`."""
    async with asyncio.timeout(timeout_s):
        if not await consumer.seek_to_beginning(partition) and partition in consumer.assignment():
            raise TimeoutError(f"no broker said where {partition} begins")


async def log_range(consumer: Any, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
    """The offset of the oldest record, and the one behind the last. Raises `KafkaError`, `TimeoutError`."""
    async with asyncio.timeout(timeout_s):
        first = (await consumer.beginning_offsets([partition]))[partition]
        end = (await consumer.end_offsets([partition]))[partition]
    return first, end


def standing_places(consumer: Any) -> dict[int, int | None]:
    """Partition → the offset that is read next; None while it is being asked for. Of a consumer of one topic."""
    subscription = consumer._subscription.subscription
    assignment = None if subscription is None else subscription.assignment
    if assignment is None:
        return {}
    states = {place.partition: assignment.state_value(place) for place in assignment.tps}
    return {partition: state.position if state.has_valid_position else None for partition, state in states.items()}


def watch_membership(consumer: Any, on_confirmed: Callable[[float], None]) -> None:
    """Tell of each heartbeat of an `AIOKafkaConsumer`, and of each assignment that it asked for, that its group has
    answered well: when it was sent, on `time.monotonic`. Of an assignment this comes before the assignment.

    The group's clock of the member begins anew with the answer, so never before that.
    """
    coordinator = consumer._coordinator
    send = coordinator._send_req

    async def watched(request: Any) -> Any:
        """In the place of aiokafka's own."""
        sent_s = time.monotonic()
        response = await send(request)
        if isinstance(request, HeartbeatRequest | SyncGroupRequest) and response.error_code == 0:
            on_confirmed(sent_s)
        return response

    coordinator._send_req = watched


async def _abandon(consumer: Any) -> None:
    """Close at once, without a word to the group: it notices when the session times out."""
    consumer._closed = True
    coordinator, fetcher = consumer._coordinator, consumer._fetcher
    if coordinator is not None and consumer._group_id is not None:
        if not coordinator._closing.done():
            coordinator._closing.set_result(None)
        coordinator._coordination_task.cancel()
        await asyncio.wait({coordinator._coordination_task}, timeout=_ABANDON_STEP_S)
        await closes_within(coordinator._stop_heartbeat_task(), _ABANDON_STEP_S, "a Kafka heartbeat")
        await closes_within(
            coordinator._stop_commit_offsets_refresh_task(), _ABANDON_STEP_S, "a Kafka consumer's offsets"
        )
    if fetcher is not None:
        # The fetcher's own close gives up at the first of these that it finds between two attempts.
        fetcher._fetch_task.cancel()
        tasks = {fetcher._fetch_task, *fetcher._pending_tasks}
        for task in fetcher._pending_tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_ABANDON_STEP_S)
        await closes_within(fetcher.close(), _ABANDON_STEP_S, "a Kafka fetcher")
    await close_client(consumer._client, _ABANDON_STEP_S, "a Kafka consumer's client")
