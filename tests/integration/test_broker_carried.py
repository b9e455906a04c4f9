"""What runs when a worker joins goes on in the worker whose partition comes back."""

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack

import orjson
import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.conftest import read_topic
from tests.integration.sleeping_workers import Running, SleepingWorkers
from workers.intake import class_channel

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

OUTSTANDING = 48
TOKENS = 150
BODY = {"prompt": [100, 101], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}


def ended(*those: Running) -> int:
    return sum(each.worker.statistics().engine.ended for each in those)


async def test_what_runs_goes_on_in_the_worker_that_keeps_its_partition(
    workers: SleepingWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else much of it would have ended before the partitions are given back.
    monkeypatch.setattr(class_channel, "_DRAIN", 0.0)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(workers.run())
        joining = asyncio.create_task(stack.enter_async_context(workers.run()))
        sent = 0
        async with AIOKafkaProducer(bootstrap_servers=workers.bootstrap_servers) as producer:
            while not joining.done():  # so that there is work in both partitions when they are taken away
                while sent - ended(first) < OUTSTANDING:
                    value, headers = orjson.dumps(BODY | {"seed": sent}), [("request-id", b"r%d" % sent)]
                    await producer.send(f"{workers.prefix}.p1", value, partition=sent % 2, headers=headers)
                    sent += 1
                await asyncio.sleep(0.02)
        both = (first, await joining)
        while ended(*both) < sent:  # noqa: ASYNC110 - nothing says so
            await asyncio.sleep(0.02)
    replies = await read_topic(workers.bootstrap_servers, f"{workers.prefix}.replies", isolation_level="read_committed")
    assert len(replies) == sent
    attempts: dict[int, set[bytes]] = defaultdict(set)
    for reply in replies:
        told = dict(reply.headers)
        attempts[int(told["request-id"][1:]) % 2].add(told["attempt"])
        assert orjson.loads(reply.value)["usage"]["completion_tokens"] == TOKENS
    assert {b"1"} in attempts.values(), "in both partitions something was run again"
