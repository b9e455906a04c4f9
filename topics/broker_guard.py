"""The process between Headrace and a local broker: it ends the broker when its parent is gone.

A parent that dies by SIGKILL runs no clean-up, and a JVM does not notice. So the broker is the child of this small
process, which holds one end of a pipe from the parent: when the parent ends, however it ends, the pipe closes.
(A forked child of the parent can hold the pipe open longer, so the guard also looks whether it has been given
another parent.) Portable: no prctl, no cgroups.

Runs by its path on the standard library alone (`python -I -S broker_guard.py GRACE_S OUTPUT COMMAND…`), so that
it is up in a few milliseconds. Reads `stop` and `kill` lines; writes `pid N` and `exited CODE`. Knows nothing of
Kafka.

Limit: a guard that is itself killed with SIGKILL leaves its broker behind, until someone stops that.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

__all__ = ["GuardedProcess", "main"]

logger = logging.getLogger(__name__)

_PARENT_CHECK_S = 1.0


def main(arguments: list[str]) -> int:
    grace_s, output, command = float(arguments[0]), arguments[1], arguments[2:]
    parent = os.getppid()
    with open(output, "ab") as log:
        broker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    signal.signal(signal.SIGTERM, lambda *_: broker.terminate())
    _report(f"pid {broker.pid}")
    threading.Thread(target=_obey, args=(broker, grace_s), daemon=True).start()
    while True:
        try:
            code = broker.wait(timeout=_PARENT_CHECK_S)
        except subprocess.TimeoutExpired:
            if os.getppid() != parent:
                _end(broker, grace_s)
        else:
            break
    _report(f"exited {code}")
    return 0


def _obey(broker: "subprocess.Popen[bytes]", grace_s: float) -> None:
    for line in sys.stdin:
        if line == "stop\n":
            broker.terminate()
        elif line == "kill\n":
            broker.kill()
    # The pipe is closed: the parent has ended.
    _end(broker, grace_s)


def _end(broker: "subprocess.Popen[bytes]", grace_s: float) -> None:
    broker.terminate()
    try:
        broker.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        broker.kill()


def _report(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # Nobody is left to read it. Standard output would fail again when it is flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class GuardedProcess:
    """The parent's end: a broker behind its guard. Orders go through the pipe, so no recycled process id is hit."""

    def __init__(self, command: list[str], *, state_dir: Path, grace_s: float, lock: IO[bytes] | None) -> None:
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.exited = threading.Event()
        guard = [sys.executable, "-I", "-S", __file__, str(grace_s), "broker.out"]
        self._guard = subprocess.Popen(
            guard + command,
            cwd=state_dir,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # The terminal's Ctrl-C is for us: we stop the broker in our own order.
            start_new_session=True,
            pass_fds=(lock.fileno(),) if lock is not None else (),
        )
        self._reader = threading.Thread(target=self._read_reports, name="broker-guard", daemon=True)
        self._reader.start()

    def _read_reports(self) -> None:
        assert self._guard.stdout is not None
        for line in self._guard.stdout:
            word, _, number = line.strip().partition(" ")
            if word == "pid":
                self.pid = int(number)
            elif word == "exited":
                self.exit_code = int(number)
        if self.exit_code is None:
            logger.error("the guard of the local broker ended before it; the broker's process id is %s", self.pid)
            self.exit_code = -1
        self.exited.set()

    def send(self, order: str) -> None:
        assert self._guard.stdin is not None
        try:
            self._guard.stdin.write(order + "\n")
            self._guard.stdin.flush()
        except BrokenPipeError:
            # The guard ends when the broker has ended: there is nothing left to order.
            self.exited.wait()

    def close(self, grace_s: float) -> None:
        """Wait for the end; closing the pipe makes the guard end what still runs."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        try:
            self._guard.stdin.close()
        except BrokenPipeError:
            logger.debug("the guard had ended already")
        self._guard.wait(timeout=grace_s + 10.0)
        self._reader.join()
        self._guard.stdout.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
