"""A worker whose model only sleeps, in this process: what orders do to it can be watched without a model's weight."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rich.console import Console

from tests.chaos.sleeping_runner import sleeping_model
from tests.integration.conftest import KafkaHandle
from workers.commands.local_worker import LocalWorker, local_worker
from workers.config import load_config


class SleepingWorkers:
    """`async with workers.run(classes="p1") as worker`: ready, and drained at the end."""

    def __init__(self, bootstrap_servers: str, prefix: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.prefix = prefix

    @asynccontextmanager
    async def run(self, **config: Any) -> AsyncIterator[LocalWorker]:
        kafka = {
            "bootstrap_servers": self.bootstrap_servers,
            "topic_prefix": self.prefix,
            "group_prefix": self.prefix,
            **config.pop("kafka", {}),
        }
        sections = {"classes": "p1", "engine": {"max_sequences": 16, "dtype": "float32"}, **config, "kafka": kafka}
        loaded = load_config(sections)
        async with local_worker(loaded, sleeping_model(), Console(quiet=True), partitions=2) as running:
            yield running


@pytest.fixture
def workers(kafka: KafkaHandle, topic_prefix: str) -> SleepingWorkers:
    return SleepingWorkers(kafka.bootstrap_servers, topic_prefix)
