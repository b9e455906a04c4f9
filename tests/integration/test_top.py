"""`headrace top` in a terminal of 80 × 24: it draws reports as they come, obeys keys, and ends with q."""

import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import orjson
import pyte
import pytest
from confluent_kafka import Producer

from tests.integration.conftest import KafkaHandle
from tests.workers.telemetry.reports import class_report, report, request_report, tenant_report
from topics.catalogue import Catalogue
from topics.worker_reports import TimeToFirstToken
from workers.cli import main

pytestmark = pytest.mark.broker

COLUMNS, LINES = 80, 24


class Terminal:
    """A program on a pseudo-terminal, and what stands on its screen."""

    def __init__(self, command: list[str]) -> None:
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)
        self._ours, theirs = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
        self._process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)

    def wait_for(self, seen: Callable[[list[str]], bool], timeout_s: float = 60.0) -> list[str]:
        deadline_s = time.monotonic() + timeout_s
        while not seen(self._screen.display):
            assert time.monotonic() < deadline_s, "\n".join(self._screen.display)
            if select.select([self._ours], [], [], 0.2)[0]:
                self._stream.feed(self._read())
        return self._screen.display

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for_end(self) -> int:
        # Whoever writes to a terminal that nobody reads never ends.
        while self._process.poll() is None:
            if select.select([self._ours], [], [], 0.2)[0]:
                self._read()
        return self._process.returncode

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def _read(self) -> bytes:
        try:
            return os.read(self._ours, 65_536)
        except OSError:  # the program has closed its side
            return b""


@contextmanager
def reporting(kafka: KafkaHandle, topic: str) -> Iterator[None]:
    """A worker that reports several times a second, with a client of its own."""
    producer, over = Producer({"bootstrap.servers": kafka.bootstrap_servers}), threading.Event()

    def produce() -> None:
        started_s = time.time()
        while not over.wait(0.2):
            up_s = time.time() - started_s
            value = report(
                time.time(),
                up_s=up_s,
                steps=int(up_s * 50),
                classes=(class_report("p0", waiting=7, oldest_s=1.5), class_report("p3", running=3)),
                tenants=(
                    tenant_report("acme", known=4, output_tokens=int(up_s * 30)),
                    tenant_report("globex", known=2),
                ),
                requests=(request_report("urgent-1", label="p0", slack_s=-0.5),),
            ).model_dump_json()
            producer.produce(topic, value.encode(), b"w1")
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def prefix(kafka: KafkaHandle, topic_prefix: str) -> str:
    broker = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", topic_prefix, "--partitions", "1"]
    assert main(["topics", "create", *broker]) == 0
    return topic_prefix


def test_it_shows_reports_as_they_come_obeys_keys_and_ends_with_q(kafka: KafkaHandle, prefix: str) -> None:
    command = [sys.executable, "-m", "workers.cli", "top"]
    terminal = Terminal([*command, "--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", prefix])
    try:
        with reporting(kafka, Catalogue(prefix=prefix).reports):
            shown = terminal.wait_for(lambda lines: any(line.startswith("acme") for line in lines))
            assert shown[0].startswith(f"headrace top  {prefix}")
            assert shown[3].split()[:3] == ["p0", "7", "1.5s"]
            assert shown[-1].startswith("q quit")
            terminal.wait_for(lambda lines: not lines[1].startswith("0.0 steps/s"))
            terminal.press("r")
            terminal.wait_for(lambda lines: any(line.startswith("urgent-1") and "-0.5" in line for line in lines))
            terminal.press("t/glob\r")
            terminal.wait_for(lambda lines: not any(line.startswith("acme") for line in lines))
            terminal.press("q")
            assert terminal.wait_for_end() == 0
    finally:
        terminal.close()


def test_once_prints_what_is_seen_as_json(
    kafka: KafkaHandle, prefix: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with reporting(kafka, Catalogue(prefix=prefix).reports):
        arguments = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", prefix]
        assert main(["top", "--once", "--json", *arguments]) == 0
    shown = orjson.loads(capfdbinary.readouterr().out)
    assert (shown["workers"], shown["policies"]) == (1, ["htb"])
    assert [one["label"] for one in shown["classes"]] == ["p0", "p3"]
    assert shown["requests"][0]["request_id"] == "urgent-1"


def test_what_was_answered_in_the_minute_before_it_began_is_shown(
    kafka: KafkaHandle, prefix: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    producer, now_s = Producer({"bootstrap.servers": kafka.bootstrap_servers}), time.time()
    for ago_s, answered in ((90, 2), (30, 5), (0, 9)):
        spent = TimeToFirstToken(requests=answered, queue=2.0 * answered)
        classes = (class_report("p1", answered=answered, ttft=spent),)
        value = report(now_s - ago_s, up_s=100.0 - ago_s, classes=classes).model_dump_json()
        producer.produce(Catalogue(prefix=prefix).reports, value, b"w1", timestamp=int(1000 * (now_s - ago_s)))
    assert producer.flush(10) == 0
    arguments = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", prefix]
    assert main(["top", "--once", "--json", *arguments]) == 0
    (p1,) = orjson.loads(capfdbinary.readouterr().out)["classes"]
    assert (p1["ttft_requests"], p1["ttft_split_s"]["queue"]) == (4, 2.0)


def test_nobody_reporting_is_said(kafka: KafkaHandle, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", prefix]
    assert main(["top", "--once", *arguments]) == 1
    assert f"no worker reported on {prefix}.reports" in capsys.readouterr().err
