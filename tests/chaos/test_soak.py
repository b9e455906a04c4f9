"""A worker that is asked again and again for a long time takes no more memory and no more file descriptors for it.

`make soak`: 100,000 small requests, half of them streamed (`SOAK_REQUESTS` in the environment for another number). How
long answers took is printed, and decides nothing.
"""

import asyncio
import os
import signal
import statistics
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.chaos.crew import Crew, Member, zygote
from tests.integration.conftest import read_topic
from topics.local_broker import LocalBroker

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(3_600)]

_REQUESTS = int(os.environ.get("SOAK_REQUESTS", "100000"))
_PARTS = 20
_LOT = 500
"""Requests that are sent at once; so many more wait at most."""
_ROOM_BYTES = 8 * 2**20
"""That an allocator may take and give back without anybody growing."""


class _Sample(NamedTuple):
    rss: int
    """Bytes."""
    descriptors: int


async def test_memory_and_descriptors_stay_as_they_are(chaos_broker: LocalBroker, tmp_path: Path) -> None:
    servers = chaos_broker.bootstrap_servers
    async with zygote("sleeping", tmp_path / "workers.log") as workers, Crew(servers, workers) as crew:
        worker = await crew.start(session_ms=10_000)
        await worker.until_ready()
        samples = [await _after_part(crew, worker) for _ in range(_PARTS)]
        worker.signal(signal.SIGTERM)
        await worker.ended.wait()
        assert await crew.problems() == []
        slowest_s = await _p99_of_tenths_s(crew)
    print(f"\n{len(crew.sent)} requests; memory, MiB: {' '.join(f'{each.rss / 2**20:.1f}' for each in samples)}")
    print(f"descriptors: {' '.join(str(each.descriptors) for each in samples)}")
    print(f"sent to answered, 99th percentile of each tenth, s: {' '.join(f'{each:.2f}' for each in slowest_s)}")
    # The first half fills what is bounded by number: buffers, memories of ids.
    early, late = samples[_PARTS // 2 : _PARTS * 3 // 4], samples[_PARTS * 3 // 4 :]
    assert max(each.rss for each in late) <= max(each.rss for each in early) + _ROOM_BYTES
    assert max(each.descriptors for each in late) <= max(each.descriptors for each in early)


async def _after_part(crew: Crew, worker: Member) -> _Sample:
    part = len(crew.sent) + _REQUESTS // _PARTS
    while len(crew.sent) < part:
        await crew.send(min(_LOT, part - len(crew.sent)))
        await _seen(crew, len(crew.sent) - _LOT)
    await _seen(crew, part)
    process = psutil.Process(worker.pid)
    return _Sample(process.memory_info().rss, process.num_fds())


async def _seen(crew: Crew, count: int) -> None:
    """Return when the reader has seen so many answers; the test's time-out is the deadline."""
    while len(crew.seen) < count:  # noqa: ASYNC110 - no event tells of a number
        await asyncio.sleep(0.02)


async def _p99_of_tenths_s(crew: Crew) -> list[float]:
    """By the time stamps of request and answer, in the order in which they were sent."""
    sent_ms = {
        dict(record.headers)["request-id"]: record.timestamp
        for record in await read_topic(crew.bootstrap_servers, crew.topic)
    }
    took_ms = {
        request_id: record.timestamp - sent_ms[request_id]
        for record in await read_topic(crew.bootstrap_servers, crew.catalogue.replies)
        if (request_id := dict(record.headers)["request-id"]) in sent_ms
    }
    in_order = [took_ms[each.request_id.encode()] / 1000 for each in crew.sent]
    tenth = len(in_order) // 10
    return [statistics.quantiles(in_order[at : at + tenth], n=100)[98] for at in range(0, 10 * tenth, tenth)]
