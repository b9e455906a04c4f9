"""The health file: touched while the worker makes progress.

Knows what progress is: the event loop runs (this task is on it), the engine thread turned its crank recently, work or
no work, and the consumers can be relied on. Does not know why they can't.
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
        self,
        path: Path,
        interval_s: float,
        *,
        last_turn_s: Callable[[], float],
        longest_step_s: Callable[[], float],
        unhealthy: Callable[[], str | None],
    ) -> None:
        """`last_turn_s`: monotonic time of the engine's last turn; `longest_step_s`: what one turn may take;
        `unhealthy`: what else is wrong, if anything is."""
        self._path = path
        self._interval_s = interval_s
        self._last_turn_s = last_turn_s
        self._longest_step_s = longest_step_s
        self._unhealthy = unhealthy
        self._told: str | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then the file is removed, for a worker that has gone is not healthy."""
        await asyncio.to_thread(self._path.parent.mkdir, parents=True, exist_ok=True)
        while not stop.is_set():
            problem = self._problem()
            if problem is None:
                await asyncio.to_thread(self._path.touch)
            elif self._told is None:
                log.error("%s: the health file is left to age", problem)
            self._told = problem
            try:
                async with asyncio.timeout(self._interval_s):
                    await stop.wait()
            except TimeoutError:
                continue  # time for the next touch
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    def _problem(self) -> str | None:
        idle_s = time.monotonic() - self._last_turn_s()
        if idle_s > self._longest_step_s() + self._interval_s:
            return f"the engine has not finished a step for {idle_s:.0f} s"
        return self._unhealthy()
