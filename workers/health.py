"""The health file: touched while the worker makes progress.

Knows what progress is: the event loop runs (this task is on it), and the engine thread turned its crank recently, work
or no work. Does not know why it stopped.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["HealthFile"]

log = logging.getLogger(__name__)


class HealthFile:
    """A supervisor compares the file's modification time with its own patience, a few times `interval_s`."""

    def __init__(
        self, path: Path, interval_s: float, *, last_turn_s: Callable[[], float], longest_step_s: Callable[[], float]
    ) -> None:
        """`last_turn_s`: monotonic time of the engine's last turn; `longest_step_s`: what one turn may take."""
        self._path = path
        self._interval_s = interval_s
        self._last_turn_s = last_turn_s
        self._longest_step_s = longest_step_s
        self._stuck = False

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then the file is removed, for a worker that has gone is not healthy."""
        await asyncio.to_thread(self._path.parent.mkdir, parents=True, exist_ok=True)
        while not stop.is_set():
            idle_s = time.monotonic() - self._last_turn_s()
            stuck = idle_s > self._longest_step_s() + self._interval_s
            if stuck and not self._stuck:
                log.error("the engine has not finished a step for %.1f s: the health file is left to age", idle_s)
            self._stuck = stuck
            if not stuck:
                await asyncio.to_thread(self._path.touch)
            try:
                async with asyncio.timeout(self._interval_s):
                    await stop.wait()
            except TimeoutError:
                continue  # time for the next touch
        await asyncio.to_thread(self._path.unlink, missing_ok=True)
