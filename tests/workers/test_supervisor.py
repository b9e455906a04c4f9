"""`serve --devices`: real processes, tiny workers. The supervisor runs in a session of its own, as under a terminal."""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workers.supervisor import parse_devices

WORKER = Path(__file__).with_name("supervised_worker.py")
SUPERVISOR = """
import asyncio, json, sys
from pathlib import Path
from workers.supervisor import supervise
devices, command, health = json.loads(sys.argv[1])
sys.exit(asyncio.run(supervise(devices, ["--dtype=float32"], command=command, health_file=health and Path(health))))
"""
PATIENCE_S = 60.0


class Supervised:
    """A supervisor and its workers; all of them write to one pipe, which ends when the last of them has ended."""

    def __init__(self, devices: list[str], command: list[str], health_file: str | None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, json.dumps([devices, command, health_file])],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,  # nothing may be read ahead: `line` looks at the pipe itself
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE_S), "no worker said anything"
        return self.process.stdout.readline().decode().strip()

    def ready(self, count: int) -> list[int]:
        """Wait until so many workers have come up. Their process ids."""
        lines = [self.line() for _ in range(count)]
        assert all(line.split()[1] == "ready" for line in lines), lines
        return [int(line.split()[2]) for line in lines]

    def rest(self) -> list[str]:
        """What is still said, until every process has ended."""
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        return sorted(output.decode().splitlines())


Start = Callable[..., Supervised]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Supervised] = []

    def make(devices: list[str], drained: int = 0, first: int = 0, health_file: str | None = None) -> Supervised:
        command = [sys.executable, str(WORKER), str(drained), str(first), str(tmp_path)]
        running.append(Supervised(devices, command, health_file))
        return running[-1]

    yield make
    for supervised in running:
        supervised.process.kill()  # the workers end with it
        supervised.process.wait()
        assert supervised.process.stdout is not None
        supervised.process.stdout.close()


def test_ctrl_c_drains_the_workers_and_is_a_clean_end(start: Start) -> None:
    supervised = start(["cpu", "cuda:0"])
    supervised.ready(2)
    os.killpg(supervised.process.pid, signal.SIGINT)  # a terminal signals its whole foreground group
    assert supervised.rest() == ["cpu drained", "cuda:0 drained"]
    assert supervised.process.returncode == 0


def test_sigterm_drains_the_workers(start: Start) -> None:
    supervised = start(["cpu"])
    supervised.ready(1)
    supervised.process.terminate()
    assert supervised.rest() == ["cpu drained"]
    assert supervised.process.returncode == 0


def test_no_worker_outlives_a_supervisor_that_is_killed(start: Start) -> None:
    supervised = start(["cpu", "cuda:0"])
    supervised.ready(2)
    supervised.process.kill()
    # The pipe ends when the last worker has.
    assert supervised.rest() == ["cpu drained", "cuda:0 drained"]


@pytest.mark.parametrize(
    ("drained", "code"), [(-signal.SIGKILL, 128 + 9), (-signal.SIGTERM, 128 + 15), (3, 3)], ids=["kill", "term", "3"]
)
def test_a_worker_that_does_not_drain_is_told_by_the_exit_code(drained: int, code: int, start: Start) -> None:
    supervised = start(["cpu"], drained=drained)
    supervised.ready(1)
    supervised.process.terminate()
    supervised.rest()
    assert supervised.process.returncode == code


def test_a_worker_that_dies_is_started_again(start: Start) -> None:
    supervised = start(["cpu"], first=1)
    first, second = supervised.ready(2)
    assert first != second
    supervised.process.terminate()
    assert supervised.rest() == ["cpu drained"]
    assert supervised.process.returncode == 0


def test_a_worker_that_the_user_must_mend_is_not_started_again(start: Start) -> None:
    supervised = start(["cpu"], first=2)
    supervised.ready(1)
    assert supervised.rest() == []
    assert supervised.process.returncode == 2


def test_each_worker_has_a_health_file_of_its_own(start: Start, tmp_path: Path) -> None:
    supervised = start(["cuda:0", "cpu"], health_file="/run/headrace/alive")
    lines = sorted(supervised.line() for _ in range(2))
    assert lines[0].endswith("--dtype=float32 --health-file /run/headrace/alive.cpu")
    assert lines[1].endswith("--dtype=float32 --health-file /run/headrace/alive.cuda-0")


def test_devices_may_be_ranges_lists_and_names() -> None:
    assert parse_devices("0-2,5, cpu,cuda:7") == ["cuda:0", "cuda:1", "cuda:2", "cuda:5", "cpu", "cuda:7"]


def test_no_device_is_refused() -> None:
    with pytest.raises(ValueError, match="names no device"):
        parse_devices(",")
