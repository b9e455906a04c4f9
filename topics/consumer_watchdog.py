"""Alive but not consuming: consumers that poll well, have something to read, and read nothing.

Knows how many records a consumer has handed out, where it stands and where its partitions end. Does not know why it
stands still (aiokafka#1154, #847, #1037 are some ways) or what its records say.

A consumer that has something to read and hands out nothing for `stall_s` is replaced; if the one in its place does the
same, the watchdog gives up and its owner ends the process. Where a partition ends is asked over another connection, for
the consumer's may be what is broken; while no broker answers, nobody knows of a stall, and nothing is done. Choose
`stall_s` above the time that a dead worker's transaction may hold a partition: its next owner waits for that.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from enum import Enum

from topics.aiokafka_producer import KafkaUnavailableError
from topics.consumer import ClassConsumer
from topics.kafka_settings import KafkaSettings
from topics.partition_reader import end_offsets

__all__ = ["ConsumerStalledError", "ConsumerWatchdog", "StallWatch", "Verdict"]

log = logging.getLogger(__name__)


class ConsumerStalledError(Exception):
    """A consumer reads nothing although there is something to read, and replacing it did not help."""


class Verdict(Enum):
    WELL = "well"
    REPLACE = "replace"
    """It has stood still for long: a new one may do better."""
    GIVE_UP = "give up"
    """So does its replacement."""


class StallWatch:
    """The judgement on one consumer. Pure."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._records = -1
        self._since_s: float | None = None
        """Standing still since then."""
        self._replaced = False

    def moved(self, records: int) -> bool:
        """Whether anything was handed out since the last call; that clears the consumer, and its replacement."""
        if records == self._records:
            return False
        self._records = records
        self._since_s, self._replaced = None, False
        return True

    def idle(self) -> None:
        """It has handed out nothing because there was nothing, or because it was told not to."""
        self._since_s = None

    def behind(self, now_s: float) -> Verdict:
        """It has something to read, and has handed out nothing since `moved` said so."""
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < self._stall_s:
            return Verdict.WELL
        self._since_s = now_s
        if self._replaced:
            return Verdict.GIVE_UP
        self._replaced = True
        return Verdict.REPLACE


class ConsumerWatchdog:
    def __init__(
        self,
        settings: KafkaSettings,
        consumers: Sequence[ClassConsumer],
        *,
        stall_s: float = 120.0,
        interval_s: float = 15.0,
    ) -> None:
        self._settings = settings
        self._watches = [(consumer, StallWatch(stall_s)) for consumer in consumers]
        self._interval_s = interval_s

    async def run(self, stop: asyncio.Event) -> None:
        """Look every `interval_s` until `stop`. Raises `ConsumerStalledError`."""
        while not stop.is_set():
            for consumer, watch in self._watches:
                await self._look(consumer, watch)
            try:
                async with asyncio.timeout(self._interval_s):
                    await stop.wait()
            except TimeoutError:
                continue  # time to look again

    async def _look(self, consumer: ClassConsumer, watch: StallWatch) -> None:
        statistics = consumer.statistics()
        if watch.moved(statistics.records):
            return
        places = {} if consumer.paused else consumer.positions()
        if not places:
            watch.idle()
            return
        try:
            ends = await end_offsets(self._settings, statistics.topic, places, isolation_level="read_committed")
        except KafkaUnavailableError:
            return  # a broker that is away is no stall, and ends none
        # Where it stands by now, and if it still may.
        places = {} if consumer.paused else consumer.positions()
        if not any((place or 0) < ends.get(partition, 0) for partition, place in places.items()):
            watch.idle()
            return
        verdict = watch.behind(time.monotonic())
        if verdict is Verdict.REPLACE:
            log.error("the consumer of %s reads nothing although it could: it is replaced", statistics.topic)
            consumer.replace("it read nothing although it could")
        elif verdict is Verdict.GIVE_UP:
            raise ConsumerStalledError(
                f"the consumer of {statistics.topic} reads nothing although it could, and so does its replacement"
            )
