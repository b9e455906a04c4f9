"""What was answered when a rebalance took its partition away is not run again if the partition comes back."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from scheduling.priority import PriorityClass
from tests.integration.conftest import read_topic
from tests.integration.sleeping_workers import Running, SleepingWorkers
from topics.headers import RequestHeaders
from topics.transactional_replies import TransactionalReplies

pytestmark = [pytest.mark.broker, pytest.mark.timeout(90)]

BODY: dict[str, Any] = {"prompt": [100, 101, 102], "temperature": 0, "ignore_eos": True, "max_tokens": 2}
P1 = PriorityClass.P1
REQUESTS = 12


async def eventually(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.01)


def held_up(worker: Running) -> "asyncio.Lock":
    """As if its transactions took for ever."""
    replies = worker.worker._delivery.channels[P1].replies
    assert isinstance(replies, TransactionalReplies)
    return replies._turn


async def test_answers_of_a_partition_that_comes_back_are_given_and_those_of_another_are_run_again(
    workers: SleepingWorkers,
) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(workers.run())
        client = await stack.enter_async_context(workers.client())
        turn = held_up(first)
        consumer = first.worker._delivery.channels[P1].consumer
        await turn.acquire()
        for number in range(REQUESTS):
            headers = RequestHeaders(f"r{number}")
            await client.send(BODY | {"stream": number % 2 == 0}, priority="p1", headers=headers)
        await eventually(lambda: first.worker.statistics().engine.ended == REQUESTS)
        # Another worker joins: all partitions are taken away, and one of the two comes back.
        joining = asyncio.create_task(stack.enter_async_context(workers.run()))
        await eventually(lambda: not consumer._assignment.partitions)
        turn.release()
        await eventually(lambda: len(consumer._assignment.partitions) == 1)
        second = await joining
        for number in range(REQUESTS):
            await client.result(f"r{number}")
        ended = [each.worker.statistics().engine.ended for each in (first, second)]
    replies = await read_topic(workers.bootstrap_servers, f"{workers.prefix}.replies", isolation_level="read_committed")
    assert Counter(dict(reply.headers)["request-id"] for reply in replies) == {
        b"r%d" % number: 1 for number in range(REQUESTS)
    }
    attempts = Counter(int(dict(reply.headers)["attempt"]) for reply in replies)
    assert ended[0] == REQUESTS, "the first worker has computed an answer again that it had"
    assert attempts == {1: REQUESTS - ended[1], 2: ended[1]}
    assert ended[1] < REQUESTS, "no answer was kept"
