"""A worker whose model only sleeps, in this process: what orders do to it can be watched without a model's weight."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from tests.chaos.sleeping_runner import sleeping_model
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_missing_topics
from topics.client import HeadraceClient
from workers.commands.connection import connection
from workers.commands.serving import claimed_instance
from workers.configuration.config import load_config
from workers.worker import Worker

__all__ = ["Running", "SleepingWorkers"]

_UNTRACED = TracerProvider(sampler=ALWAYS_OFF)
"""As of a worker that exports no spans."""


@dataclass(frozen=True, slots=True)
class Running:
    worker: Worker
    task: "asyncio.Task[None]"


class SleepingWorkers:
    """`async with workers.run(classes="p1") as running`: ready, and drained at the end."""

    def __init__(self, bootstrap_servers: str, prefix: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.prefix = prefix

    def client(self) -> HeadraceClient:
        return HeadraceClient(self.bootstrap_servers, topic_prefix=self.prefix, timeout_s=60)

    @asynccontextmanager
    async def run(self, *, partitions: int = 2, **sections: Any) -> AsyncIterator[Running]:
        kafka = {
            "bootstrap_servers": self.bootstrap_servers,
            "topic_prefix": self.prefix,
            "group_prefix": self.prefix,
            **sections.pop("kafka", {}),
        }
        engine = {"max_sequences": 16, "dtype": "float32"}
        config = load_config({"classes": "p1", "engine": engine, **sections, "kafka": kafka})
        settings = connection(config.kafka, config.kafka.client_id)
        catalogue = Catalogue(self.prefix, group_prefix=self.prefix, request_partitions=partitions, reply_partitions=2)
        async with KafkaAdmin(settings) as admin:
            await create_missing_topics(admin, catalogue)
        stop = asyncio.Event()
        with claimed_instance(config) as instance:
            worker = Worker(config, sleeping_model(), settings, _UNTRACED.get_tracer("test"), instance=instance.name)
            task = asyncio.create_task(worker.run(stop))
            ready = asyncio.create_task(worker.ready.wait())
            await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
            try:
                if not ready.done():
                    ready.cancel()
                    await task
                yield Running(worker, task)
            finally:
                stop.set()
                await task
