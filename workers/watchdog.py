"""The watchdog: a worker whose engine hangs ends, with the stacks of all its threads in the log, and is started again.

Knows how long the engine's thread has not come round. Does not know what it was doing, or who starts a process again.

Two lines of defence. A task on the event loop counts the seconds in which the engine did not turn; past the limit it
logs every thread's stack and raises `StepHangs`: the worker leaves its groups and exits. The second is for a process in
which no Python runs any more (the interpreter's lock is held by what hangs, the event loop itself hangs, the way out
hangs): while all is well the task re-arms `faulthandler`'s timer, a thread in C that dumps the stacks and ends the
process when nobody does.

Seconds are counted, not subtracted: a process that was stopped and goes on again has not hung.
"""

import asyncio
import faulthandler
import logging
import sys
import threading
import traceback
from collections.abc import Callable

from workers.runners.errors import StepHangs

__all__ = ["WAY_OUT_S", "Watchdog", "end_within"]

log = logging.getLogger(__name__)

_TICK_S = 1.0
_STANDARD_ERROR = 2
"""The file itself, whatever Python's own stream has become."""
WAY_OUT_S = 90.0
"""After the engine was given up, what leaving the groups and closing may take before the process is ended."""


class Watchdog:
    def __init__(self, last_turn_s: Callable[[], float], longest_turn_s: float, *, tick_s: float = _TICK_S) -> None:
        """`last_turn_s`: when the engine last came round, of any clock; `longest_turn_s`: more is a hang."""
        self._last_turn_s = last_turn_s
        self._longest_turn_s = longest_turn_s
        self._tick_s = tick_s

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises `StepHangs`; then the process has `WAY_OUT_S` left to live."""
        try:
            await self._watch(stop)
        except StepHangs:
            end_within(WAY_OUT_S)
            raise
        except asyncio.CancelledError:
            faulthandler.cancel_dump_traceback_later()
            raise
        faulthandler.cancel_dump_traceback_later()

    async def _watch(self, stop: asyncio.Event) -> None:
        seen_s, still_s = self._last_turn_s(), 0.0
        end_within(self._longest_turn_s + WAY_OUT_S)
        while not stop.is_set():
            try:
                async with asyncio.timeout(self._tick_s):
                    await stop.wait()
            except TimeoutError:
                now_s = self._last_turn_s()
                still_s = 0.0 if now_s != seen_s else still_s + self._tick_s
                seen_s = now_s
            if still_s >= self._longest_turn_s:
                log.critical("the engine has not finished a step for %g s. All threads:\n%s", still_s, _stacks())
                raise StepHangs(f"the engine has not finished a step for {still_s:g} s")
            if not still_s:
                end_within(self._longest_turn_s + WAY_OUT_S)


def end_within(seconds: float) -> None:
    """The process is ended the hard way after so long, stacks on standard error, unless this is called again."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STANDARD_ERROR)


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, '?')} ({ident}):\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
