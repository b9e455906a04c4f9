"""A Kafka partition is one line; a worker reads far ahead in it, so that nobody stands behind a bulk job.

Small sizes here; the full ones with `make volume`. Times and memory are printed, and never decide a test.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import orjson
import psutil
import pytest
from aiokafka import AIOKafkaProducer

from scheduling.priority import PriorityClass
from tests.integration.conftest import read_topic
from tests.integration.sleeping_workers import Running, SleepingWorkers
from topics.catalogue import Catalogue
from topics.client import HeadraceClient
from topics.control_log import ControlDesk
from topics.control_records import PauseOrder, control_key
from topics.headers import RequestHeaders
from topics.kafka_settings import KafkaSettings
from topics.stage_times import SERVER_TIMING, StageTimes
from workers.intake.residency import Bound

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

BODY: dict[str, Any] = {"prompt": [100, 101, 102], "temperature": 0, "ignore_eos": True}
LONG = pytest.mark.long
SIZES = [1_500, pytest.param(100_000, marks=LONG)]
SLOTS = 16


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that no event tells of; the test's time-out is the deadline."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def flood(
    workers: SleepingWorkers, label: str, count: int, tenant: Callable[[int], str], tokens: int, padding: int = 0
) -> None:
    """`count` requests into partition 0 of a class, so much longer than they need be."""
    value = orjson.dumps(BODY | {"max_tokens": tokens})
    servers = workers.bootstrap_servers
    # One batch of a partition is under way at a time: small ones would take minutes.
    async with AIOKafkaProducer(bootstrap_servers=servers, linger_ms=5, max_batch_size=2**20) as producer:
        for number in range(count):
            name = b"flood%d" % number
            headers = [("request-id", name), ("tenant", tenant(number).encode()), ("padding", bytes(padding))]
            sent = await producer.send(f"{workers.prefix}.{label}", value, partition=0, headers=headers)
        await sent


def rows(running: Running, priority: PriorityClass) -> int:
    return running.worker.statistics().residency[priority].rows


async def answer_s(client: HeadraceClient, name: str, priority: str, tenant: str) -> float:
    started_s = time.monotonic()
    await client.send(BODY | {"max_tokens": 1}, priority=priority, headers=RequestHeaders(name, tenant=tenant))
    await client.result(name)
    return time.monotonic() - started_s


async def ingress_times_ms(workers: SleepingWorkers) -> dict[str, list[float]]:
    """From the record's time stamp to when the worker had read it, by what the request ids begin with."""
    times: dict[str, list[float]] = {"idle": [], "full": []}
    for reply in await read_topic(workers.bootstrap_servers, f"{workers.prefix}.replies"):
        headers = dict(reply.headers)
        name = headers["request-id"].decode()
        if name[:4] in times:
            stages = StageTimes.decode_header(headers[SERVER_TIMING])
            assert stages is not None
            assert stages.ingress is not None
            times[name[:4]].append(1000 * stages.ingress)
    return times


@pytest.mark.parametrize(
    ("count", "ingress"),
    [(5_000, {"max_bytes": 2**20}), pytest.param(100_000, {}, marks=LONG)],
    ids=["in a small budget", "as shipped"],
)
async def test_a_job_hides_nobody_behind_it(workers: SleepingWorkers, count: int, ingress: dict[str, int]) -> None:
    """Tenant A's job fills the partition, with more bytes than are kept; then one record of tenant B comes into the
    same partition, and runs next."""
    before_bytes = psutil.Process().memory_info().rss
    async with workers.run(partitions=1, ingress=ingress) as running, workers.client() as client:
        started_s = time.monotonic()
        padding = 3_000 if not ingress else 0
        await flood(workers, "p1", count, lambda _number: "A", tokens=200, padding=padding)
        # Some have been answered by then; how many hangs on how fast the others are read.
        await eventually(lambda: rows(running, PriorityClass.P1) + running.worker.statistics().engine.ended >= count)
        indexed_s = time.monotonic() - started_s
        grown_bytes = psutil.Process().memory_info().rss - before_bytes
        ended_before = running.worker.statistics().engine.ended
        took_s = await answer_s(client, "B", "p1", "B")
        passed = running.worker.statistics().engine.ended - ended_before
        held = running.worker.statistics().payloads[PriorityClass.P1].payloads
        print(
            f"\n{count} requests of A indexed in {indexed_s:.1f} s, {grown_bytes / count / 1024:.2f} KiB of memory "
            f"each, {held.evicted} without their payload, {held.bytes / 2**20:.1f} MiB of payloads kept; "
            f"B answered {took_s:.2f} s after it was sent, {passed} of A ended meanwhile"
        )
        assert passed <= 4 * SLOTS, "B stood behind A"
        assert held.evicted > count // 10
        assert held.bytes <= held.max_bytes
        await client.cancel(tenant="A")


@pytest.mark.parametrize("count", SIZES)
async def test_a_class_at_its_bounds_leaves_the_others_their_room(workers: SleepingWorkers, count: int) -> None:
    """P3 is full and its partition paused; P0's requests come in and are answered as on an idle worker."""
    bounds = {"ingress": {"max_rows": 600}}
    async with workers.run(classes="p0,p3", partitions=1, **bounds) as running, workers.client() as client:
        idle_s = [await answer_s(client, f"idle{n}", "p0", "urgent") for n in range(20)]
        await flood(workers, "p3", count, lambda number: f"t{number % 7}", tokens=200)
        await eventually(lambda: running.worker.statistics().residency[PriorityClass.P3].paused)
        full_s = [await answer_s(client, f"full{n}", "p0", "urgent") for n in range(20)]
        residency = running.worker.statistics().residency
        ingress_ms = await ingress_times_ms(workers)
        print(
            f"\nP0 was read {statistics.median(ingress_ms['idle']):.1f} ms after it was sent on an idle worker, "
            f"{statistics.median(ingress_ms['full']):.1f} ms beside {residency[PriorityClass.P3].rows} rows of P3; "
            f"answered in {1000 * statistics.median(idle_s):.0f} and {1000 * statistics.median(full_s):.0f} ms"
        )
        assert residency[PriorityClass.P3].paused_by is Bound.ROWS
        assert running.worker.statistics().consumers[PriorityClass.P3].unread > 0, "P3 was answered meanwhile"
        for number in range(7):
            await client.cancel(tenant=f"t{number}")


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_one_request_that_waits_for_long_stops_nobody(workers: SleepingWorkers, count: int) -> None:
    """The first record waits (its tenant is paused) while all behind it end: what is committed stays at the first one,
    with a map of what is complete beyond it. Then it is let go; each was answered once."""
    settings = KafkaSettings(workers.bootstrap_servers)
    catalogue = Catalogue(workers.prefix, group_prefix=workers.prefix)
    pause = PauseOrder(scope="tenant", name="stuck")
    async with workers.run(partitions=1, ingress={"max_rows": 4 * count}) as running:
        async with ControlDesk(settings, catalogue) as desk, workers.client() as client:
            await desk.wait_applied(await desk.write(pause))
            await client.send(BODY | {"max_tokens": 1}, priority="p1", headers=RequestHeaders("stuck", tenant="stuck"))
            started_s = time.monotonic()
            await flood(workers, "p1", count, lambda number: f"t{number % 7}", tokens=1 + count % 3)
            await eventually(lambda: running.worker.statistics().engine.ended >= count)
            took_s = time.monotonic() - started_s
            consumer = running.worker.statistics().consumers[PriorityClass.P1]
            assert consumer.completed_beyond_base >= count - 600, "the base moved past a record that waits"
            await desk.withdraw(control_key(pause))
            await client.result("stuck")
        print(f"\n{count} requests ended behind one that waited: {count / took_s:.0f}/s")
    replies = await read_topic(workers.bootstrap_servers, f"{workers.prefix}.replies", isolation_level="read_committed")
    answered = [dict(reply.headers)["request-id"] for reply in replies]
    assert len(answered) == len(set(answered)) == count + 1
