"""Clients that are given up at any instant, against Apache Kafka: no connection stays open behind them."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.integration.conftest import KafkaHandle
from topics.admin import KafkaAdmin
from topics.aiokafka_consumer import close_consumer, open_consumer
from topics.aiokafka_producer import close_producer, open_producer
from topics.kafka_settings import KafkaSettings

pytestmark = pytest.mark.broker

INSTANTS_MS = range(40)
"""How long after it began a start is cancelled. A whole start takes a few of these."""


async def consumer(settings: KafkaSettings) -> None:
    await close_consumer(await open_consumer(settings, "test", timeout_s=10.0), timeout_s=10.0)


async def producer(settings: KafkaSettings) -> None:
    await close_producer(await open_producer(settings, "test", timeout_s=10.0), timeout_s=10.0)


async def admin(settings: KafkaSettings) -> None:
    async with KafkaAdmin(settings):
        pass


@pytest.mark.parametrize("use", [consumer, producer, admin])
async def test_a_start_cancelled_at_any_instant_leaves_no_connection_open(
    kafka: KafkaHandle, use: Callable[[KafkaSettings], Coroutine[Any, Any, None]]
) -> None:
    settings = KafkaSettings(kafka.bootstrap_servers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cancelled = [await is_cancelled_after(instant_ms / 1000, use(settings)) for instant_ms in INSTANTS_MS]
        gc.collect()
    assert [str(warning.message) for warning in caught if "AIOKafkaConnection" in str(warning.message)] == []
    assert any(cancelled)


async def is_cancelled_after(delay_s: float, work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` was still going on, and was cancelled then."""
    task = asyncio.create_task(work)
    await asyncio.wait({task}, timeout=delay_s)
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()
