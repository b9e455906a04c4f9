"""The worker's end of the control topic: orders become what they mean here, and the worker says what it has applied.

Knows which order concerns which part of the worker. Does not know how the topic is read (`topics.control_log`), which
orders are in force (`topics.control_orders`) or how a part obeys. Owned by the event loop.

Before the worker joins its groups it has read the whole topic, so no request is ever indexed without the orders that
stand before it. What is indexed already is told to the engine in the same turn of the loop in which ingress begins to
know of an order, so nothing slips between the two.

A cancel whose time is over is taken off the topic by the first worker that sees it, each after a moment of its own.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from topics.catalogue import Catalogue
from topics.control_log import ControlLog, control_record, control_tombstone
from topics.control_orders import Cancel, ControlOrders, StandingOrder
from topics.control_records import DrainOrder, WorkerState, control_key
from topics.kafka_settings import KafkaSettings
from topics.record import InboundRecord
from topics.record_producer import RecordProducer
from topics.replies import OutboundRecord

__all__ = ["ControlEffects", "WorkerControl"]

log = logging.getLogger(__name__)

_BEAT_S = 5.0
_TIDY_S = 10.0
"""How often expired cancels are looked for. A worker waits up to as long again before it takes one off the topic, so
that mostly one of them does it."""
_GRACE_S = 2.0
_FORGOTTEN_MS = 3_600_000
"""A worker that was killed is taken off the topic when it has said nothing for so long."""


@dataclass(frozen=True, slots=True)
class ControlEffects:
    """What orders do to the rest of the worker."""

    cancel: Callable[[tuple[Cancel, ...]], None]
    """End what is indexed already; ingress asks `WorkerControl.orders` of what comes."""
    obey: Callable[[Iterable[StandingOrder]], None]
    """Go on under these pauses, quotas and this policy, and no others."""
    drain: Callable[[], None]
    """End this worker in order."""
    problem: Callable[[], str | None]
    """Why some order that stands is not obeyed."""


class WorkerControl:
    def __init__(
        self,
        settings: KafkaSettings,
        catalogue: Catalogue,
        *,
        worker: str,
        classes: Sequence[str],
        effects: ControlEffects,
    ) -> None:
        """`worker`: this worker's name, as orders name it."""
        self.orders = ControlOrders()
        self._catalogue = catalogue
        self._worker = worker
        self._classes = tuple(classes)
        self._effects = effects
        self._log = ControlLog(settings, catalogue, self._take, self._forget)
        self._producer = RecordProducer(settings, "control", max_in_flight_bytes=2**20)
        self._state: Literal["serving", "draining"] = "serving"
        self._told: WorkerState | None = None
        self._tidy_delay_ms = int(1000 * random.uniform(0, _TIDY_S))
        self._drained_by: str | None = None
        """The key of the order to leave."""
        self._standing: tuple[StandingOrder, ...] = ()
        self._reading = True
        """Still reading what stood there at the start: nothing is indexed yet."""

    async def start(self) -> None:
        """Return when every order that stands on the topic is known. Raises `KafkaUnavailableError`."""
        await self._producer.start()
        await self._log.start()
        self._reading = False
        self._obey()

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the topic until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._log.run(stop))
            tasks.create_task(self._beat(stop))

    async def stop(self) -> None:
        """After `run` has returned, or `start` has failed. The worker's own word is taken back."""
        if self._drained_by is not None:
            self._submit(control_tombstone(self._catalogue, self._drained_by))
        if self._told is not None:
            self._submit(control_tombstone(self._catalogue, control_key(self._told)))
        await self._log.stop()
        await self._producer.stop(_GRACE_S)

    def draining(self) -> None:
        """Say from now on that nothing new starts here."""
        self._state = "draining"
        self._tell()

    # --- orders come ----------------------------------------------------------------------------------------------

    def _take(self, records: Sequence[InboundRecord]) -> None:
        now_ms = _now_ms()
        cancels: list[Cancel] = []
        for record in records:
            try:
                change = self.orders.take(record, now_ms)
            except ValueError as error:
                # Anyone with the right may write to the topic: one bad record must not stop the orders behind it.
                log.warning("%s", error)
                continue
            if isinstance(change, Cancel):
                cancels.append(change)
            elif isinstance(change, DrainOrder) and change.worker == self._worker and not self._reading:
                # One that stood there before was given to an earlier process of this name.
                self._drained_by = control_key(change)
                log.warning("draining, as ordered on the control topic")
                self._effects.drain()
        if self._reading:
            return
        if cancels:
            self._effects.cancel(tuple(cancels))
        self._obey()
        if self._told is not None and self.orders.last_offset > self._told.applied_offset:
            self._tell()

    def _forget(self) -> None:
        """The topic was made anew."""
        self.orders.forget_all()
        self._obey()
        if self._told is not None:
            self._tell()

    def _obey(self) -> None:
        standing = tuple(self.orders.standing.values())
        if standing != self._standing:
            self._standing = standing
            self._effects.obey(standing)

    # --- the worker's own word ------------------------------------------------------------------------------------

    async def _beat(self, stop: asyncio.Event) -> None:
        tidied_s = time.monotonic()
        while not stop.is_set():
            self._tell()
            if time.monotonic() - tidied_s >= _TIDY_S:
                tidied_s = time.monotonic()
                self._tidy()
            try:
                async with asyncio.timeout(_BEAT_S):
                    await stop.wait()
            except TimeoutError:
                continue  # time for the next beat

    def _tell(self) -> None:
        self._told = WorkerState(
            worker=self._worker,
            classes=self._classes,
            state=self._state,
            applied_offset=self.orders.last_offset,
            problem=self._effects.problem(),
            at_ms=_now_ms(),
        )
        self._submit(control_record(self._catalogue, self._told))

    def _tidy(self) -> None:
        for key, offset in self.orders.expired(_now_ms() - self._tidy_delay_ms):
            self._submit(control_tombstone(self._catalogue, key, offset))
        long_ago_ms = _now_ms() - _FORGOTTEN_MS - self._tidy_delay_ms
        for state in [state for state in self.orders.workers.values() if state.at_ms < long_ago_ms]:
            self._submit(control_tombstone(self._catalogue, control_key(state)))

    def _submit(self, record: OutboundRecord) -> None:
        """Without waiting. Without room, when no broker has answered for long, it is dropped: the next beat says it."""
        if self._producer.has_room:
            self._producer.submit(record)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
