"""The terminal replies of one class on their way to the broker, in batches.

Knows order (a terminal reply goes after its request's last delta is acknowledged), batching, and that a record counts
as complete only when its reply is acknowledged. Does not know JSON or offsets: `on_delivered` is called once for each
reply that is on the broker. One writer a class, so that one class's bulk never delays another's.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scheduling.priority import PriorityClass
from topics.producer import TerminalReplies
from topics.record import InboundRecord
from topics.record_producer import RecordRefusedError
from topics.replies import OutboundRecord
from workers.outbox import Publication

__all__ = ["Delivered", "ReplyTopics", "Terminal", "TerminalWriter"]

log = logging.getLogger(__name__)

_BATCH = 256
"""Replies sent together: enough to fill the producer's requests, few enough to be acknowledged soon."""


@dataclass(frozen=True, slots=True)
class ReplyTopics:
    """Our own topics for what leaves the worker."""

    deltas: str
    replies: str
    """Of terminal replies whose caller names no topic."""
    dead_letters: str


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal reply, and whose it is."""

    reply: OutboundRecord
    record: InboundRecord
    epoch: int
    """Of the assignment under which the record came."""
    origin_class: PriorityClass
    after: asyncio.Future[None] | None = None
    """The acknowledgement of the request's last delta."""
    publication: Publication | None = None
    """None: refused at ingress, so the engine never knew it."""


@dataclass(frozen=True, slots=True)
class Delivered:
    terminal: Terminal
    sent_s: float
    acknowledged_s: float


class TerminalWriter:
    """`put` from the event loop; `run` sends until `close`, and then what is left."""

    def __init__(
        self, producer: TerminalReplies, topics: ReplyTopics, on_delivered: Callable[[Delivered], None]
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._on_delivered = on_delivered
        # Bounded by the residency: every reply in it holds the row of its record.
        self._queue: asyncio.Queue[Terminal | None] = asyncio.Queue()

    def put(self, terminal: Terminal) -> None:
        self._queue.put_nowait(terminal)

    def close(self) -> None:
        """Let `run` return when everything that was put is delivered."""
        self._queue.put_nowait(None)

    async def run(self) -> None:
        closed = False
        while not closed:
            batch: list[Terminal] = []
            terminal = await self._queue.get()
            while terminal is not None:
                batch.append(terminal)
                if len(batch) == _BATCH or self._queue.empty():
                    break
                terminal = self._queue.get_nowait()
            closed = terminal is None
            if batch:
                await self._deliver(batch)

    async def _deliver(self, batch: Sequence[Terminal]) -> None:
        if after := [terminal.after for terminal in batch if terminal.after is not None]:
            # A delta that was refused is no reason to hold the answer back: the final has the whole text.
            await asyncio.gather(*after, return_exceptions=True)
        sent_s = time.monotonic()
        outcomes = await self._producer.send_terminals([terminal.reply for terminal in batch])
        acknowledged_s = time.monotonic()
        for terminal, refusal in zip(batch, outcomes, strict=True):
            if refusal is not None:
                await self._send_elsewhere(terminal.reply, refusal)
            self._on_delivered(Delivered(terminal, sent_s, acknowledged_s))

    async def _send_elsewhere(self, reply: OutboundRecord, refusal: RecordRefusedError) -> None:
        """The caller's own topic takes nothing: the answer goes to the default one, where nobody may be looking.

        Raises `RecordRefusedError` if one of our own topics refuses, which ends the worker: a reply must not be lost
        silently.
        """
        if reply.topic in (self._topics.replies, self._topics.dead_letters) and reply.partition is None:
            raise refusal
        log.warning("a reply to %s was refused (%s): it goes to %s", reply.topic, refusal, self._topics.replies)
        await self._producer.send_terminal(replace(reply, topic=self._topics.replies, partition=None))
