"""Following the control topic, on a real broker."""

import asyncio
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tests.integration.conftest import KafkaHandle
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_topics
from topics.control_log import ControlLog, control_record
from topics.control_records import PauseOrder
from topics.kafka_settings import KafkaSettings
from topics.record_producer import RecordProducer

pytestmark = [pytest.mark.broker, pytest.mark.timeout(90)]


async def eventually(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.02)


async def test_a_topic_that_was_made_anew_is_read_from_its_first_record(kafka: KafkaHandle, topic_prefix: str) -> None:
    settings, catalogue = KafkaSettings(kafka.bootstrap_servers), Catalogue(topic_prefix)
    (spec,) = (spec for spec in catalogue.specs() if spec.name == catalogue.control)
    seen: list[bytes | None] = []
    made_anew: list[int] = []
    control = ControlLog(
        settings,
        catalogue,
        lambda records: seen.extend(record.key for record in records),
        lambda: made_anew.append(len(seen)),
    )

    async def make(*tenants: str) -> None:
        async with KafkaAdmin(settings) as admin:
            await create_topics(admin, [spec], replication_factor=1)
        producer = RecordProducer(settings, "orders")
        await producer.start()
        for tenant in tenants:
            await producer.submit(control_record(catalogue, PauseOrder(scope="tenant", name=tenant)))
        await producer.stop()

    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        await admin.start()
        try:
            await admin.delete_topics([catalogue.control])
            while catalogue.control in await admin.list_topics():  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.05)
        finally:
            await admin.close()

    await make("a", "b", "c")
    await control.start()
    stop = asyncio.Event()
    following = asyncio.create_task(control.run(stop))
    try:
        assert seen == [b"pause/tenant/a", b"pause/tenant/b", b"pause/tenant/c"]
        await delete()
        await make("d")
        await eventually(lambda: len(seen) == 4)
        assert (seen[3], made_anew) == (b"pause/tenant/d", [3])
    finally:
        stop.set()
        await following
        await control.stop()
