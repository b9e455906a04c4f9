"""A broker that ends each connection five seconds after it was authenticated (KIP-368): everybody goes on."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka.conn import CloseReason
from opentelemetry import trace

from tests.chaos.sleeping_runner import sleeping_model
from tests.integration.conftest import read_topic
from tests.integration.security.conftest import EXPIRING, SecureKafka
from topics.admin import KafkaAdmin
from topics.aiokafka_reauthentication import RenewedConnection
from topics.catalogue import Catalogue, create_missing_topics
from topics.client import HeadraceClient
from topics.headers import RequestHeaders
from workers.commands.connection import connection
from workers.configuration.config import load_config
from workers.worker import Worker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

BODY: dict[str, Any] = {"prompt": [100, 101], "max_tokens": 30, "temperature": 0, "ignore_eos": True, "stream": True}
TIMES = 2
"""That a connection of each client must have authenticated again."""


@dataclass
class Watched:
    renewals: Counter[RenewedConnection] = field(default_factory=Counter)
    broken: list[RenewedConnection] = field(default_factory=list)
    """Closed by the broker, or in disorder."""

    def outlived(self, role: str) -> bool:
        """Whether a connection of the client in this role has outlived two expiries."""
        return any(each._client_id.endswith(f"-{role}") and times >= TIMES for each, times in self.renewals.items())


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched()
    renew, close = RenewedConnection._renew, RenewedConnection.close

    async def renewing(connection: RenewedConnection) -> None:
        await renew(connection)
        watched.renewals[connection] += 1

    def closing(connection: RenewedConnection, reason: Any = None, exc: Any = None) -> Any:
        if reason is CloseReason.CONNECTION_BROKEN:
            watched.broken.append(connection)
        return close(connection, reason, exc)

    monkeypatch.setattr(RenewedConnection, "_renew", renewing)
    monkeypatch.setattr(RenewedConnection, "close", closing)
    return watched


async def test_a_worker_and_a_client_go_on_when_their_authentications_expire(
    secure_kafka: SecureKafka, topic_prefix: str, connections: Watched
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
    roles = (catalogue.requests("p1"), "replies-p1", "deltas", "progress", "requests")
    asked = 0
    try:
        async with HeadraceClient(settings, topic_prefix=topic_prefix) as client:
            await worker.ready.wait()
            while not all(connections.outlived(role) for role in roles):
                await client.send(BODY, priority="p1", headers=RequestHeaders(f"r{asked}"))
                assert [delta async for delta in client.stream_of(f"r{asked}")]
                asked += 1
    finally:
        stop.set()
        await running
    assert connections.broken == []
    replies = await read_topic(secure_kafka.plain, catalogue.replies, isolation_level="read_committed")
    answered = Counter(dict(reply.headers)["request-id"].decode() for reply in replies)
    assert answered == Counter(f"r{number}" for number in range(asked))
