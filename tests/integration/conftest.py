"""The broker that the integration tests share: Apache Kafka itself, started once a session."""

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

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
