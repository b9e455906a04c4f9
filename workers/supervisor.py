"""One worker process an accelerator: start them, pass signals on, start one again that died.

Knows processes and devices. Does not know what a worker does. `serve --devices` uses it.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

__all__ = ["parse_devices", "supervise"]

log = logging.getLogger(__name__)

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


async def supervise(devices: Sequence[str], serve_arguments: Sequence[str], *, health_file: str | None = None) -> int:
    """Run `headrace serve --device D …` for each device until SIGTERM or SIGINT; the worst exit code.

    Each worker has a health file of its own, FILE.DEVICE: one that is stuck must not hide behind the others.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = []
            for device in devices:
                own = ["--device", device, *serve_arguments]
                if health_file is not None:
                    own += ["--health-file", f"{health_file}.{device.replace(':', '-')}"]
                tasks.append(group.create_task(_keep_running(device, own, stop)))
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return max(task.result() for task in tasks)


async def _keep_running(device: str, serve_arguments: Sequence[str], stop: asyncio.Event) -> int:
    backoff_s = _FIRST_BACKOFF_S
    while True:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "workers.cli", "serve", *serve_arguments)
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if stop.is_set():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            return await ended
        code = await ended
        if code in (0, _GAVE_UP):
            return code
        log.error("the worker on %s ended with code %d: starting it again in %g s", device, code, backoff_s)
        try:
            async with asyncio.timeout(backoff_s):
                await stop.wait()
            return code
        except TimeoutError:
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
