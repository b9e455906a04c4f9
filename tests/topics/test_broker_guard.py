"""The guard ends its child whatever becomes of the parent. A plain process stands for the broker."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from topics.broker_guard import GuardedProcess

PARENT = """
import sys, time
from pathlib import Path
from topics.broker_guard import GuardedProcess
process = GuardedProcess(["sleep", "600"], state_dir=Path(sys.argv[1]), grace_s=5.0, lock=None)
while process.pid is None:
    time.sleep(0.01)
print(process.pid, flush=True)
time.sleep(600)
"""
IGNORES_SIGTERM = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]


def wait_for_end(pid: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < deadline, f"process {pid} still runs after {within_s} s"
        time.sleep(0.02)


def wait_for_text(path: Path, text: str) -> None:
    deadline = time.monotonic() + 20.0
    while not (path.is_file() and text in path.read_text()):
        assert time.monotonic() < deadline, f"{path} never held {text!r}"
        time.sleep(0.02)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_child_ends_when_the_parent_is_killed(tmp_path: Path, end: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.send_signal(end)
        parent.wait()
    wait_for_end(child, within_s=20.0)


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    process = GuardedProcess(IGNORES_SIGTERM, state_dir=tmp_path, grace_s=0.2, lock=None)
    wait_for_text(tmp_path / "broker.out", "ready")
    process.close(grace_s=20.0)
    assert process.exit_code == -signal.SIGKILL


def test_stop_lets_the_child_end_by_itself(tmp_path: Path) -> None:
    process = GuardedProcess(["sleep", "600"], state_dir=tmp_path, grace_s=5.0, lock=None)
    process.send("stop")
    assert process.exited.wait(20.0)
    assert process.exit_code == -signal.SIGTERM
    process.close(grace_s=5.0)


def test_an_order_after_the_end_is_no_error(tmp_path: Path) -> None:
    process = GuardedProcess(["true"], state_dir=tmp_path, grace_s=5.0, lock=None)
    assert process.exited.wait(20.0)
    process.send("kill")
    process.close(grace_s=5.0)
    assert process.exit_code == 0


def test_a_guard_that_is_killed_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = GuardedProcess(["sleep", "600"], state_dir=tmp_path, grace_s=5.0, lock=None)
    while process.pid is None:
        threading.Event().wait(0.01)
    process._guard.kill()
    assert process.exited.wait(20.0)
    os.kill(process.pid, signal.SIGKILL)
    process.close(grace_s=5.0)
    assert "guard of the local broker ended before it" in caplog.text
