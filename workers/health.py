"""Whether the worker is well: told by a file that is touched while it is, and over HTTP.

Knows what progress is: the event loop runs (what is here is on it), the engine thread turned its crank recently, work
or no work, and the consumers can be relied on. Does not know why they can't.

Alive and ready are two things. A worker is **alive** while its engine turns: only a new process cures one that is not.
It is **ready** while it takes requests and its consumers can be relied on: not before it has joined its groups, not
while it drains, and not while the brokers are away, for which a restart would be no cure. The file is touched while
both hold, but for draining.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from workers.http_endpoint import HttpAnswer, HttpEndpoint

__all__ = ["Health", "HealthFile"]

log = logging.getLogger(__name__)


class Health:
    def __init__(
        self,
        *,
        last_turn_s: Callable[[], float],
        longest_turn_s: float,
        accepting: Callable[[], bool],
        unhealthy: Callable[[], str | None],
    ) -> None:
        """`last_turn_s`: monotonic time of the engine's last turn; `longest_turn_s`: what one may take. `accepting`:
        new requests are taken. `unhealthy`: what else is wrong, if anything is."""
        self._last_turn_s = last_turn_s
        self._longest_turn_s = longest_turn_s
        self._accepting = accepting
        self._unhealthy = unhealthy

    def stuck(self) -> str | None:
        """Why only a new process can go on; None: it lives."""
        idle_s = time.monotonic() - self._last_turn_s()
        return f"the engine has not finished a step for {idle_s:.0f} s" if idle_s > self._longest_turn_s else None

    def problem(self) -> str | None:
        """What is wrong, if anything is; that it starts or drains is nothing wrong."""
        return self.stuck() or self._unhealthy()

    def not_ready(self) -> str | None:
        """Why no request is taken now; None: it is ready."""
        return self.problem() or (None if self._accepting() else "it starts, or it drains")

    def mount(self, endpoint: HttpEndpoint) -> None:
        endpoint.mount("/livez", lambda: _told(self.stuck()))
        endpoint.mount("/readyz", lambda: _told(self.not_ready()))


def _told(problem: str | None) -> HttpAnswer:
    return HttpAnswer("ok\n") if problem is None else HttpAnswer(f"{problem}\n", HTTPStatus.SERVICE_UNAVAILABLE)


class HealthFile:
    """A supervisor compares the file's modification time with its own patience, a few times `interval_s`."""

    def __init__(self, path: Path, interval_s: float, health: Health) -> None:
        self._path = path
        self._interval_s = interval_s
        self._health = health
        self._told: str | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then the file is removed, for a worker that has gone is not healthy."""
        await asyncio.to_thread(self._path.parent.mkdir, parents=True, exist_ok=True)
        while not stop.is_set():
            problem = self._health.problem()
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
