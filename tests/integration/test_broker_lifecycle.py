"""The local broker itself: started, killed, started again, and never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from topics.kafka_distribution import LOG4J_VERSION, kafka_jars
from topics.local_broker import BrokerStartFailedError, BrokerStateInUseError, LocalBroker

pytestmark = pytest.mark.broker

PARENT = """
import sys, time
from pathlib import Path
from topics.local_broker import LocalBroker
broker = LocalBroker(Path(sys.argv[1]), start_timeout_s=120.0)
broker.start()
statistics = broker.statistics()
print(statistics.pid, statistics.port, flush=True)
time.sleep(600)
"""


def test_a_broker_dies_with_its_killed_parent_and_its_state_serves_the_next(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pid, port = map(int, parent.stdout.readline().split())
        with pytest.raises(BrokerStateInUseError, match="another local broker runs"):
            LocalBroker(tmp_path, stop_grace_s=0.0).start()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    # The next owner waits for the guard to have ended the broker, rather than running beside it.
    with LocalBroker(tmp_path, start_timeout_s=120.0) as broker:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert broker.statistics().port == port


def test_a_broker_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, extra_properties={"num.io.threads": "none"})
    with pytest.raises(BrokerStartFailedError, match=r"num\.io\.threads"):
        broker.start()
    assert not broker.running


async def test_a_cancelled_start_leaves_nothing_running_and_the_loop_free(tmp_path: Path) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_progress(words: str) -> None:
        if words.startswith("Starting"):
            loop.call_soon_threadsafe(started.set)

    broker = LocalBroker(tmp_path, on_progress=on_progress)

    async def use() -> None:
        async with broker:
            raise AssertionError("the start was to be cancelled")

    using = asyncio.ensure_future(use())
    longest_s = 0.0
    while not started.is_set():
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest_s = max(longest_s, time.monotonic() - before)
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert not broker.running
    # Formatting alone takes over a second: a start on the loop's own thread would show.
    assert longest_s < 0.8


def test_the_log_binding_is_of_the_version_of_the_log4j_that_kafka_brings() -> None:
    jars = {path.name for path in kafka_jars().glob("log4j-*.jar")}
    assert jars == {f"log4j-{part}-{LOG4J_VERSION}.jar" for part in ("api", "core", "slf4j-impl")}
