"""Opening and closing aiokafka's producer, with deadlines.

Knows aiokafka's insides as far as giving up a producer needs. Does not know what is sent (`topics.record_producer`).

`AIOKafkaProducer.start()` and `stop()` wait without end while no broker answers (aiokafka#1101, #1039): the first
for a producer id, the second for batches that an idempotent producer never gives up. Hence the deadlines, and
`_abandon`, which touches private attributes; the broker tests that stop a broker under a producer hold it to
aiokafka 0.14.
"""

import asyncio
from itertools import chain
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, ProducerClosed

from topics.aiokafka_closing import close_bootstrap_connection, close_client, closes_within
from topics.kafka_settings import KafkaSettings

__all__ = [
    "KafkaUnavailableError",
    "close_producer",
    "fail_batches",
    "list_topics",
    "open_producer",
    "producer_is_broken",
]

_ABANDON_STEP_S = 2.0


class KafkaUnavailableError(Exception):
    """No broker answered in time, or none let us in."""

    def __init__(self, settings: KafkaSettings, cause: BaseException) -> None:
        super().__init__(
            f"no Kafka broker answered at {settings.bootstrap_servers} ({type(cause).__name__}: {cause}): check "
            "bootstrap_servers and the security settings, and that the broker runs"
        )


async def open_producer(settings: KafkaSettings, role: str, *, timeout_s: float, **arguments: Any) -> Any:
    """A started idempotent `AIOKafkaProducer`. Raises `KafkaUnavailableError` after `timeout_s`.

    With a `transactional_id` among the `arguments`, whatever that id left open has ended when this returns.
    """
    producer = AIOKafkaProducer(enable_idempotence=True, **settings.client_arguments(role), **arguments)
    try:
        async with asyncio.timeout(timeout_s):
            await producer.start()
    except (KafkaError, TimeoutError, OSError) as error:
        close_bootstrap_connection(error)
        await _abandon(producer)
        raise KafkaUnavailableError(settings, error) from error
    except BaseException as error:
        close_bootstrap_connection(error)
        await _abandon(producer)
        raise
    return producer


async def list_topics(producer: Any, *, timeout_s: float) -> dict[str, int]:
    """Every topic that this client may see, and its number of partitions, by one broker's word. None of Kafka's own.

    Raises `KafkaError` or `TimeoutError` when none answers.
    """
    async with asyncio.timeout(timeout_s):
        cluster = await producer.client.fetch_all_metadata()
    return {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in cluster.topics()}


def producer_is_broken(producer: Any) -> bool:
    """Whether a transactional producer can do nothing more: its next call would meet an assertion of aiokafka's."""
    sender: asyncio.Task[None] | None = producer._sender.sender_task
    return sender is None or sender.done() or producer._txn_manager.is_fatal_error()


async def close_producer(producer: Any, *, timeout_s: float) -> None:
    """Send what is buffered, then close; after `timeout_s` drop it instead. Futures of dropped records fail."""
    closed = False
    try:
        closed = await closes_within(producer.stop(), timeout_s, "a Kafka producer")
    finally:
        if not closed:
            await _abandon(producer)


async def _abandon(producer: Any) -> None:
    """Close at once: nothing waits for a broker, and no task stays behind."""
    client = producer.client
    producer._closed = True
    # The sender's requests end when their connections do, then wait for fresh metadata: nobody fetches any more.
    client.force_metadata_update = _no_metadata
    if producer._txn_manager is not None and (ending := producer._txn_manager.wait_for_transaction_end()) is not None:
        # Its failure is seen: whoever waited for it was told by the call that failed.
        ending.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await close_client(client, _ABANDON_STEP_S, "a Kafka producer's client")
    if client._md_update_fut is not None and not client._md_update_fut.done():
        client._md_update_fut.set_result(False)
    await closes_within(producer._sender.close(), _ABANDON_STEP_S, "a Kafka producer's sender")
    # Only now that nothing works on the batches any more.
    await fail_batches(producer._message_accumulator)


async def fail_batches(accumulator: Any) -> None:
    """Fail what is left in a producer's `MessageAccumulator`, and with it a flush that waits for it."""
    batches = {*chain.from_iterable(accumulator._batches.values()), *accumulator._pending_batches}
    # A batch that was to be sent again is not among the pending ones, and yet will be taken out of them when it fails.
    accumulator._pending_batches.update(batches)
    accumulator.fail_all(ProducerClosed())
    for batch in batches:
        if batch._drain_waiter.done():
            batch._drain_waiter.exception()  # seen: nobody waits for room in a batch that is gone
    await accumulator.flush()


def _no_metadata() -> "asyncio.Future[bool]":
    answer = asyncio.get_running_loop().create_future()
    answer.set_result(False)
    return answer
