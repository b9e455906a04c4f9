"""Records read again by their offsets: all of them, those beside them, and a plain word on what is gone."""

import time
from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from tests.integration.conftest import KafkaHandle
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_missing_topics
from topics.kafka_settings import KafkaSettings
from topics.record import InboundRecord, RecordId
from topics.record_fetcher import RecordFetcher

pytestmark = [pytest.mark.broker, pytest.mark.timeout(90)]

COUNT = 3_000


@pytest.fixture
async def topic(kafka: KafkaHandle, topic_prefix: str) -> str:
    catalogue = Catalogue(topic_prefix, group_prefix=topic_prefix, request_partitions=2, reply_partitions=1)
    async with KafkaAdmin(KafkaSettings(kafka.bootstrap_servers)) as admin:
        await create_missing_topics(admin, catalogue)
    return catalogue.requests("p1")


@pytest.fixture
async def fetcher(kafka: KafkaHandle, topic: str) -> AsyncIterator[RecordFetcher]:
    opened = RecordFetcher(KafkaSettings(kafka.bootstrap_servers), "test", topic, timeout_s=6.0)
    yield opened
    await opened.close()


async def fill(kafka: KafkaHandle, topic: str, partition: int = 0) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=5) as producer:
        for number in range(COUNT):
            sent = await producer.send(topic, b"%d" % number * 50, partition=partition)
        await sent


async def test_near_and_far_in_two_partitions(kafka: KafkaHandle, topic: str, fetcher: RecordFetcher) -> None:
    for partition in range(2):
        await fill(kafka, topic, partition)
    wanted = {0: [0, 1, 2, 1_500, COUNT - 1], 1: [700]}
    for _ in range(2):
        taken: list[InboundRecord] = []
        began_s = time.perf_counter()
        assert await fetcher.fetch(wanted, taken.append) == []
        print(f"\n6 records in 4 places, {len(taken)} read, in {1000 * (time.perf_counter() - began_s):.1f} ms")
        values = {record.id: record.value for record in taken}
        for partition, offsets in wanted.items():
            right = [values.get(RecordId(topic, partition, offset)) == b"%d" % offset * 50 for offset in offsets]
            assert all(right), f"{partition}: {offsets} {right}"
        assert len(taken) > 6, "a read brings what stands beside"
        assert len(taken) < 2 * COUNT, "it did not read what lies between"


async def test_what_retention_removed_is_gone_and_the_rest_is_found(
    kafka: KafkaHandle, topic: str, fetcher: RecordFetcher
) -> None:
    await fill(kafka, topic)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=1_000)})
    await admin.close()
    taken: list[InboundRecord] = []
    gone = await fetcher.fetch({0: [5, 999, 1_000, COUNT - 1, COUNT, COUNT + 50]}, taken.append)
    assert [record.offset for record in gone] == [5, 999, COUNT, COUNT + 50]
    found = {record.id.offset for record in taken}
    assert (1_000 in found, COUNT - 1 in found) == (True, True)


async def test_a_place_without_a_record_is_gone(kafka: KafkaHandle, topic: str, fetcher: RecordFetcher) -> None:
    """What was in an aborted transaction, and the transaction's marker; as a hole that compaction leaves."""
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=topic) as producer:
        for commits in (True, False, True):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"x", partition=0)
            await (producer.commit_transaction() if commits else producer.abort_transaction())
    taken: list[InboundRecord] = []
    gone = await fetcher.fetch({0: range(6)}, taken.append)
    assert [record.id.offset for record in taken] == [0, 4]
    assert [record.offset for record in gone] == [1, 2, 3, 5]
