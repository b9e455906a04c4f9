"""Reading a reply topic from now on, without a group.

Knows one topic, its partitions and the reply headers. Does not know whose replies are wanted. Raw aiokafka objects stay
inside.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer

from topics.headers import ATTEMPT, CORRELATION_ID, EVENT, REQUEST_ID, SEQ, TOKENS, ReplyEvent
from topics.kafka_settings import KafkaSettings
from topics.replies import decode_token_ids

__all__ = ["Reply", "ReplyReader"]

_POLL_MS = 200
"""How long one fetch waits; also how long `stop` takes at most, for a fetch is never cancelled."""


@dataclass(frozen=True, slots=True)
class Reply:
    event: ReplyEvent
    request_id: str
    attempt: int
    seq: int | None
    """Of a delta: its place in the stream. Of a terminal reply: how many deltas went before."""
    token_ids: tuple[int, ...]
    correlation_id: bytes | None
    value: bytes


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
    ) -> None:
        self._topic = topic
        self._wanted = wanted
        self._on_reply = on_reply
        self._stopping = False
        self._consumer = AIOKafkaConsumer(
            topic,
            **settings.client_arguments(f"read-{topic}"),
            group_id=None,  # all partitions, no offsets kept
            enable_auto_commit=False,
            auto_offset_reset="latest",
            isolation_level="read_committed" if read_committed else "read_uncommitted",
            fetch_max_wait_ms=_POLL_MS,
        )

    async def start(self) -> None:
        """Connect, and stand at the end of every partition: replies to what is sent after this are all seen.

        Raises `LookupError` if the topic doesn't exist.
        """
        await self._consumer.start()
        partitions = self._consumer.assignment()
        if not partitions:
            raise LookupError(f"topic {self._topic!r} does not exist: create it with `headrace topics create`")
        await self._consumer.seek_to_end(*partitions)
        for partition in partitions:
            # The seek is lazy; asking for the position makes it happen now.
            await self._consumer.position(partition)

    async def run(self) -> None:
        """Read until `stop`."""
        while not self._stopping:
            batches: dict[Any, Sequence[Any]] = await self._consumer.getmany(timeout_ms=_POLL_MS)
            for records in batches.values():
                for record in records:
                    self._take(dict(record.headers), record.value)

    def stop(self) -> None:
        """Let `run` return, within one fetch."""
        self._stopping = True

    async def close(self) -> None:
        """After `run` has returned, or `start` has failed."""
        await self._consumer.stop()

    def _take(self, headers: dict[str, bytes], value: bytes | None) -> None:
        request_id = headers.get(REQUEST_ID, b"").decode(errors="replace")
        if value is None or not self._wanted(request_id):
            return
        seq = headers.get(SEQ)
        self._on_reply(
            Reply(
                event=ReplyEvent(headers[EVENT].decode()),
                request_id=request_id,
                attempt=int(headers.get(ATTEMPT, b"1")),
                seq=None if seq is None else int(seq),
                token_ids=decode_token_ids(headers.get(TOKENS, b"")),
                correlation_id=headers.get(CORRELATION_ID),
                value=value,
            )
        )
