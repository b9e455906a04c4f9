"""The two sides of the fence, as the broker has them: whose commits it takes, and which offsets it tells."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.integration.conftest import KafkaHandle, read_topic
from topics.admin import KafkaAdmin
from topics.aiokafka_fencing import (
    CommitFencedError,
    CommittedOffset,
    GroupMember,
    commit_in_transaction,
    fetch_stable_offsets,
    group_member,
    read_positions_stably,
)
from topics.kafka_settings import KafkaSettings

pytestmark = [pytest.mark.broker, pytest.mark.timeout(60)]


@pytest.fixture
async def topic(kafka: KafkaHandle, topic_prefix: str) -> str:
    async with KafkaAdmin(KafkaSettings(kafka.bootstrap_servers)) as admin:
        await admin.create_topic(topic_prefix, partitions=2, replication_factor=1, configs={})
    return topic_prefix


@pytest.fixture
async def consumer(kafka: KafkaHandle, topic: str) -> AsyncIterator[Any]:
    """The one member of the group, with both partitions."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, group_id=f"g.{topic}", enable_auto_commit=False
    )
    await consumer.start()
    while len(consumer.assignment()) < 2:
        await consumer.getmany(timeout_ms=50)
    yield consumer
    await consumer.stop()


@pytest.fixture
async def producer(kafka: KafkaHandle, topic: str) -> AsyncIterator[Any]:
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"t.{topic}")
    await producer.start()
    yield producer
    await producer.stop()


async def stable(consumer: Any, *places: TopicPartition) -> dict[TopicPartition, CommittedOffset | None]:
    """Ask until every one is told: the markers of a transaction are written a moment after its end."""
    while len(found := await fetch_stable_offsets(consumer, places)) < len(places):  # noqa: ASYNC110 - only the broker knows
        await asyncio.sleep(0.02)
    return found


async def test_a_members_commit_is_taken_with_its_metadata(consumer: Any, producer: Any, topic: str) -> None:
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with producer.transaction():
        await producer.send_and_wait(topic, b"reply", partition=0)
        await commit_in_transaction(producer, {zero: CommittedOffset(5, "h1 text")}, group_member(consumer))
    assert await stable(consumer, zero, one) == {zero: CommittedOffset(5, "h1 text"), one: None}


async def test_offsets_of_an_open_transaction_are_not_told_and_hold_no_other_partition_back(
    consumer: Any, producer: Any, topic: str
) -> None:
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"reply", partition=0)
    await commit_in_transaction(producer, {zero: CommittedOffset(5, "")}, group_member(consumer))
    assert await fetch_stable_offsets(consumer, [zero, one]) == {one: None}
    await producer.abort_transaction()
    assert await stable(consumer, zero) == {zero: None}


@pytest.mark.parametrize("stale", ["generation", "member", "none"])
async def test_a_commit_of_another_generation_or_member_is_refused_and_the_producer_goes_on(
    kafka: KafkaHandle, consumer: Any, producer: Any, topic: str, stale: str
) -> None:
    zero, member = TopicPartition(topic, 0), group_member(consumer)
    old = {
        "generation": GroupMember(member.group, member.member_id, member.generation - 1),
        "member": GroupMember(member.group, "somebody", member.generation),
        "none": GroupMember(member.group, "", -1),
    }[stale]
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"refused", partition=0)
    with pytest.raises(CommitFencedError):
        await commit_in_transaction(producer, {zero: CommittedOffset(5, "")}, old)
    await producer.abort_transaction()
    async with producer.transaction():
        await producer.send_and_wait(topic, b"taken", partition=0)
        await commit_in_transaction(producer, {zero: CommittedOffset(1, "")}, member)
    assert await stable(consumer, zero) == {zero: CommittedOffset(1, "")}
    seen = await read_topic(kafka.bootstrap_servers, topic, isolation_level="read_committed")
    assert [record.value for record in seen] == [b"taken"]


async def test_a_consumer_begins_when_the_last_owners_transaction_has_ended_and_where_it_says(
    kafka: KafkaHandle, consumer: Any, producer: Any, topic: str
) -> None:
    zero = TopicPartition(topic, 0)
    async with producer.transaction():
        for value in (b"0", b"1", b"2"):
            await producer.send_and_wait(topic, value, partition=0)
    await producer.begin_transaction()
    await commit_in_transaction(producer, {zero: CommittedOffset(2, "map")}, group_member(consumer))
    await consumer.stop()

    told: list[tuple[TopicPartition, CommittedOffset | None]] = []

    async def on_committed(place: TopicPartition, committed: CommittedOffset | None) -> None:
        told.append((place, committed))

    heir = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=f"g.{topic}",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await heir.start()
    read_positions_stably(heir, on_committed)
    heir.subscribe([topic])
    try:
        for _ in range(5):
            assert await heir.getmany(timeout_ms=100) == {}
        assert zero not in dict(told)
        await producer.commit_transaction()
        batches: dict[Any, Any] = {}
        while not batches:
            batches = await heir.getmany(timeout_ms=50)
        assert dict(told)[zero] == CommittedOffset(2, "map")
        assert [record.value for record in batches[zero]] == [b"2"]
    finally:
        await heir.stop()
