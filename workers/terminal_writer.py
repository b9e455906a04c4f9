"""The terminal replies of one class on their way to the broker, in batches.

Knows order (a terminal reply goes after its request's last delta is acknowledged), batching, and that a record counts as
complete only when its reply is acknowledged. Does not know JSON or offsets: `on_delivered` is called once for each
reply that is on the broker. One writer a class, so that one class's bulk never delays another's.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from scheduling.priority import PriorityClass
from topics.producer import ReplyProducer
from topics.record import InboundRecord
from topics.replies import OutboundRecord
from workers.outbox import Publication

__all__ = ["Delivered", "Terminal", "TerminalWriter"]

_BATCH = 256
"""Replies sent together: enough to fill the producer's requests, few enough to be acknowledged soon."""


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

    def __init__(self, producer: ReplyProducer, on_delivered: Callable[[Delivered], None]) -> None:
        self._producer = producer
        self._on_delivered = on_delivered
        # Bounded by the residency: every reply in it holds the row of its record.
        self._queue: asyncio.Queue[Terminal | None] = asyncio.Queue()

    def put(self, terminal: Terminal) -> None:
        self._queue.put_nowait(terminal)

    def close(self) -> None:
        """Let `run` return when everything that was put is delivered."""
        self._queue.put_nowait(None)

    async def run(self) -> None:
        while (first := await self._queue.get()) is not None:
            batch = [first]
            closed = False
            while len(batch) < _BATCH and not self._queue.empty():
                terminal = self._queue.get_nowait()
                if terminal is None:
                    closed = True
                    break
                batch.append(terminal)
            async with asyncio.TaskGroup() as sends:
                for terminal in batch:
                    sends.create_task(self._send(terminal))
            if closed:
                return

    async def _send(self, terminal: Terminal) -> None:
        if terminal.after is not None:
            await terminal.after
        sent_s = time.monotonic()
        await self._producer.send_terminal(terminal.reply)
        self._on_delivered(Delivered(terminal, sent_s, time.monotonic()))
