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
from workers.commands.explained import explained
from workers.commands.serving import claimed_instance
from workers.configuration.config import WorkerConfig
from workers.models.loaded_model import LoadedModel
from workers.telemetry.telemetry import tracer_provider
from workers.worker import TopicsNotReadyError, Worker, WorkerFailedError

__all__ = ["LocalWorker", "local_worker"]


@dataclass(frozen=True, slots=True)
class LocalWorker:
    worker: Worker
    provider: TracerProvider


@asynccontextmanager
async def local_worker(
    config: WorkerConfig,
    model: LoadedModel,
    console: Console,
    *,
    span_processors: Sequence[SpanProcessor] = (),
    partitions: int | None = None,
) -> AsyncIterator[LocalWorker]:
    """A worker that has joined its groups. Leaving the block drains it.

    A worker that breaks cancels the block, and the block raises what broke it, told by `explained`.
    """
    with explained(TopicsNotReadyError, WorkerFailedError), claimed_instance(config) as instance:
        async with _local_worker(config, model, console, span_processors, partitions, instance.name) as running:
            yield running


@asynccontextmanager
async def _local_worker(
    config: WorkerConfig,
    model: LoadedModel,
    console: Console,
    span_processors: Sequence[SpanProcessor],
    partitions: int | None,
    instance: str,
) -> AsyncIterator[LocalWorker]:
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
    tracer = provider.get_tracer("headrace")
    worker = Worker(config, model, kafka, tracer, instance=instance, on_progress=console.print)
    stop = asyncio.Event()
    block = asyncio.current_task()
    assert block is not None

    def on_end(_running: asyncio.Task[None]) -> None:
        if not stop.is_set():
            block.cancel()

    running = asyncio.create_task(worker.run(stop))
    running.add_done_callback(on_end)
    try:
        await worker.ready.wait()
        yield LocalWorker(worker, provider)
    except asyncio.CancelledError:
        if stop.is_set() or not running.done() or block.uncancel() > 0:
            raise  # cancelled by somebody else
    finally:
        stop.set()
        try:
            await running
        finally:
            await asyncio.to_thread(provider.shutdown)
