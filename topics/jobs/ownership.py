"""Sharing partitions between processes: a consumer group that reads nothing.

Knows which partitions of a topic are this process's. Does not read them: whoever needs their records has readers of his
own (`topics.partition_reader`), which may begin anywhere. The group only sees to it that each partition has one owner,
and that another gets it when that one is gone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from topics.aiokafka_consumer import close_consumer, open_consumer
from topics.kafka_settings import KafkaSettings

__all__ = ["PartitionOwnership"]

logger = logging.getLogger(__name__)

_POLL_MS = 500
_OUTAGE_S = 2.0
"""Until brokers that were away are asked again."""
_CONNECT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 5.0


class PartitionOwnership:
    """An async context manager; `run` keeps the membership alive."""

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        group: str,
        on_change: Callable[[frozenset[int]], Awaitable[None]],
        *,
        session_timeout_ms: int = 10_000,
    ) -> None:
        """`on_change` is awaited with the partitions that are ours now; before a rebalance, with none.

        The next owner waits for it, so it should let go of what it holds and return soon.
        """
        self._settings = settings
        self._topic = topic
        self._group = group
        self._on_change = on_change
        self._session_timeout_ms = session_timeout_ms
        self._consumer: Any = None
        self._stopping = False
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError`."""
        self._consumer = await open_consumer(
            self._settings,
            "collect",
            timeout_s=_CONNECT_TIMEOUT_S,
            group_id=self._group,
            session_timeout_ms=self._session_timeout_ms,
            heartbeat_interval_ms=self._session_timeout_ms // 4,
            auto_offset_reset="latest",
        )
        self._consumer.subscribe([self._topic], listener=_Listener(self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_consumer(self._consumer, timeout_s=_CLOSE_TIMEOUT_S)

    async def run(self) -> None:
        """Until `stop`, through brokers that come and go. Raises what `on_change` raises."""
        while not self._stopping:
            try:
                # Everything assigned is paused, so nothing comes; but whoever doesn't ask is taken for dead.
                await self._consumer.getmany(timeout_ms=_POLL_MS)
            except KafkaError as error:
                logger.warning("the group %s: %r; trying again", self._group, error)
                await asyncio.sleep(_OUTAGE_S)
            if self._failure is not None:
                raise self._failure

    def stop(self) -> None:
        self._stopping = True

    async def changed(self, partitions: Iterable[TopicPartition]) -> None:
        """The listener's word."""
        ours = list(partitions)
        self._consumer.pause(*ours)
        try:
            await self._on_change(frozenset(place.partition for place in ours))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - aiokafka would only log it: `run` raises it
            self._failure = self._failure or error


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types
    def __init__(self, ownership: PartitionOwnership) -> None:
        self._ownership = ownership

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._ownership.changed(())

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        await self._ownership.changed(assigned)
