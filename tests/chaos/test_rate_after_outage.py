"""How soon a worker is back at its full rate when a broker that was away answers again.

The figure is printed; that nobody's answer is lost or given twice is what decides.
"""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.crew import Crew, zygote
from topics.local_broker import LocalBroker

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(600)]

_REQUESTS = 30_000
_WINDOW_S = 1.0
_FULL = 0.8
"""Of the rate before, over a second, counts as full."""


async def test_the_rate_is_back_soon_after_the_broker_is(chaos_broker: LocalBroker, tmp_path: Path) -> None:
    servers = chaos_broker.bootstrap_servers
    async with zygote("sleeping", tmp_path / "workers.log") as workers, Crew(servers, workers) as crew:
        worker = await crew.start()
        await worker.until_ready()
        await crew.send(_REQUESTS)
        await crew.answered(500)
        before = await _rate(crew, 3.0)
        await asyncio.to_thread(chaos_broker.kill)
        await asyncio.sleep(60.0)
        await asyncio.to_thread(chaos_broker.start)
        back_s = time.monotonic()
        assert len(crew.seen) < _REQUESTS, "nothing was left to answer"
        while await _rate(crew, _WINDOW_S) < _FULL * before:
            assert len(crew.seen) < _REQUESTS, "the rate never came back"
        took_s = time.monotonic() - back_s
        print(f"\n{before:.0f} answers/s before; {took_s:.1f} s after the broker answered it was {_FULL:.0%} of that")
        await crew.answered(_REQUESTS)
        worker.signal(signal.SIGTERM)
        await worker.ended.wait()
        assert await crew.problems() == []


async def _rate(crew: Crew, window_s: float) -> float:
    began, began_s = len(crew.seen), time.monotonic()
    await asyncio.sleep(window_s)
    return (len(crew.seen) - began) / (time.monotonic() - began_s)
