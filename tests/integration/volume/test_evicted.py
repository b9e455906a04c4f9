"""Requests whose payloads were evicted: answered once each, cancelled, moved, given to another worker; or told that
their record is gone. On the smallest budget that may be configured."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import orjson
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from scheduling.priority import PriorityClass
from tests.integration.conftest import read_topic
from tests.integration.sleeping_workers import Running, SleepingWorkers
from topics.catalogue import Catalogue
from topics.control_log import ControlDesk
from topics.control_records import PauseOrder, RequeueOrder, control_key
from topics.kafka_settings import KafkaSettings
from workers.intake.payload_source import PayloadSourceStatistics

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

P1 = PriorityClass.P1
BODY = orjson.dumps({"prompt": [100, 101, 102], "temperature": 0, "ignore_eos": True, "max_tokens": 1})
SMALL = {"max_bytes": 2**20}
COUNT = 1_000
PADDING = bytes(2_000)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that no event tells of; the test's time-out is the deadline."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def flood(workers: SleepingWorkers) -> None:
    """Three tenants' requests in two partitions, several times as many bytes as are kept."""
    async with AIOKafkaProducer(bootstrap_servers=workers.bootstrap_servers, linger_ms=5) as producer:
        for number in range(COUNT):
            name, tenant = b"r%d" % number, b"t%d" % (number % 3)
            headers = [("request-id", name), ("tenant", tenant), ("padding", PADDING)]
            sent = await producer.send(f"{workers.prefix}.p1", BODY, partition=number % 2, headers=headers)
        await sent


@asynccontextmanager
async def paused(workers: SleepingWorkers) -> AsyncIterator[ControlDesk]:
    """Nothing of P1 starts meanwhile, so that all of it waits."""
    catalogue = Catalogue(workers.prefix, group_prefix=workers.prefix)
    order = PauseOrder(scope="class", name="p1")
    async with ControlDesk(KafkaSettings(workers.bootstrap_servers), catalogue) as desk:
        await desk.wait_applied(await desk.write(order))
        yield desk
        await desk.withdraw(control_key(order))


def rows(running: Running) -> int:
    return running.worker.statistics().residency[P1].rows


def payloads(running: Running) -> PayloadSourceStatistics:
    return running.worker.statistics().payloads[P1]


def evicted(running: Running) -> list[str]:
    """The ids of those whose payloads are."""
    shelves = running.worker._delivery.payloads[P1].payloads._shelves
    return [f"r{2 * offset + place.partition}" for place, shelf in shelves.items() for offset in shelf.evicted]


async def answers(workers: SleepingWorkers) -> dict[str, bytes]:
    """What became of each request, from the raw records; there is one answer each."""
    replies = await read_topic(workers.bootstrap_servers, f"{workers.prefix}.replies", isolation_level="read_committed")
    times = Counter(dict(reply.headers)["request-id"] for reply in replies)
    assert set(times.values()) <= {1}
    found = {}
    for reply in replies:
        headers = dict(reply.headers)
        code = b"" if headers["event"] == b"final" else orjson.loads(reply.value)["error"]["code"].encode()
        found[headers["request-id"].decode()] = code
    return found


async def answered(workers: SleepingWorkers, *names: str) -> None:
    while not set(names) <= (await answers(workers)).keys():  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.2)


async def test_each_is_answered_once_and_their_bytes_are_bounded(workers: SleepingWorkers) -> None:
    async with workers.run(ingress=SMALL) as running:
        async with paused(workers):
            await flood(workers)
            await eventually(lambda: rows(running) == COUNT)
            waiting = payloads(running)
        await eventually(lambda: rows(running) == 0)
        done = payloads(running)
    assert waiting.payloads.evicted > COUNT // 2
    assert waiting.payloads.bytes <= waiting.payloads.max_bytes
    assert (done.payloads.resident, done.payloads.evicted, done.payloads.bytes, done.waiting) == (0, 0, 0, 0)
    assert done.gone == 0
    assert done.restored > done.fetched, "most were there before they were asked for"
    print(
        f"\n{waiting.payloads.evicted} of {COUNT} without their payload: {done.fetched} read when asked for, "
        f"{done.restored} beside them, {1000 * done.fetch_time.sum / done.fetched:.0f} ms each"
    )
    assert await answers(workers) == {f"r{number}": b"" for number in range(COUNT)}


async def test_one_is_cancelled_and_another_moved_without_its_payload(workers: SleepingWorkers) -> None:
    async with workers.run(classes="p1,p2", ingress=SMALL) as running, workers.client() as client:
        async with paused(workers) as desk:
            await flood(workers)
            await eventually(lambda: rows(running) == COUNT)
            cancelled, moved, *_ = evicted(running)
            await client.cancel(cancelled)
            await answered(workers, cancelled)
            assert payloads(running).fetched == 0, "an answer needs no payload"
            order = RequeueOrder(request=moved, to="p2", expires_at_ms=2**50)
            await desk.wait_applied(await desk.write(order))
            await answered(workers, moved)
            assert payloads(running).fetched == 1
        await eventually(lambda: rows(running) == 0)
    expected = {f"r{number}": b"" for number in range(COUNT)} | {cancelled: b"cancelled"}
    assert await answers(workers) == expected


async def test_a_partition_that_goes_to_another_worker_takes_them_along(workers: SleepingWorkers) -> None:
    """It goes while they wait, and comes back while they are read and run."""
    async with workers.run(ingress=SMALL) as first, AsyncExitStack() as stack:
        async with paused(workers):
            await flood(workers)
            await eventually(lambda: rows(first) == COUNT)
            second = await stack.enter_async_context(workers.run(ingress=SMALL))
            await eventually(lambda: rows(first) == rows(second) == COUNT // 2)
            assert payloads(first).payloads.evicted > 0
        await eventually(lambda: payloads(second).fetched > 0)
        await stack.aclose()
        await answered(workers, *(f"r{number}" for number in range(COUNT)))
    assert await answers(workers) == {f"r{number}": b"" for number in range(COUNT)}


async def test_what_its_topic_has_no_more_is_answered_so(workers: SleepingWorkers) -> None:
    topic = f"{workers.prefix}.p1"
    async with workers.run(ingress=SMALL) as running:
        async with paused(workers):
            await flood(workers)
            await eventually(lambda: rows(running) == COUNT)
            evicted = payloads(running).payloads.evicted
            admin = AIOKafkaAdminClient(bootstrap_servers=workers.bootstrap_servers)
            await admin.start()
            places = [TopicPartition(topic, partition) for partition in range(2)]
            await admin.delete_records({place: RecordsToDelete(before_offset=COUNT // 2) for place in places})
            await admin.close()
        await eventually(lambda: rows(running) == 0)
        assert payloads(running).gone == evicted
    found = Counter((await answers(workers)).values())
    assert found == {b"": COUNT - evicted, b"record_gone": evicted}
