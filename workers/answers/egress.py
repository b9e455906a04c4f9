"""Egress: what the engine publishes becomes deltas and terminal replies on the broker.

Knows text (detokenising is done here, not in the step), when a delta is due, and which reply goes where. Does not know
offsets or the engine's state. Runs on the event loop.

One delta record is not one token: the first goes at once, later ones by time and size (`EgressConfig`). When the
broker is slow and the delta producer has no room, streams coalesce; when terminal replies pile up undelivered, the
outbox is full and the engine dispatches nothing new.

An order may end thousands of requests at once. Their errors are made a few at a time, between others' words.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scheduling.priority import PriorityClass
from topics.assignment import PartitionEpoch
from topics.errors import RequestError
from topics.producer import DeltaProducer
from topics.record import InboundRecord, RecordId
from topics.replies import OutboundRecord, ReplyContext
from topics.requeue import moved_record
from topics.stage_times import StageTimes
from workers.answers.answer_logprobs import AnswerLogprobs
from workers.answers.detokenizer import Detokenizer
from workers.answers.growing_replies import GrowingReplies
from workers.answers.growing_reply import GrowingReply
from workers.answers.reply_body import ReplyBody, error_body
from workers.answers.reply_contexts import ReplyContexts
from workers.answers.reply_stream import ReplyStream
from workers.answers.terminal_writer import ReplyTopics, Terminal, TerminalWriter, ended_in_bulk
from workers.answers.usage import UsageWriter
from workers.attempts.attempts import Attempts
from workers.configuration.config import EgressConfig
from workers.engine.outbox import Outbox, Publication
from workers.engine.stages import stage_times
from workers.intake.payload_source import Missing
from workers.intake.prompt import PreparedRequest
from workers.intake.request import Arrival, Ending, FinishReason, Moved
from workers.telemetry.wall_clock import WallClock

__all__ = ["Egress"]

_PUBLICATIONS_A_TURN = 32
"""Some milliseconds."""


class Egress:
    def __init__(
        self,
        config: EgressConfig,
        *,
        outbox: Outbox,
        topics: ReplyTopics,
        deltas: DeltaProducer,
        writers: Mapping[PriorityClass, TerminalWriter],
        new_detokenizer: Callable[[], Detokenizer],
        attempts: Attempts,
        contexts: ReplyContexts,
        token_bytes: Callable[[int], bytes],
        payload_of: Callable[[Arrival, Callable[[InboundRecord | Missing], None]], None],
        on_tokens: Callable[[Arrival, int], None] = lambda _arrival, _count: None,
        on_begun: Callable[[Arrival, float], None] = lambda _arrival, _acknowledged_s: None,
        usage: UsageWriter | None = None,
    ) -> None:
        """`token_bytes`: what a token stands for. `payload_of` gives a request's record, now or later. `on_tokens` is
        told of output tokens as they come, `on_begun` of the moment when the broker has a stream's first delta."""
        self._outbox = outbox
        self._topics = topics
        self._deltas = deltas
        self._writers = writers
        self._new_detokenizer = new_detokenizer
        self._attempts = attempts
        self._contexts = contexts
        self._token_bytes = token_bytes
        self._payload_of = payload_of
        self._clock = WallClock()
        self._on_tokens = on_tokens
        self._on_begun = on_begun
        self._usage = usage
        self._interval_s = config.delta_interval_ms / 1000
        self._max_tokens = config.delta_max_tokens
        self._revoked: dict[tuple[str, int], int] = {}
        """The last epoch of each partition that is gone or was gone."""
        self._replies = GrowingReplies(outbox.release)
        self._ended_in_bulk: deque[Publication] = deque()
        """To be answered after what else there is. Bounded as the outbox is: their bytes count there."""
        self._news = asyncio.Event()
        self._closing = False
        self._said: tuple[RequestError, bytes] | None = None
        """The last error, and its body: an order ends thousands with one."""

    def notify(self) -> None:
        """There is something in the outbox. On the event loop (the engine thread asks the loop to call it)."""
        self._news.set()

    def close(self) -> None:
        """Let `run` return when it has published what is in the outbox. After the engine has stopped."""
        self._closing = True
        self._news.set()

    async def run(self) -> None:
        while not self._closing:
            await self._wait()
            self._news.clear()
            await self._publish_new()
            await self._publish_in_bulk()
            await self._send_due()
        # The engine has stopped: what it left is all there will be.
        await self._publish_new()
        while self._ended_in_bulk:
            await self._publish_in_bulk()
            await asyncio.sleep(0)

    async def _publish_new(self) -> None:
        for number, publication in enumerate(self._outbox.take_all(), start=1):
            if publication.ending is not None and _in_bulk(publication.ending):
                self._ended_in_bulk.append(publication)
            else:
                await self._publish(publication)
            if number % _PUBLICATIONS_A_TURN == 0 or publication.has_vector:
                # Heartbeats and records must get their turn.
                await asyncio.sleep(0)

    async def _publish_in_bulk(self) -> None:
        """Some of them."""
        for _ in range(min(_PUBLICATIONS_A_TURN, len(self._ended_in_bulk))):
            await self._publish(self._ended_in_bulk.popleft())

    def revoke(self, topic: str, partition: int, epoch: int) -> list[RecordId]:
        """The partition is taken away. What the engine says of its requests counts for as long as they are carried. Of
        which requests it counts no more, for they have several sequences."""
        self._revoked[topic, partition] = epoch
        return [
            reply.arrival.id
            for reply in self._replies.of(topic, partition)
            if any(_cut(stream.prepared) for stream in reply.streams.values())
        ]

    def drop(self, records: Iterable[RecordId]) -> None:
        """They are another worker's now, or are run again."""
        self._replies.drop(records)

    async def wait_told(self, partitions: Collection[PartitionEpoch]) -> None:
        """Return when of these partitions none is in the middle of its answer."""
        await self._replies.wait_told(partitions)

    # --- deltas ---------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        if self._ended_in_bulk:
            return await asyncio.sleep(0)
        dues = (stream.due_s(self._interval_s, self._max_tokens) for _, stream in self._replies.streams())
        soonest_s = min((due_s for due_s in dues if due_s is not None), default=None)
        try:
            async with asyncio.timeout(None if soonest_s is None else max(0.0, soonest_s - time.monotonic())):
                await self._news.wait()
        except TimeoutError:
            return None  # a delta is due
        return None

    async def _send_due(self) -> None:
        now_s = time.monotonic()
        for reply, stream in self._replies.streams():
            due_s = stream.due_s(self._interval_s, self._max_tokens)
            if due_s is not None and due_s <= now_s:
                # Without room the texts grow together, and all are sent when there is some.
                if not self._deltas.has_room:
                    await self._deltas.wait_for_room()
                    return self._news.set()
                self._send_delta(reply, stream, finish_reason=None)
        return None

    async def _publish(self, publication: Publication) -> None:
        arrival, prepared = publication.arrival, publication.prepared
        if arrival.epoch <= self._revoked.get((arrival.id.topic, arrival.id.partition), 0):
            whose = None if _cut(prepared) else self._attempts.carried.whose(arrival)
            if whose is None:
                self._outbox.delivered(publication)
                return
            publication.arrival = arrival = whose
        reply, stream = self._replies.get(arrival.id), None
        if prepared is not None:
            if reply is None:
                reply = self._new_reply(arrival, prepared)
                self._replies.add(reply)
            stream = reply.streams.get(prepared.sequence)
            if stream is None:
                stream = reply.streams[prepared.sequence] = self._new_stream(arrival, prepared)
            new_tokens = stream.take(publication.token_ids, publication.text, publication.logprobs)
            self._attempts.progressed(arrival, sum(each.tokens for each in reply.streams.values()))
            self._on_tokens(arrival, new_tokens)
        if publication.ending is None:
            return
        if isinstance(publication.ending.reason, Moved):
            await self._move(publication, publication.ending.reason)
        elif publication.ending.error is not None:
            self._fail(publication, reply, publication.ending)
        else:
            assert reply is not None, f"{arrival.id} ended well without having been staged"
            assert stream is not None, f"{arrival.id} ended well without having been staged"
            await self._finish(publication, reply, stream, publication.ending)

    def _new_reply(self, arrival: Arrival, prepared: PreparedRequest) -> GrowingReply:
        body = ReplyBody(arrival.headers.request_id, prepared, self._token_bytes)
        return GrowingReply(arrival, self._contexts.of(arrival), body, self._attempts.start_of(arrival))

    def _new_stream(self, arrival: Arrival, prepared: PreparedRequest) -> ReplyStream:
        detokenizer = None if prepared.stop or prepared.embedding is not None else self._new_detokenizer()
        logprobs = None
        if prepared.sampling.logprobs is not None:
            logprobs = AnswerLogprobs(self._new_detokenizer(), prepared.eos_token_ids)
        start = self._attempts.start_of(arrival)
        return ReplyStream(arrival.headers.request_id, prepared, detokenizer, logprobs, start)

    def _send_delta(self, reply: GrowingReply, stream: ReplyStream, finish_reason: FinishReason | None) -> None:
        first = not stream.started
        part = stream.next_delta(time.monotonic())
        value = reply.body.chunk(
            part.text,
            first=first,
            index=stream.prepared.sequence,
            finish_reason=finish_reason,
            calls=part.calls,
            logprobs=part.logprobs,
        )
        self._send(reply, value, part.token_ids)

    def _send(self, reply: GrowingReply, value: bytes, token_ids: Sequence[int]) -> None:
        seq = reply.next_seq()
        record = reply.context.delta(value, seq=seq, token_ids=token_ids)
        reply.last_acknowledgement = acknowledgement = self._deltas.send(record)
        if seq == 0 and not reply.begun_before:
            acknowledgement.add_done_callback(partial(self._begun, reply.arrival))

    def _begun(self, arrival: Arrival, acknowledgement: asyncio.Future[RecordId]) -> None:
        if not acknowledgement.cancelled() and acknowledgement.exception() is None:
            self._on_begun(arrival, time.monotonic())

    # --- ends -----------------------------------------------------------------------------------------------------

    def _fail(self, publication: Publication, reply: GrowingReply | None, ending: Ending) -> None:
        arrival, told = publication.arrival, None
        assert ending.error is not None
        if reply is None:
            context = self._contexts.of(arrival)
        else:
            self._replies.forget(arrival.id)
            context, told = reply.context, reply.last_acknowledgement
            publication.bytes += reply.ended_bytes
        if self._said is None or self._said[0] is not ending.error:
            self._said = ending.error, error_body(ending.error)
        self._put(publication, context.error(self._said[1], self._stages(arrival, ending)), told)

    async def _finish(self, publication: Publication, reply: GrowingReply, stream: ReplyStream, ending: Ending) -> None:
        """A sequence has its answer; with the last of them the request has its reply."""
        assert isinstance(ending.reason, FinishReason)
        stream.finish()
        answer = stream.answer(ending.reason, ending.embedding)
        if stream.prepared.stream:
            await self._send_last_deltas(reply, stream, answer.finish_reason)
        if self._replies.get(publication.arrival.id) is not reply:
            # Its partition has gone while a delta waited for room.
            self._outbox.delivered(publication)
            return
        if not reply.end(stream.prepared, answer, ending):
            reply.ended_bytes += publication.bytes
            return
        self._replies.forget(publication.arrival.id)
        publication.bytes += reply.ended_bytes
        publication.ending = whole = reply.ending()
        tokens = {
            "prompt_tokens": whole.prompt_tokens,
            "output_tokens": whole.output_tokens,
            "cached_tokens": whole.cached_tokens,
        }
        if stream.prepared.include_usage and not stream.start.usage_told:
            await self._room()
            self._send(reply, reply.body.usage_chunk(**tokens), ())
        stages = self._stages(publication.arrival, whole)
        final = reply.context.final(reply.body.final(reply.answers(), **tokens), stages)
        self._put(publication, final, reply.last_acknowledgement, instead=RequestError.answer_too_large())

    async def _move(self, publication: Publication, moved: Moved) -> None:
        """It waits in another class from now on, and is answered from there."""
        arrival, told = publication.arrival, None
        self._replies.forget(arrival.id)
        context = self._contexts.of(arrival)
        if context.attempt > 1:
            # The attempts before may have begun its stream, and nobody there knows of them.
            await self._room()
            told = self._deltas.send(context.begins_again())
        self._payload_of(arrival, partial(self._send_moved, publication, moved, told, context))

    def _send_moved(
        self,
        publication: Publication,
        moved: Moved,
        told: asyncio.Future[Any] | None,
        context: ReplyContext,
        found: InboundRecord | Missing,
    ) -> None:
        """Its record is at hand; or isn't any more, and then it is answered instead."""
        arrival = publication.arrival
        if found is Missing.UNWANTED:
            self._outbox.delivered(publication)  # its partition is another worker's now
            return
        if isinstance(found, Missing):
            assert publication.ending is not None
            publication.ending = replace(publication.ending, reason=RequestError.record_gone())
            self._fail(publication, None, publication.ending)
            return
        record = moved_record(found, arrival.headers, self._topics.requests_of(moved.to))
        refused = RequestError.internal(f"It was ordered to wait in class {moved.to.label}, whose topic takes nothing.")
        self._put(publication, record, told, instead=refused)

    def _stages(self, arrival: Arrival, ending: Ending) -> StageTimes:
        return stage_times(arrival, ending.timeline, self._clock)

    def _put(
        self,
        publication: Publication,
        reply: OutboundRecord,
        told: asyncio.Future[Any] | None,
        *,
        instead: RequestError | None = None,
    ) -> None:
        """`told`: the acknowledgement of its last delta. `instead`: what it is answered with if no topic of ours takes
        the reply."""
        # Its partition may have been taken away and come back while a delta waited for room.
        arrival = publication.arrival = self._attempts.carried.whose(publication.arrival) or publication.arrival
        ending = publication.ending
        assert ending is not None, f"{arrival.id} has not ended"
        last = self._attempts.ending(arrival)
        terminal = Terminal(
            *(reply, arrival.id, arrival.epoch, arrival.origin_class, _all_of(told, last.written), publication),
            beside=(*last.beside, *self._usage_of(publication, reply)),
            moves=isinstance(ending.reason, Moved),
            in_bulk=_in_bulk(ending),
        )
        if instead is not None:
            terminal = replace(terminal, instead=partial(self._failed, last.beside, instead))
        self._writers[arrival.origin_class].put(terminal)

    def _failed(self, beside: tuple[OutboundRecord, ...], error: RequestError, terminal: Terminal) -> Terminal:
        """In the place of that reply, which did not end the request: the publication says so from now on, too."""
        publication, attempt = terminal.publication, terminal.reply.attempt
        assert publication is not None, "it came from the engine"
        assert publication.ending is not None, "it has ended"
        publication.ending = replace(publication.ending, reason=error)
        stages = self._stages(publication.arrival, publication.ending)
        context = self._contexts.of(publication.arrival)
        if not terminal.moves:
            context = replace(context, attempt=attempt)  # it may have been kept since it ran
        reply = context.error(error_body(error), stages)
        return replace(terminal, reply=reply, beside=(*beside, *self._usage_of(publication, reply)), moves=False)

    def _usage_of(self, publication: Publication, reply: OutboundRecord) -> tuple[OutboundRecord, ...]:
        ending = publication.ending
        if self._usage is None or ending is None or isinstance(ending.reason, Moved):
            return ()
        return (self._usage.record(publication.arrival, publication.prepared, ending, reply.attempt),)

    async def _send_last_deltas(self, reply: GrowingReply, stream: ReplyStream, reason: FinishReason) -> None:
        """Unless an earlier attempt has told them."""
        if stream.start.finished:
            return
        while stream.more_than_a_delta:
            await self._room()
            self._send_delta(reply, stream, finish_reason=None)
        await self._room()
        self._send_delta(reply, stream, reason)

    async def _room(self) -> None:
        while not self._deltas.has_room:
            await self._deltas.wait_for_room()


def _cut(prepared: PreparedRequest | None) -> bool:
    """Whether it does not go on while its partition is away: some of its sequences may not have begun."""
    return prepared is not None and prepared.sequences > 1


def _in_bulk(ending: Ending) -> bool:
    """Perhaps with thousands of others."""
    return isinstance(ending.reason, Moved) or (ending.error is not None and ended_in_bulk(ending.error))


def _all_of(*acknowledgements: asyncio.Future[Any] | None) -> asyncio.Future[Any] | None:
    """One that is done when all are, whatever came of them."""
    given = [each for each in acknowledgements if each is not None]
    open_ones = [each for each in given if not each.done()]
    if len(open_ones) > 1:
        return asyncio.gather(*open_ones, return_exceptions=True)
    return next(iter(open_ones or given), None)
