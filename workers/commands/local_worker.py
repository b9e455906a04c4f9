"""A worker in this very process, for `dev`, `demo` and `bench delivery`: topics created, started, drained at the end.

Knows the wiring. Not a command itself. Needs the worker extra (torch).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from rich.console import Console

from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_missing_topics
from workers.commands.connection import connection
from workers.config import WorkerConfig
from workers.loaded_model import LoadedModel
from workers.telemetry import tracer_provider
from workers.worker import Worker

__all__ = ["LocalWorker", "local_worker"]


@dataclass(frozen=True, slots=True)
class LocalWorker:
    worker: Worker
    provider: TracerProvider
    running: asyncio.Task[None]

    async def stopped_by(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set. Raises what ended the worker before."""
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({stopping, self.running}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()


@asynccontextmanager
async def local_worker(
    config: WorkerConfig,
    model: LoadedModel,
    console: Console,
    *,
    span_processors: Sequence[SpanProcessor] = (),
    partitions: int | None = None,
) -> AsyncIterator[LocalWorker]:
    """A worker that has joined its groups. Leaving the block drains it, and raises what ended it if something did."""
    kafka = connection(config.kafka, config.kafka.client_id)
    catalogue = Catalogue(
        prefix=config.kafka.topic_prefix,
        group_prefix=config.kafka.group_prefix,
        **({} if partitions is None else {"request_partitions": partitions, "reply_partitions": partitions}),
    )
    async with KafkaAdmin(kafka) as admin:
        await create_missing_topics(admin, catalogue)
    console.print(model.summary)
    provider = tracer_provider(*span_processors)
    worker = Worker(config, model, kafka, provider.get_tracer("headrace"), on_progress=console.print)
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    ready = asyncio.create_task(worker.ready.wait())
    try:
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        yield LocalWorker(worker, provider, running)
    finally:
        ready.cancel()
        stop.set()
        try:
            await running
        finally:
            await asyncio.to_thread(provider.shutdown)
