"""Reading a reply topic from now on, without a group.

Knows one topic, its partitions and the reply headers. Does not know whose replies are wanted or how they are put
together (`topics.reply_merge`). Raw aiokafka objects stay inside.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from topics.aiokafka_consumer import close_consumer, open_consumer
from topics.aiokafka_producer import KafkaUnavailableError
from topics.headers import ATTEMPT, CORRELATION_ID, EVENT, REQUEST_ID, SEQ, TOKENS, ReplyEvent
from topics.kafka_settings import KafkaSettings
from topics.replies import decode_token_ids
from topics.stage_times import SERVER_TIMING, StageTimes

__all__ = ["Reply", "ReplyReader"]

logger = logging.getLogger(__name__)

_POLL_MS = 200
"""How long one fetch waits; also how long `stop` takes at most, for a fetch is never cancelled."""
_MAX_RECORDS = 256
"""Of one turn of the loop: most are others' replies and cost a look at their headers."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A delta or terminal reply, its headers read."""

    event: ReplyEvent
    request_id: str
    attempt: int
    seq: int | None
    """Of a delta: its place in the stream."""
    token_ids: tuple[int, ...]
    correlation_id: bytes | None
    value: bytes
    stages: StageTimes | None = None
    """Of a terminal reply: where the request's time went, as far as the worker says."""

    @classmethod
    def decode(cls, headers: Mapping[str, bytes], value: bytes) -> "Reply":
        """Raises `ValueError` for headers that no worker writes."""
        seq = headers.get(SEQ)
        return cls(
            event=ReplyEvent(headers.get(EVENT, b"").decode(errors="replace")),
            request_id=headers.get(REQUEST_ID, b"").decode(errors="replace"),
            attempt=int(headers.get(ATTEMPT, b"1")),
            seq=None if seq is None else int(seq),
            token_ids=decode_token_ids(headers.get(TOKENS, b"")),
            correlation_id=headers.get(CORRELATION_ID),
            value=value,
            stages=StageTimes.decode_header(headers[SERVER_TIMING]) if SERVER_TIMING in headers else None,
        )


class ReplyReader:
    """Hands every reply that `wanted` asks for to `on_reply`, in the order of its partition."""

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        *,
        read_committed: bool,
        wanted: Callable[[str], bool],
        on_reply: Callable[[Reply], None],
        partition: int | None = None,
    ) -> None:
        """`partition`: the only one that is read; None: all, those that are added later too."""
        self._partition = partition
        self._settings = settings
        self._topic = topic
        self._read_committed = read_committed
        self._wanted = wanted
        self._on_reply = on_reply
        self._stopping = False
        self._consumer: Any = None
        self._unreadable = 0

    @property
    def unreadable(self) -> int:
        """Wanted replies whose headers no worker can have written; they were dropped."""
        return self._unreadable

    async def start(self, timeout_s: float) -> None:
        """Connect, and stand at the end of every partition: replies to what is sent after this are all seen.

        The topic must exist. Raises `KafkaUnavailableError`.
        """
        self._consumer = await open_consumer(
            self._settings,
            f"read-{self._topic}",
            topics=[self._topic] if self._partition is None else [],
            timeout_s=timeout_s,
            group_id=None,  # all partitions, no offsets kept
            auto_offset_reset="latest",
            isolation_level="read_committed" if self._read_committed else "read_uncommitted",
            fetch_max_wait_ms=_POLL_MS,
        )
        if self._partition is not None:
            self._consumer.assign([TopicPartition(self._topic, self._partition)])
        partitions = self._consumer.assignment()
        try:
            async with asyncio.timeout(timeout_s):
                await self._consumer.seek_to_end(*partitions)
                for partition in partitions:
                    # The seek is lazy; asking for the position makes it happen now.
                    await self._consumer.position(partition)
        except (KafkaError, TimeoutError) as error:
            raise KafkaUnavailableError(self._settings, error) from error

    async def run(self) -> None:
        """Read until `stop`. Raises what aiokafka can't get over by itself."""
        while not self._stopping:
            batches: dict[Any, Sequence[Any]] = await self._consumer.getmany(
                timeout_ms=_POLL_MS, max_records=_MAX_RECORDS
            )
            for records in batches.values():
                for record in records:
                    self._take(dict(record.headers), record.value)
            # A fetch that finds records at hand returns without ever suspending: let the loop have its turn.
            await asyncio.sleep(0)

    def stop(self) -> None:
        """Let `run` return, within one fetch."""
        self._stopping = True

    async def close(self, timeout_s: float) -> None:
        """After `run` has returned, or `start` has failed."""
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await close_consumer(consumer, timeout_s=timeout_s)

    def _take(self, headers: Mapping[str, bytes], value: bytes | None) -> None:
        request_id = headers.get(REQUEST_ID) or b""
        if value is None or not self._wanted(request_id.decode(errors="replace")):
            return
        try:
            reply = Reply.decode(headers, value)
        except ValueError as error:
            # Anyone may write to the topic: one bad record must not end everybody's streams.
            self._unreadable += 1
            logger.warning("a reply on %s was dropped, its headers can't be read: %s", self._topic, error)
        else:
            self._on_reply(reply)
