"""One worker process an accelerator: start them, pass signals on, start one again that died.

Knows processes and devices. Does not know what a worker does. `serve --devices` uses it.

Each worker is in a session of its own, so the terminal's Ctrl-C reaches the supervisor alone and the workers get one
SIGTERM from it: they drain. A second signal is passed on as well and ends a worker the hard way. No worker outlives a
supervisor that is killed: each holds the reading end of a pipe whose writing end is the supervisor's alone
(`--ends-with`), and drains when it closes. Portable: no prctl, no cgroups.

Limit: a worker whose event loop hangs does not see the pipe close. Nothing but SIGKILL ends that one.
"""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["SERVE", "parse_devices", "supervise"]

log = logging.getLogger(__name__)

SERVE = (sys.executable, "-m", "workers.cli", "serve")
_FIRST_BACKOFF_S = 1.0
_LONGEST_BACKOFF_S = 30.0
_GAVE_UP = 2
"""A worker's exit code for what the user got wrong: starting it again would not help."""


def parse_devices(text: str) -> list[str]:
    """`0-3` or `0,2` are CUDA devices; names such as `cpu` or `cuda:1` stand for themselves. Raises `ValueError`."""
    devices: list[str] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last):
            devices.extend(f"cuda:{number}" for number in range(int(first), int(last) + 1))
        elif part.strip().isdecimal():
            devices.append(f"cuda:{int(part)}")
        elif part.strip():
            devices.append(part.strip())
    if not devices:
        raise ValueError(f"--devices {text!r} names no device: write 0-7, 0,2 or cuda:0,cpu")
    return devices


async def supervise(
    devices: Sequence[str],
    serve_arguments: Sequence[str],
    *,
    health_file: Path | None = None,
    listen: str | None = None,
    metrics_port: int | None = None,
    command: Sequence[str] = SERVE,
) -> int:
    """Run `command --device D …` for each device until SIGTERM or SIGINT; the worst exit code.

    A worker that a signal ended counts as 128 + its number, as in a shell. Each worker has a health file of its own,
    FILE.DEVICE: one that is stuck must not hide behind the others. The first one's health is told on `listen`
    (HOST:PORT) and its metrics on `metrics_port`, the next one's on the ports after them.
    """
    with _signals() as orders, _lifeline() as lifeline:
        async with asyncio.TaskGroup() as group:
            workers = []
            for number, device in enumerate(devices):
                own = [*command, "--device", device, "--ends-with", str(lifeline), *serve_arguments]
                if listen is not None:
                    host, _, port = listen.rpartition(":")
                    own += ["--listen", f"{host}:{int(port) + number if int(port) else 0}"]
                if health_file is not None:
                    own += ["--health-file", f"{health_file}.{device.replace(':', '-')}"]
                if metrics_port is not None:
                    own += ["--metrics-port", str(metrics_port + number if metrics_port else 0)]
                worker = _Worker(device, own, lifeline)
                orders.workers.append(worker)
                workers.append(group.create_task(worker.keep_running(orders.stop)))
    return max(worker.result() for worker in workers)


class _Worker:
    """One device's process, started again whenever it dies before its time."""

    def __init__(self, device: str, command: Sequence[str], lifeline: int) -> None:
        self._device = device
        self._command = command
        self._lifeline = lifeline
        self._process: Process | None = None

    def terminate(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def keep_running(self, stop: asyncio.Event) -> int:
        """Until it ends by itself or `stop` is set and it has drained. Its exit code."""
        clock = asyncio.get_running_loop().time
        backoff_s = _FIRST_BACKOFF_S
        while True:
            started_s = clock()
            code = await self._run(stop)
            if stop.is_set() or code in (0, _GAVE_UP):
                return code
            if clock() - started_s > _LONGEST_BACKOFF_S:
                backoff_s = _FIRST_BACKOFF_S  # it had been well: this is a new trouble
            log.error("the worker on %s ended with code %d: starting it again in %g s", self._device, code, backoff_s)
            try:
                async with asyncio.timeout(backoff_s):
                    await stop.wait()
                return code
            except TimeoutError:
                backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)

    async def _run(self, stop: asyncio.Event) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=DEVNULL, start_new_session=True, pass_fds=(self._lifeline,)
        )
        self._process = process
        if stop.is_set():
            self.terminate()  # the signal came while it was being started
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            # Another worker's task broke. This one drains, rather than be left behind.
            self.terminate()
            await process.wait()
            raise
        return 128 - code if code < 0 else code


class _Orders:
    """What the signals say: each goes on to the workers that run; the first one also ends the starting again."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.workers: list[_Worker] = []

    def on_signal(self) -> None:
        self.stop.set()
        for worker in self.workers:
            worker.terminate()


@contextmanager
def _signals() -> Iterator[_Orders]:
    orders = _Orders()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, orders.on_signal)
    try:
        yield orders
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@contextmanager
def _lifeline() -> Iterator[int]:
    """The reading end, for the workers. The writing end is not inherited: it closes when this process is gone."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(writing)
        os.close(reading)
