"""A broker that ends each connection five seconds after it was authenticated (KIP-368): everybody goes on."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection
from opentelemetry import trace

from tests.chaos.sleeping_runner import sleeping_model
from tests.integration.conftest import read_topic
from tests.integration.security.conftest import EXPIRING, SecureKafka
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_missing_topics
from topics.client import HeadraceClient
from topics.headers import RequestHeaders
from workers.commands.connection import connection
from workers.configuration.config import load_config
from workers.worker import Worker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

BODY: dict[str, Any] = {"prompt": [100, 101], "max_tokens": 30, "temperature": 0, "ignore_eos": True, "stream": True}
TIMES = 3
"""That each client's connections must have been authenticated: two of them are over by then."""


@pytest.fixture
def authenticated(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each client has been, by its id."""
    counted: Counter[str] = Counter()
    handshake = AIOKafkaConnection._do_sasl_handshake

    async def counting(connection: Any) -> None:
        await handshake(connection)
        counted[connection._client_id, connection.host, connection.port] += 1

    monkeypatch.setattr(AIOKafkaConnection, "_do_sasl_handshake", counting)
    return counted


async def test_a_worker_and_a_client_go_on_when_their_connections_expire(
    secure_kafka: SecureKafka, topic_prefix: str, authenticated: Counter[str]
) -> None:
    fields = secure_kafka.fields(*EXPIRING)
    config = load_config({"kafka": {**fields, "topic_prefix": topic_prefix}, "classes": "p1"})
    settings = connection(config.kafka, "test")
    catalogue = Catalogue(topic_prefix, request_partitions=1, reply_partitions=1)
    async with KafkaAdmin(settings) as admin:
        await create_missing_topics(admin, catalogue)
    stop = asyncio.Event()
    worker = Worker(config, sleeping_model(), settings, trace.get_tracer("test"), instance="expiring")
    running = asyncio.create_task(worker.run(stop))
    asked = 0
    try:
        async with HeadraceClient(settings, topic_prefix=topic_prefix) as client:
            await worker.ready.wait()
            import time
            t0 = time.monotonic()
            while time.monotonic() < t0 + 10:
                t=time.monotonic()
                await client.send(BODY, priority="p1", headers=RequestHeaders(f"r{asked}"))
                told = [token async for token in client.stream_of(f"r{asked}")]
                assert told
                asked += 1
                print(f"{time.monotonic()-t0:.2f} {time.monotonic()-t:.3f}", flush=True)
            print(authenticated)
            print(worker.statistics())
    finally:
        stop.set()
        await running
    replies = await read_topic(secure_kafka.plain, catalogue.replies, isolation_level="read_committed")
    answered = Counter(dict(reply.headers)["request-id"] for reply in replies)
    print(answered)
