"""A broker that dies and comes back, under our producers and consumers. It has this module's tests to itself."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from tests.integration.conftest import read_topic
from topics.admin import KafkaAdmin
from topics.assignment import PartitionEpoch
from topics.catalogue import Catalogue, create_missing_topics
from topics.consumer import ClassConsumer
from topics.kafka_settings import KafkaSettings
from topics.local_broker import LocalBroker
from topics.producer import DeltaProducer, ReplyProducer
from topics.record import InboundRecord
from topics.record_producer import ProducerStoppedError, RecordProducer
from topics.replies import OutboundRecord, ReplyContext

pytestmark = [pytest.mark.broker, pytest.mark.timeout(150)]


@pytest.fixture
def settings(own_kafka: LocalBroker) -> KafkaSettings:
    return KafkaSettings(own_kafka.bootstrap_servers, request_timeout_ms=5_000)


@pytest.fixture
async def catalogue(settings: KafkaSettings, topic_prefix: str) -> Catalogue:
    catalogue = Catalogue(topic_prefix, request_partitions=2, reply_partitions=2)
    async with KafkaAdmin(settings) as admin:
        await create_missing_topics(admin, catalogue)
    return catalogue


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that no event tells of; the test's time-out is the deadline."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_everything_sent_through_a_brokers_death_arrives_in_order(
    own_kafka: LocalBroker, settings: KafkaSettings, catalogue: Catalogue
) -> None:
    deltas, replies = DeltaProducer(settings), ReplyProducer(settings, "p0")
    await deltas.start()
    await replies.start()
    context = ReplyContext("r", 1, catalogue.deltas, catalogue.replies)
    back = asyncio.Event()
    sent: list[asyncio.Future[None]] = []

    async def stream() -> None:
        while not back.is_set() or len(sent) < 300:
            await deltas.wait_for_room()
            sent.append(deltas.send(context.delta(b"", seq=len(sent), token_ids=[])))
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(stream())
        await asyncio.sleep(0.2)
        await asyncio.to_thread(own_kafka.kill)
        waiting = tasks.create_task(replies.send_terminal(context.final(b"whole")))
        done, _ = await asyncio.wait({waiting}, timeout=1.0)
        assert not done, "a reply was acknowledged by a dead broker"
        await asyncio.to_thread(own_kafka.start)
        back.set()
    await asyncio.gather(*sent)
    await deltas.stop()
    await replies.stop()

    seqs = [int(dict(r.headers)["seq"]) for r in await read_topic(settings.bootstrap_servers, catalogue.deltas)]
    firsts = list(dict.fromkeys(seqs))
    assert firsts == list(range(len(sent)))
    assert b"whole" in {r.value for r in await read_topic(settings.bootstrap_servers, catalogue.replies)}


async def test_a_consumer_goes_on_after_a_brokers_death_and_commits(
    own_kafka: LocalBroker, settings: KafkaSettings, catalogue: Catalogue
) -> None:
    values: list[bytes | None] = []

    def on_records(partition: PartitionEpoch, records: Sequence[InboundRecord]) -> None:
        for record in records:
            values.append(record.value)
            assert consumer.complete(partition, record.id.offset) is None

    consumer = ClassConsumer(
        settings,
        topic=catalogue.requests("p0"),
        group=catalogue.group("p0"),
        on_records=on_records,
        commit_interval_s=0.05,
    )
    await consumer.start()
    replies = ReplyProducer(settings, "test")
    await replies.start()
    await replies.send_terminal(OutboundRecord(catalogue.requests("p0"), 0, b"k", b"before"))
    await eventually(lambda: consumer.statistics().commits == 1)
    await asyncio.to_thread(own_kafka.kill)
    await asyncio.to_thread(own_kafka.start)
    await replies.send_terminal(OutboundRecord(catalogue.requests("p0"), 0, b"k", b"after"))
    await eventually(lambda: b"after" in values)
    await eventually(lambda: consumer.statistics().commits >= 2)
    statistics = consumer.statistics()
    await consumer.stop()
    await replies.stop()
    assert values == [b"before", b"after"]
    assert statistics.resident == 0
    assert statistics.unhealthy is None


async def test_a_consumer_stops_while_the_broker_is_away(
    own_kafka: LocalBroker, settings: KafkaSettings, catalogue: Catalogue
) -> None:
    consumer = ClassConsumer(
        settings,
        topic=catalogue.requests("p0"),
        group=catalogue.group("p0"),
        on_records=lambda partition, records: None,
    )
    await consumer.start()
    await consumer.wait_assigned()
    await asyncio.to_thread(own_kafka.stop)
    try:
        async with asyncio.timeout(25.0):
            await consumer.stop()
        assert len(asyncio.all_tasks()) == 1
    finally:
        await asyncio.to_thread(own_kafka.start)


async def test_a_late_acknowledgement_replaces_the_producer_and_loses_nothing(
    own_kafka: LocalBroker, settings: KafkaSettings, catalogue: Catalogue
) -> None:
    producer = RecordProducer(settings, "impatient", delivery_timeout_s=0.5, metadata_timeout_s=0.5)
    await producer.start()
    record = OutboundRecord(catalogue.replies, 0, b"k", b"v")
    await producer.submit(record)
    await asyncio.to_thread(own_kafka.kill)
    waiting = producer.submit(record)
    await eventually(lambda: producer.statistics().rebuilds >= 1)
    await asyncio.to_thread(own_kafka.start)
    await waiting
    await producer.stop()
    assert len(await read_topic(settings.bootstrap_servers, catalogue.replies)) >= 2


async def test_stop_ends_while_the_broker_is_away_and_says_what_was_not_delivered(
    own_kafka: LocalBroker, settings: KafkaSettings, catalogue: Catalogue
) -> None:
    producer = RecordProducer(settings, "stopped")
    await producer.start()
    record = OutboundRecord(catalogue.replies, 0, b"k", b"v")
    await producer.submit(record)
    await asyncio.to_thread(own_kafka.stop)
    try:
        undelivered = producer.submit(record)
        async with asyncio.timeout(15.0):
            await producer.stop(grace_s=0.5)
        with pytest.raises(ProducerStoppedError):
            await undelivered
        assert len(asyncio.all_tasks()) == 1
    finally:
        await asyncio.to_thread(own_kafka.start)
