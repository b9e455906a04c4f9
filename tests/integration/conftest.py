"""The broker that the integration tests share: Apache Kafka itself, started once a session."""

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.integration.sleeping_workers import SleepingWorkers
from topics.local_broker import LocalBroker


@dataclass(frozen=True, slots=True)
class KafkaHandle:
    bootstrap_servers: str


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaHandle]:
    """Kafka for the session. Tests share it, so each uses a `topic_prefix` of its own and never stops it."""
    own = os.environ.get("HEADRACE_KAFKA__BOOTSTRAP_SERVERS")
    if own:
        yield KafkaHandle(own)
        return
    with LocalBroker(tmp_path_factory.mktemp("kafka"), start_timeout_s=120.0) as broker:
        yield KafkaHandle(broker.bootstrap_servers)


@pytest.fixture
def topic_prefix() -> str:
    """A prefix for topics, groups and transactional ids that no other test has."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def workers(kafka: KafkaHandle, topic_prefix: str) -> SleepingWorkers:
    """Workers in this process whose model only sleeps."""
    return SleepingWorkers(kafka.bootstrap_servers, topic_prefix)


async def read_topic(bootstrap_servers: str, topic: str, *, isolation_level: str = "read_uncommitted") -> list[Any]:
    """Every record that stands in a topic now, by partition and offset: read with aiokafka alone, none of our code."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level=isolation_level,
    )
    await consumer.start()
    try:
        numbers = await consumer._client._wait_on_metadata(topic)
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        records: list[Any] = []
        for partition in partitions:
            while await consumer.position(partition) < ends[partition]:
                for batch in (await consumer.getmany(partition, timeout_ms=500)).values():
                    records.extend(batch)
        return records
    finally:
        await consumer.stop()
