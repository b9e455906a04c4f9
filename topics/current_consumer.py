"""The aiokafka consumer of now, one after the other: opened, and replaced when it has failed.

Knows how one is opened, why the last was given up, how long to wait before the next (`topics.replacement_pauses`), and
where the one of now stands. Does not know what is read or who owns what (`topics.consumer`).
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

from aiokafka import TopicPartition

from topics.aiokafka_consumer import close_consumer, open_consumer, standing_places
from topics.aiokafka_producer import KafkaUnavailableError
from topics.kafka_settings import KafkaSettings
from topics.replacement_pauses import ReplacementPauses

__all__ = ["CurrentConsumer", "set_within"]

logger = logging.getLogger(__name__)

_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Between attempts to open a consumer again; the last one repeats."""


class CurrentConsumer:
    """Of one topic. Owned by one event loop."""

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        prepare: Callable[[Any], None],
        *,
        timeout_s: float,
        arguments: dict[str, Any],
    ) -> None:
        """`prepare`: subscribe a consumer that is connected. `timeout_s`: to connect, and to leave. `arguments`: of
        `AIOKafkaConsumer`."""
        self._settings = settings
        self._topic = topic
        self._prepare = prepare
        self._timeout_s = timeout_s
        self._arguments = arguments
        self._pauses = ReplacementPauses()
        self._asked: BaseException | None = None
        self.now: Any = None
        """None: there is none, or it is being replaced."""
        self.fault: str | None = None
        """Until one polls well again."""
        self.replaced = 0

    async def open(self) -> Any:
        """Raises `KafkaUnavailableError`."""
        consumer = await open_consumer(self._settings, self._topic, timeout_s=self._timeout_s, **self._arguments)
        self._prepare(consumer)
        self.now = consumer
        return consumer

    def give_up(self, failure: BaseException, worked_s: float) -> float:
        """It has failed, having polled for so long: how many seconds to wait before the next is opened."""
        pause_s = self._pauses.after(worked_s)
        logger.warning("the consumer of %s is replaced in %g s after %r", self._topic, pause_s, failure)
        self.replaced += 1
        self.fault = f"replaced after {failure!r}"
        self.now = self._asked = None
        return pause_s

    async def close(self, consumer: Any) -> None:
        """Leave the group: one that was given up, or the last."""
        if consumer is self.now:
            self.now = None
        await close_consumer(consumer, timeout_s=self._timeout_s)

    async def open_again(self, stopping: asyncio.Event) -> Any | None:
        """A new one, however long it takes. None when the stop came first."""
        for pause_s in chain(_BACKOFF_S, repeat(_BACKOFF_S[-1])):
            if stopping.is_set():
                return None
            try:
                return await self.open()
            except KafkaUnavailableError as error:
                self.fault = str(error)
            await set_within(stopping, pause_s)
        return None

    def replace(self, reason: str) -> None:
        """Somebody wants the one of now replaced, as if it had failed."""
        self._asked = RuntimeError(reason)

    @property
    def asked(self) -> BaseException | None:
        """Why the one of now is to be replaced, if it is."""
        return self._asked

    def pause(self, paused: bool) -> None:
        """All that it is assigned, or none of it."""
        if self.now is not None:
            (self.now.pause if paused else self.now.resume)(*self.now.assignment())

    def positions(self) -> dict[int, int | None]:
        """Partition → the offset that is read next; None while it is being asked for."""
        return {} if self.now is None else standing_places(self.now)

    def end(self, partition: int) -> int | None:
        """Behind the last record that the broker has told of. None: not told, or not assigned."""
        place = TopicPartition(self._topic, partition)
        if self.now is None or place not in self.now.assignment():
            return None
        end: int | None = self.now.highwater(place)
        return end


async def set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether it is set within so long."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
