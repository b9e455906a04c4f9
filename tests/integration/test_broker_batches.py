"""Many records at once: in the batches of their partitions, in their order, each with what came of it."""

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError

from tests.integration.conftest import KafkaHandle, read_topic
from topics.admin import KafkaAdmin
from topics.aiokafka_batches import send_together
from topics.kafka_settings import KafkaSettings
from topics.replies import OutboundRecord

pytestmark = [pytest.mark.broker, pytest.mark.timeout(90)]


async def test_records_fill_several_batches_in_order_and_one_that_is_too_large_is_named(
    kafka: KafkaHandle, topic_prefix: str
) -> None:
    async with KafkaAdmin(KafkaSettings(kafka.bootstrap_servers)) as admin:
        await admin.create_topic(topic_prefix, partitions=2, replication_factor=1, configs={})
    records = [
        OutboundRecord(topic_prefix, number % 2, b"k", b"%d" % number + bytes(500), (("n", b"%d" % number),))
        for number in range(40)
    ]
    records[7] = OutboundRecord(topic_prefix, 1, b"k", bytes(20_000))
    async with AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, max_batch_size=2_000, max_request_size=10_000
    ) as producer:
        outcomes = await send_together(producer, records)
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [MessageSizeTooLargeError]
    assert outcomes[7] is not None
    stored = [
        (record.partition, dict(record.headers)["n"])
        for record in await read_topic(kafka.bootstrap_servers, topic_prefix)
    ]
    for partition in (0, 1):
        numbers = [int(number) for where, number in stored if where == partition]
        assert numbers == [number for number in range(partition, 40, 2) if number != 7]
