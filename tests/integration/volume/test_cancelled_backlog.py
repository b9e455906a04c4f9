"""A job of 20,000 rows that wait is cancelled, while others' requests of the same class are answered.

Rates and times are printed, and never decide a test.
"""

import asyncio
import statistics
import time
from collections import Counter
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaProducer

from scheduling.priority import PriorityClass
from tests.integration.conftest import read_topic
from tests.integration.sleeping_workers import Running, SleepingWorkers
from topics.client import HeadraceClient
from topics.headers import RequestHeaders

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(300)]

BODY: dict[str, Any] = {"prompt": [100, 101, 102], "temperature": 0, "ignore_eos": True}
ROWS = 20_000
RUNNING = 16


async def send_job(workers: SleepingWorkers) -> None:
    async with AIOKafkaProducer(bootstrap_servers=workers.bootstrap_servers, linger_ms=5) as producer:
        value = orjson.dumps(BODY | {"max_tokens": 100})
        for number in range(ROWS):
            headers = [("request-id", b"row%d" % number), ("job-id", b"job"), ("tenant", b"bulk")]
            await producer.send(f"{workers.prefix}.p1", value, partition=number % 2, headers=headers)


def rows(running: Running) -> int:
    return running.worker.statistics().residency[PriorityClass.P1].rows


class Others:
    """A request every twentieth of a second, and how long each took until its answer was visible."""

    def __init__(self, client: HeadraceClient) -> None:
        self._client = client
        self._number = 0
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> list[float]:
        self._stop.clear()
        async with asyncio.TaskGroup() as tasks:
            waiting = []
            while not self._stop.is_set():
                waiting.append(tasks.create_task(self._one(f"other{self._number}")))
                self._number += 1
                await asyncio.sleep(0.05)
        return [task.result() for task in waiting]

    async def _one(self, name: str) -> float:
        began_s = time.monotonic()
        headers = RequestHeaders(name, tenant="other")
        await self._client.send(BODY | {"max_tokens": 1}, priority="p1", headers=headers)
        await self._client.result(name)
        return time.monotonic() - began_s


async def test_a_large_job_is_cancelled(workers: SleepingWorkers) -> None:
    async with (
        workers.run(ingress={"max_rows": 2 * ROWS}) as worker,
        workers.client() as client,
    ):
        others = Others(client)
        await send_job(workers)
        while rows(worker) < ROWS - 500:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)
        before = asyncio.create_task(others.run())
        await asyncio.sleep(2.0)
        others.stop()
        before_s = await before
        during = asyncio.create_task(others.run())
        waited = rows(worker)
        ordered_s, cpu_s = time.monotonic(), time.process_time()
        await client.cancel(job="job")
        stopped_s = None
        while (left := rows(worker)) > RUNNING:
            if stopped_s is None and left < waited - RUNNING:
                stopped_s = time.monotonic() - ordered_s
            await asyncio.sleep(0.005)
        took_s, cpu_s = time.monotonic() - ordered_s, time.process_time() - cpu_s
        others.stop()
        during_s = await during
    replies = await read_topic(workers.bootstrap_servers, f"{workers.prefix}.replies", isolation_level="read_committed")
    answered = Counter(dict(reply.headers)["request-id"] for reply in replies)
    assert set(answered.values()) == {1}
    assert len(answered) == ROWS + len(before_s) + len(during_s)
    cancelled = sum(dict(reply.headers)["event"] == b"error" for reply in replies)
    assert cancelled > waited - 200, "most of the job was run"
    print(f"\n{cancelled} answered `cancelled` within {took_s:.2f} s of the order: {cancelled / took_s:.0f}/s")
    print(f"processor time of the worker and of this test: {1e6 * cpu_s / cancelled:.0f} µs an answer")
    print(f"the first of them was settled {stopped_s or took_s:.2f} s after it")
    for name, times_s in (("before", before_s), ("meanwhile", during_s)):
        p50_s, p95_s = (statistics.quantiles(times_s, n=100)[at] for at in (49, 94))
        print(f"others' requests {name}: {1000 * p50_s:.0f} ms p50, {1000 * p95_s:.0f} ms p95 of {len(times_s)}")
