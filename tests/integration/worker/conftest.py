"""A worker with the real model in this process, and what the tests ask of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from rich.console import Console

from tests.integration.conftest import KafkaHandle
from workers.commands.local_worker import LocalWorker, local_worker
from workers.configuration.config import WorkerConfig, load_config
from workers.models.loaded_model import LoadedModel, load_model

RunWorker = Callable[..., AbstractAsyncContextManager[LocalWorker]]


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    """SmolLM2-135M-Instruct in float32, loaded and warmed once; workers of different tests use it one after another."""
    config = load_config({"engine": {"dtype": "float32", "kv_bytes": 400 * 2**20}})
    return load_model(config.model, config.engine, config.kv)


@pytest.fixture
def worker_config(kafka: KafkaHandle, topic_prefix: str) -> WorkerConfig:
    return load_config(
        {
            "kafka": {
                "bootstrap_servers": kafka.bootstrap_servers,
                "topic_prefix": topic_prefix,
                "commit_interval_ms": 100,
            },
            "engine": {"dtype": "float32", "max_sequences": 16},
        }
    )


@pytest.fixture
def run_worker(model: LoadedModel) -> RunWorker:
    """`async with run_worker(config) as worker`: a worker that has joined its groups, drained at the end."""

    @asynccontextmanager
    async def run(config: WorkerConfig, *span_processors: SpanProcessor, **options: Any) -> AsyncIterator[LocalWorker]:
        async with local_worker(
            config, model, Console(quiet=True), span_processors=span_processors, partitions=2, **options
        ) as worker:
            yield worker

    return run
