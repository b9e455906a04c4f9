"""The terminal replies of one class on their way to the broker, in batches.

Knows order (a terminal reply goes after its request's last delta is acknowledged), batching, and where a reply goes
that its own topic refuses. Does not know JSON, offsets or transactions: `on_settled` is called once for each reply,
when it is delivered or its partition has gone to another worker. One writer a class, so that one class's bulk never
delays another's.

A batch is what has come while the last one was delivered, within bounds (`workers.answers.terminal_batches`): none
waits for a clock.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scheduling.priority import PriorityClass
from topics.assignment import PartitionEpoch
from topics.errors import RequestError
from topics.known_topics import RecordRefusedError
from topics.record import RecordId
from topics.replies import OutboundRecord
from topics.terminal_replies import Fate, TerminalReplies, TerminalReply
from workers.answers.terminal_batches import TerminalBatches
from workers.engine.outbox import Publication

__all__ = ["ReplyTopics", "Settled", "Terminal", "TerminalWriter", "ended_in_bulk"]

log = logging.getLogger(__name__)

_ENDED_IN_BULK = frozenset({"cancelled", "expired"})


def ended_in_bulk(error: RequestError) -> bool:
    """Whether an order or the clock ended it, perhaps with thousands of others."""
    return error.code in _ENDED_IN_BULK


@dataclass(frozen=True, slots=True)
class ReplyTopics:
    """Our own topics for what leaves the worker."""

    deltas: str
    replies: str
    """Of terminal replies whose caller names no topic."""
    dead_letters: str
    requests: str = "inference"
    """What the request topics' names begin with."""

    def requests_of(self, priority: PriorityClass) -> str:
        return f"{self.requests}.{priority.label}"


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal reply, and whose it is."""

    reply: OutboundRecord
    record: RecordId
    epoch: int
    """Of the assignment under which the record came."""
    origin_class: PriorityClass
    after: asyncio.Future[Any] | None = None
    """The acknowledgement of what is written of the request besides: its last delta, a note of its attempt."""
    publication: Publication | None = None
    """None: refused at ingress, so the engine never knew it."""
    beside: tuple[OutboundRecord, ...] = ()
    """See `TerminalReply`."""
    instead: "Callable[[Terminal], Terminal] | None" = None
    """What takes its place if no topic of ours takes it: an error. None: it is one, and small enough for any."""
    moves: bool = False
    """No reply, but the request itself on its way into another class."""
    in_bulk: bool = False
    """Ended by an order or the clock, with perhaps thousands of others: answers go before it."""
    held_bytes: int = 0
    """Of the record, which can't be let go of before this is delivered."""
    partition: PartitionEpoch = field(init=False, compare=False, repr=False)
    """Of the record. Everybody asks for it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition", PartitionEpoch(self.record.topic, self.record.partition, self.epoch))

    @property
    def records(self) -> tuple[OutboundRecord, ...]:
        return (*self.beside, self.reply)


@dataclass(frozen=True, slots=True)
class Settled:
    terminal: Terminal
    fate: Fate
    sent_s: float
    acknowledged_s: float


class TerminalWriter:
    """`put` from the event loop; `run` sends until `close`, and then what is left."""

    def __init__(self, replies: TerminalReplies, topics: ReplyTopics, on_settled: Callable[[Settled], None]) -> None:
        self._replies = replies
        self._topics = topics
        self._on_settled = on_settled
        self._ready = TerminalBatches[Terminal]()
        self._news = asyncio.Event()
        self._unsettled = 0
        """Put and not settled, those that wait for a delta included."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False

    def put(self, terminal: Terminal) -> None:
        self._unsettled += 1
        self._idle.clear()
        if terminal.after is None or terminal.after.done():
            self._now_ready(terminal)
        else:
            # Alone: a delta that the broker doesn't take yet holds nobody else's answer back. A delta that was refused
            # is no reason either, for the final has the whole text.
            terminal.after.add_done_callback(lambda _acknowledged: self._now_ready(terminal))

    def close(self) -> None:
        """Let `run` return when everything that was put is settled."""
        self._closing = True
        self._news.set()

    async def wait_idle(self) -> None:
        """Return when everything that was put is settled."""
        await self._idle.wait()

    async def run(self) -> None:
        while self._unsettled or not self._closing:
            await self._news.wait()
            self._news.clear()
            while batch := self._ready.take():
                await self._deliver(batch)

    def _now_ready(self, terminal: Terminal) -> None:
        self._ready.put(terminal)
        self._news.set()

    async def _deliver(self, batch: Sequence[Terminal]) -> None:
        sent_s = time.monotonic()
        outcomes = await self._replies.deliver([_reply(terminal) for terminal in batch])
        self._ready.delivered(len(batch), time.monotonic() - sent_s)
        for terminal, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, RecordRefusedError):
                terminal, fate = await self._send_elsewhere(terminal, outcome)
            else:
                fate = outcome
            self._on_settled(Settled(terminal, fate, sent_s, time.monotonic()))
            self._unsettled -= 1
        if not self._unsettled:
            self._idle.set()
            self._news.set()

    async def _send_elsewhere(self, terminal: Terminal, refusal: RecordRefusedError) -> tuple[Terminal, Fate]:
        """The caller's own topic takes nothing: the answer goes to the default one, where nobody may be looking. That
        one doesn't take it either, for it is too large: an error takes its place. So for a request that can't be moved.
        Returns what was sent.

        Raises `RecordRefusedError` if one of our own topics refuses even that, which ends the worker: a reply must not
        be lost silently.
        """
        while True:
            reply = terminal.reply
            own = reply.topic in (self._topics.replies, self._topics.dead_letters) and reply.partition is None
            if not own and not terminal.moves:
                log.warning("a reply to %s was refused (%s): it goes to %s", reply.topic, refusal, self._topics.replies)
                terminal = replace(terminal, reply=replace(reply, topic=self._topics.replies, partition=None))
            elif terminal.instead is not None:
                log.warning("%s is answered with an error, for %s", terminal.record, refusal)
                terminal = terminal.instead(terminal)
            else:
                raise refusal
            (outcome,) = await self._replies.deliver([_reply(terminal)])
            if not isinstance(outcome, RecordRefusedError):
                return terminal, outcome
            refusal = outcome


def _reply(terminal: Terminal) -> TerminalReply:
    return TerminalReply(terminal.reply, terminal.partition, terminal.record.offset, terminal.beside)
