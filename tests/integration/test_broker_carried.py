"""What runs when a worker joins goes on in the worker whose partition comes back."""

import asyncio
from collections import defaultdict

import orjson
import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.conftest import read_topic
from tests.integration.sleeping_workers import SleepingWorkers
from workers.intake import class_channel

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

REQUESTS = 48
TOKENS = 250


async def test_what_runs_goes_on_in_the_worker_that_keeps_its_partition(
    workers: SleepingWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else much of it would have ended before the partitions are given back.
    monkeypatch.setattr(class_channel, "_DRAIN", 0.0)
    async with workers.run() as first:
        body = {"prompt": [100, 101], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
        async with AIOKafkaProducer(bootstrap_servers=workers.bootstrap_servers) as producer:
            for number in range(REQUESTS):
                headers = [("request-id", b"r%d" % number)]
                value = orjson.dumps(body | {"seed": number})
                await producer.send(f"{workers.prefix}.p1", value, partition=number % 2, headers=headers)
            await producer.flush()
        async with workers.run() as second:
            both = [each.worker for each in (first, second)]
            assert sum(each.statistics().engine.running for each in both), "all had ended before the second was ready"
            while sum(each.statistics().engine.ended for each in both) < REQUESTS:  # noqa: ASYNC110 - nothing says so
                await asyncio.sleep(0.02)
    replies = await read_topic(workers.bootstrap_servers, f"{workers.prefix}.replies", isolation_level="read_committed")
    assert len(replies) == REQUESTS
    attempts: dict[int, set[bytes]] = defaultdict(set)
    for reply in replies:
        headers = dict(reply.headers)
        attempts[int(headers["request-id"][1:]) % 2].add(headers["attempt"])
        assert orjson.loads(reply.value)["usage"]["completion_tokens"] == TOKENS
    assert {b"1"} in attempts.values(), "in both partitions something was run again"
