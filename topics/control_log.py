"""The control topic as a worker follows it and as anybody writes to it.

Knows its one partition, tombstones, and brokers that go away and come back. Does not know what an order means. Raw
aiokafka objects stay in `topics.partition_reader` and `topics.compacted_topic`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import chain, repeat
from types import TracebackType
from typing import Self

from topics.aiokafka_producer import KafkaUnavailableError
from topics.catalogue import Catalogue
from topics.compacted_topic import CompactedTopic
from topics.control_orders import OF_OFFSET, ControlOrders
from topics.control_records import ControlRecord, WorkerState, control_key
from topics.kafka_settings import KafkaSettings
from topics.partition_reader import PartitionReader
from topics.record import InboundRecord
from topics.replies import OutboundRecord

__all__ = ["ControlDesk", "ControlLog", "Notice", "control_record", "control_tombstone"]

log = logging.getLogger(__name__)

_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_TURN_RECORDS = 100
_ALIVE_MS = 30_000
_NOTICE_S = 10.0


def control_record(catalogue: Catalogue, record: ControlRecord) -> OutboundRecord:
    value = record.model_dump_json(exclude_none=True).encode()
    return OutboundRecord(catalogue.control, 0, control_key(record).encode(), value)


def control_tombstone(catalogue: Catalogue, key: str, of_offset: int | None = None) -> OutboundRecord:
    """Ends the order `key`; with `of_offset` only if no later one has come."""
    headers = () if of_offset is None else ((OF_OFFSET, b"%d" % of_offset),)
    return OutboundRecord(catalogue.control, 0, key.encode(), None, headers)


class ControlLog:
    """Reads the topic from its start: `start` returns when all that stands there was handed on, `run` goes on."""

    def __init__(
        self,
        settings: KafkaSettings,
        catalogue: Catalogue,
        on_records: Callable[[Sequence[InboundRecord]], None],
        on_made_anew: Callable[[], None],
    ) -> None:
        """`on_records` gets each record once, in order, at most a hundred at a time. `on_made_anew`: the topic was
        deleted and made again, and nothing that stood there stands any more; its records follow from the first on."""
        self._settings = settings
        self._topic = catalogue.control
        self._on_records = on_records
        self._on_made_anew = on_made_anew
        self._reader = self._new_reader()
        self._exit = AsyncExitStack()
        self._position = 0

    def _new_reader(self) -> PartitionReader:
        # Orders are in no transaction, and nobody's open one may hold them up.
        return PartitionReader(self._settings, self._topic, 0, read_committed=False)

    async def start(self) -> None:
        """Raises `KafkaUnavailableError`."""
        await self._exit.enter_async_context(self._reader)
        async for records in self._reader.read_to_end():
            await self._hand_on(records)

    async def stop(self) -> None:
        await self._exit.aclose()

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the topic until `stop`; brokers that are away are waited for."""
        pauses_s = chain(_BACKOFF_S, repeat(_BACKOFF_S[-1]))
        while not stop.is_set():
            try:
                if records := await self._reader.read_on():
                    await self._hand_on(records)
            except KafkaUnavailableError as error:
                log.warning("the control topic can't be read: %s", error)
                await _set_within(stop, next(pauses_s))
                if not stop.is_set():
                    await self._reopen()
            else:
                pauses_s = chain(_BACKOFF_S, repeat(_BACKOFF_S[-1]))

    async def _reopen(self) -> None:
        """A new reader where the old one stood; none if no broker answers.

        A log that ends before that place is another one. (One that has grown beyond it already can't be told from the
        old one: whoever deletes the topic should restart the workers.)
        """
        await self._exit.aclose()
        reader = self._new_reader()
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(reader)
                if await reader.end() < self._position:
                    log.warning("the topic %s was made anew: orders that stood there are forgotten", self._topic)
                    self._position = 0
                    self._on_made_anew()
                await reader.seek(self._position)
            except KafkaUnavailableError as error:
                log.warning("the control topic can't be read: %s", error)
                return
            self._reader, self._exit = reader, stack.pop_all()

    async def _hand_on(self, records: Sequence[InboundRecord]) -> None:
        for first in range(0, len(records), _TURN_RECORDS):
            self._on_records(records[first : first + _TURN_RECORDS])
            await asyncio.sleep(0)  # the loop has its turn
        self._position = self._reader.position


@dataclass(frozen=True, slots=True)
class Notice:
    """What the live workers say of an order."""

    applied: list[str]
    """Names of those that have it."""
    late: list[str]
    """Of those that have not, in the time that was given."""
    problems: dict[str, str]
    """Worker → why it can't obey some order that stands."""


class ControlDesk:
    """An async context manager for those who give orders: writes them, and sees which workers have applied them."""

    def __init__(self, settings: KafkaSettings, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._topic = CompactedTopic(settings, catalogue.control, "control")
        self._exit = AsyncExitStack()
        self.orders = ControlOrders()
        """All that is in force, as of the last `refresh`."""

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError`, also where the topic is not there."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._topic)
            await self.refresh()
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    async def refresh(self) -> None:
        """Read what is new. Raises `KafkaUnavailableError`."""
        async for records in self._topic.news():
            for record in records:
                try:
                    self.orders.take(record, _now_ms())
                except ValueError as error:
                    log.warning("%s", error)

    async def write(self, record: ControlRecord) -> int:
        """Return when a broker has the order: whoever has applied the topic up to this offset obeys it.

        Raises `KafkaUnavailableError`, `RecordRefusedError`.
        """
        return await self._submit(control_record(self._catalogue, record))

    async def withdraw(self, key: str) -> int:
        """End the order with this key. Raises as `write`."""
        return await self._submit(control_tombstone(self._catalogue, key))

    async def _submit(self, record: OutboundRecord) -> int:
        await self._topic.write(record)
        await self.refresh()
        return self.orders.last_offset

    def live_workers(self) -> list[WorkerState]:
        """By name. A worker that was killed counts for half a minute more."""
        now_ms = _now_ms()
        alive = [state for state in self.orders.workers.values() if now_ms - state.at_ms < _ALIVE_MS]
        return sorted(alive, key=lambda state: state.worker)

    async def wait_applied(self, offset: int, timeout_s: float = _NOTICE_S) -> Notice:
        """Wait until every live worker has applied the orders up to `offset`, or the time is over.

        Raises `KafkaUnavailableError`.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            await self.refresh()
            workers = self.live_workers()
            late = [state.worker for state in workers if state.applied_offset < offset]
            if not late or time.monotonic() > deadline_s:
                applied = [state.worker for state in workers if state.applied_offset >= offset]
                return Notice(applied, late, {state.worker: state.problem for state in workers if state.problem})
            await asyncio.sleep(0.05)  # the log of a broker is polled


async def _set_within(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
