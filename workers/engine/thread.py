"""The thread that turns the engine's crank, and sleeps while there is nothing to run.

Knows when to turn, when to sleep, and how it ends: drained, stopped or broken. Does not know what a turn does.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from workers.engine.engine import Engine
from workers.engine.messages import EngineMessage
from workers.intake.mailbox import Mailbox

__all__ = ["EngineThread"]

log = logging.getLogger(__name__)

_LONGEST_SLEEP_S = 1.0
"""The watchdog's pulse comes at least so often, work or no work."""


@dataclass(slots=True)
class EngineThread:
    """Runs `engine` until `stop`."""

    engine: Engine
    inbox: Mailbox[EngineMessage]
    on_broken: Callable[[BaseException], None]
    """Called from the thread when a turn raised: the engine is dead and the worker must end."""
    pulse_s: float = 0.0
    """Monotonic time of the last turn: a reader on another thread sees whether the engine lives."""
    _stopping: bool = False
    _drained: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self.pulse_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="headrace-engine", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """End after the current turn. Blocks for as long as a step takes; False: it still runs after `timeout_s`."""
        self._stopping = True
        self.inbox.wake()
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.alive

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait_drained(self, timeout_s: float) -> bool:
        """Block until a `Drain` message was read and nothing runs any more, or the time is over.

        True also when the engine broke: then nothing runs either.
        """
        return self._drained.wait(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:
            log.exception("the engine broke")
            self.on_broken(error)
            self._drained.set()

    def _turn(self) -> None:
        worked = self.engine.step()
        self.pulse_s = time.monotonic()
        if self.engine.drained:
            self._drained.set()
        if worked:
            return
        due = self.engine.next_event()
        sleep_s = _LONGEST_SLEEP_S if due is None else min(max(due - self.pulse_s, 0.0), _LONGEST_SLEEP_S)
        self.inbox.wait(sleep_s)
