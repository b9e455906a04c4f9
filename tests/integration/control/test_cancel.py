"""Cancelling through the control topic, on a real broker: by request, by job, by tenant, and from the command line."""

import asyncio
import time
from collections import Counter
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaProducer

from scheduling.priority import PriorityClass
from tests.integration.conftest import read_topic
from tests.integration.sleeping_workers import Running, SleepingWorkers
from topics.client import RequestFailedError
from topics.headers import RequestHeaders
from workers.cli import main

pytestmark = pytest.mark.broker

BODY: dict[str, Any] = {"prompt": [100, 101, 102], "temperature": 0, "ignore_eos": True}


async def running(worker: Running, count: int) -> None:
    """Return when so many requests run or wait in the engine."""
    async with asyncio.timeout(30):
        while True:
            engine = worker.worker.statistics().engine
            if engine.running + engine.waiting >= count:
                return
            await asyncio.sleep(0.01)


async def test_a_running_stream_ends_with_cancelled(workers: SleepingWorkers) -> None:
    async with workers.run() as worker, workers.client() as client:
        headers = RequestHeaders(request_id="long")
        await client.send(BODY | {"max_tokens": 250, "stream": True}, priority="p1", headers=headers)
        await running(worker, 1)
        await client.cancel("long")
        with pytest.raises(RequestFailedError) as failed:
            await client.result("long")
        assert (failed.value.code, failed.value.status_code) == ("cancelled", 499)
        statistics = worker.worker.statistics()
    assert statistics.engine.running == 0


async def test_an_answered_request_keeps_its_answer(workers: SleepingWorkers) -> None:
    async with workers.run(), workers.client() as client:
        await client.send(BODY | {"max_tokens": 2}, priority="p1", headers=RequestHeaders(request_id="done"))
        await client.result("done")
        await client.cancel("done")
        await client.send(BODY | {"max_tokens": 2}, priority="p1", headers=RequestHeaders(request_id="next"))
        await client.result("next")
    replies = await read_topic(workers.bootstrap_servers, f"{workers.prefix}.replies", isolation_level="read_committed")
    assert [dict(reply.headers)["event"] for reply in replies] == [b"final", b"final"]


async def test_an_order_that_stands_when_a_worker_starts_is_obeyed(workers: SleepingWorkers) -> None:
    """Requests and order are on their topics before anybody reads them; what comes after the order is served."""
    async with workers.run():
        pass  # makes the topics
    async with workers.client() as client:
        for name in ("a", "b"):
            await client.send(BODY | {"max_tokens": 2}, priority="p1", headers=RequestHeaders(name, tenant="t"))
        await client.cancel(tenant="t")
        await client.send(BODY | {"max_tokens": 2}, priority="p1", headers=RequestHeaders("c", tenant="t"))
        async with workers.run():
            for name in ("a", "b"):
                with pytest.raises(RequestFailedError, match="cancelled"):
                    await client.result(name)
            await client.result("c")


async def test_a_jobs_backlog_is_answered_at_once_and_others_are_served(workers: SleepingWorkers) -> None:
    rows = 3_000
    async with workers.run() as worker, workers.client() as client:
        async with AIOKafkaProducer(bootstrap_servers=workers.bootstrap_servers) as producer:
            value = orjson.dumps(BODY | {"max_tokens": 100})
            for number in range(rows):
                headers = [("request-id", b"row%d" % number), ("job-id", b"job"), ("tenant", b"bulk")]
                await producer.send(f"{workers.prefix}.p1", value, partition=number % 2, headers=headers)
        await running(worker, rows - 100)
        ordered_s = time.monotonic()
        await client.cancel(job="job")
        async with asyncio.timeout(60):
            while worker.worker.statistics().residency[PriorityClass.P1].rows:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        took_s = time.monotonic() - ordered_s
        await client.send(BODY | {"max_tokens": 2}, priority="p1", headers=RequestHeaders("mine", tenant="me"))
        await client.result("mine")
    replies = await read_topic(workers.bootstrap_servers, f"{workers.prefix}.replies", isolation_level="read_committed")
    answered = Counter(dict(reply.headers)["request-id"] for reply in replies)
    assert set(answered.values()) == {1}
    assert len(answered) == rows + 1
    cancelled = sum(dict(reply.headers)["event"] == b"error" for reply in replies)
    assert cancelled > rows - 200, "most of the job was run"
    print(f"\n{cancelled} answered `cancelled` within {took_s:.2f} s of the order: {cancelled / took_s:.0f}/s")


async def test_the_command_waits_for_the_workers(workers: SleepingWorkers, capfd: pytest.CaptureFixture[str]) -> None:
    connection = ["--bootstrap-servers", workers.bootstrap_servers, "--topic-prefix", workers.prefix]
    async with workers.run():
        code = await asyncio.to_thread(main, ["cancel", "--tenant", "nobody", "--json", *connection])
    assert code == 0
    told = orjson.loads(capfd.readouterr().out)
    assert told["order"] == "cancel tenant nobody"
    assert len(told["applied"]) == 1
    assert told["late"] == []


def test_the_command_wants_one_name(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["cancel", "request", "--job", "job"]) == 2
    assert "exactly one" in capfd.readouterr().err
