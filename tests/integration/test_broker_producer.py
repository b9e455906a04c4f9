"""Producers against the shared broker: order, acknowledgements, refusals, bounds."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.integration.conftest import KafkaHandle, read_topic
from topics.admin import KafkaAdmin
from topics.aiokafka_producer import KafkaUnavailableError
from topics.catalogue import Catalogue, create_missing_topics
from topics.kafka_settings import KafkaSettings
from topics.producer import DeltaProducer, ReplyProducer
from topics.record_producer import ProducerFullError, ProducerStoppedError, RecordProducer, RecordRefusedError
from topics.replies import OutboundRecord, ReplyContext

pytestmark = pytest.mark.broker


@pytest.fixture
def settings(kafka: KafkaHandle) -> KafkaSettings:
    return KafkaSettings(kafka.bootstrap_servers)


@pytest.fixture
async def catalogue(settings: KafkaSettings, topic_prefix: str) -> Catalogue:
    catalogue = Catalogue(topic_prefix, request_partitions=2, reply_partitions=3)
    async with KafkaAdmin(settings) as admin:
        await create_missing_topics(admin, catalogue)
    return catalogue


@pytest.fixture
async def replies(settings: KafkaSettings) -> AsyncIterator[ReplyProducer]:
    producer = ReplyProducer(settings, "p0")
    await producer.start()
    yield producer
    await producer.stop()


def context(catalogue: Catalogue, request: int) -> ReplyContext:
    return ReplyContext(f"r-{request}", 1, delta_topic=catalogue.deltas, reply_topic=catalogue.replies)


async def test_deltas_stand_in_the_log_in_order_with_their_headers(
    settings: KafkaSettings, catalogue: Catalogue
) -> None:
    producer = DeltaProducer(settings)
    await producer.start()
    acknowledgements = [
        producer.send(context(catalogue, request).delta(b"{%d}" % seq, seq=seq, token_ids=[request, seq]))
        for seq in range(40)
        for request in range(5)
    ]
    await asyncio.gather(*acknowledgements)
    statistics = producer.statistics()
    await producer.stop()

    assert (statistics.acknowledged, statistics.in_flight_records, statistics.in_flight_bytes) == (200, 0, 0)
    records = await read_topic(settings.bootstrap_servers, catalogue.deltas)
    for request in range(5):
        mine = [record for record in records if record.key == b"r-%d" % request]
        assert [dict(record.headers)["seq"] for record in mine] == [b"%d" % seq for seq in range(40)]
        assert len({record.partition for record in mine}) == 1
        assert dict(mine[7].headers)["tokens"] == b"%d,7" % request


async def test_a_terminal_reply_is_on_the_broker_when_sending_returns(
    settings: KafkaSettings, catalogue: Catalogue, replies: ReplyProducer
) -> None:
    await replies.send_terminal(context(catalogue, 1).final(b"one"))
    assert [record.value for record in await read_topic(settings.bootstrap_servers, catalogue.replies)] == [b"one"]


async def test_a_record_that_cannot_be_delivered_is_refused_and_holds_nothing_up(
    settings: KafkaSettings, catalogue: Catalogue, replies: ReplyProducer
) -> None:
    bad_partition = OutboundRecord(catalogue.replies, 99, b"k", b"v")
    missing_topic = OutboundRecord(f"{catalogue.prefix}.nowhere", None, b"k", b"v")
    illegal_topic = OutboundRecord("no such/topic", None, b"k", b"v")
    too_large = OutboundRecord(catalogue.replies, None, b"k", bytes(9 * 2**20))
    too_large_for_its_topic = OutboundRecord(catalogue.control, None, b"k", bytes(2 * 2**20))
    without_a_key = OutboundRecord(catalogue.progress, None, None, b"compacted topics need one")
    good = context(catalogue, 1).final(b"good")

    bad = [bad_partition, missing_topic, illegal_topic, too_large, too_large_for_its_topic, without_a_key]
    outcomes = await replies.send_terminals([*bad, good])

    assert [isinstance(outcome, RecordRefusedError) for outcome in outcomes] == [True] * 6 + [False]
    assert "has no partition 99" in str(outcomes[0])
    assert "headrace topics create" in str(outcomes[1])
    assert [record.value for record in await read_topic(settings.bootstrap_servers, catalogue.replies)] == [b"good"]
    with pytest.raises(RecordRefusedError, match="does not exist"):
        await replies.send_terminal(missing_topic)


async def test_invented_topics_do_not_hold_the_others_up(
    settings: KafkaSettings, catalogue: Catalogue, replies: ReplyProducer
) -> None:
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    invented = [OutboundRecord(f"{catalogue.prefix}.mine-{number}", None, b"k", b"v") for number in range(100)]
    good = context(catalogue, 1).final(b"good")
    outcomes = await replies.send_terminals([*invented, good])
    assert [isinstance(outcome, RecordRefusedError) for outcome in outcomes] == [True] * 100 + [False]
    # aiokafka alone asks for each of them for seconds.
    assert loop.time() - begun_s < 3.0


async def test_a_topic_that_was_refused_is_written_to_once_it_is_there(
    settings: KafkaSettings, catalogue: Catalogue
) -> None:
    producer = RecordProducer(settings, "late", topics_age_s=0.1)
    await producer.start()
    record = OutboundRecord(f"{catalogue.prefix}.late", 0, b"k", b"v")
    with pytest.raises(RecordRefusedError, match="does not exist"):
        await producer.submit(record)
    async with KafkaAdmin(settings) as admin:
        await admin.create_topic(record.topic, partitions=1, replication_factor=1, configs={})
    refused = True
    while refused:
        try:
            await producer.submit(record)
        except RecordRefusedError:
            await asyncio.sleep(0.1)
        else:
            refused = False
    await producer.stop()
    assert [found.value for found in await read_topic(settings.bootstrap_servers, record.topic)] == [b"v"]


async def test_bytes_in_flight_are_bounded(settings: KafkaSettings, catalogue: Catalogue) -> None:
    producer = RecordProducer(settings, "bounded", max_in_flight_bytes=10_000)
    await producer.start()
    record = OutboundRecord(catalogue.deltas, None, b"k", bytes(4_000))
    acknowledgements = [producer.submit(record) for _ in range(3)]
    with pytest.raises(ProducerFullError, match="the limit is 10000"):
        producer.submit(record)
    await producer.wait_for_room()
    acknowledgements.append(producer.submit(record))
    await asyncio.gather(*acknowledgements)
    await producer.stop()


async def test_stop_delivers_what_is_in_flight_and_takes_nothing_more(
    settings: KafkaSettings, catalogue: Catalogue
) -> None:
    producer = DeltaProducer(settings)
    await producer.start()
    acknowledgements = [producer.send(context(catalogue, 1).delta(b"", seq=seq, token_ids=[])) for seq in range(500)]
    await producer.stop()
    assert all(acknowledgement.done() and not acknowledgement.exception() for acknowledgement in acknowledgements)
    with pytest.raises(ProducerStoppedError):
        producer.send(context(catalogue, 1).delta(b"", seq=500, token_ids=[]))
    assert len(asyncio.all_tasks()) == 1


async def test_a_start_without_a_broker_fails_with_the_address() -> None:
    producer = DeltaProducer(KafkaSettings("127.0.0.1:9"))
    with pytest.raises(KafkaUnavailableError, match=r"127\.0\.0\.1:9"):
        await producer.start()
    assert len(asyncio.all_tasks()) == 1
