"""Egress: what the engine publishes becomes deltas and terminal replies on the broker.

Knows text (detokenising is done here, not in the step), when a delta is due, and which reply goes where. Does not know
offsets or the engine's state. Runs on the event loop.

One delta record is not one token: the first goes at once, later ones by time and size (`EgressConfig`). When the
broker is slow and the delta producer has no room, streams coalesce; when terminal replies pile up undelivered, the
outbox is full and the engine dispatches nothing new.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from scheduling.priority import PriorityClass
from topics.attempt_notes import PriorAttempts
from topics.dead_letters import DeadLetter
from topics.errors import RequestError
from topics.headers import ReplyAddress
from topics.producer import DeltaProducer
from topics.record import RecordId
from topics.replies import OutboundRecord, ReplyContext
from workers.answer_logprobs import AnswerLogprobs
from workers.attempts import Attempts
from workers.config import EgressConfig
from workers.detokenizer import Detokenizer
from workers.ingress import Refusal
from workers.outbox import Outbox, Publication
from workers.prompt import PreparedRequest
from workers.reply_body import ReplyBody, error_body
from workers.reply_stream import ReplyStream
from workers.request import Arrival, Ending, FinishReason
from workers.stages import stage_times
from workers.terminal_writer import ReplyTopics, Terminal, TerminalWriter
from workers.usage import UsageWriter
from workers.wall_clock import WallClock

__all__ = ["Egress"]


class Egress:
    def __init__(
        self,
        config: EgressConfig,
        *,
        outbox: Outbox,
        topics: ReplyTopics,
        deltas: DeltaProducer,
        writers: Mapping[PriorityClass, TerminalWriter],
        groups: Mapping[PriorityClass, str],
        new_detokenizer: Callable[[], Detokenizer],
        attempts: Attempts,
        token_bytes: Callable[[int], bytes],
        on_tokens: Callable[[Arrival, int], None] = lambda _arrival, _count: None,
        usage: UsageWriter | None = None,
    ) -> None:
        """`groups`: the consumer group of each class, for the dead letters' headers. `token_bytes`: what a token
        stands for. `on_tokens` is told of output tokens as they come."""
        self._outbox = outbox
        self._topics = topics
        self._deltas = deltas
        self._writers = writers
        self._groups = groups
        self._new_detokenizer = new_detokenizer
        self._attempts = attempts
        self._token_bytes = token_bytes
        self._clock = WallClock()
        self._on_tokens = on_tokens
        self._usage = usage
        self._interval_s = config.delta_interval_ms / 1000
        self._max_tokens = config.delta_max_tokens
        self._revoked: dict[tuple[str, int], int] = {}
        """The last epoch of each partition that is gone or was gone."""
        self._streams: dict[RecordId, ReplyStream] = {}
        self._news = asyncio.Event()
        self._closing = False

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
            await self._publish_all()
            await self._send_due()
        # The engine has stopped: what it left is all there will be.
        await self._publish_all()

    async def _publish_all(self) -> None:
        for publication in self._outbox.take_all():
            await self._publish(publication)

    def refuse(self, refusal: Refusal) -> None:
        """Answer a record that ingress refused; one that nobody could recognise goes to the dead letters."""
        record, error = refusal.record, refusal.error
        reply: OutboundRecord
        if refusal.answerable:
            reply = self._context(refusal.address).error(error_body(error))
        else:
            letter = DeadLetter.of(
                record, group=self._groups[refusal.origin_class], delivery_count=1, message=error.message
            )
            reply = letter.encode(self._topics.dead_letters)
        last = self._attempts.ending(record, refusal.epoch)
        self._writers[refusal.origin_class].put(
            Terminal(reply, record, refusal.epoch, refusal.origin_class, last.written, beside=last.beside)
        )

    def give_up(self, arrival: Arrival, prior: PriorAttempts) -> None:
        """Answer a request that ends its workers, and keep it among the dead letters."""
        error = RequestError.crashed(prior.crashes)
        reply = self.context_of(arrival).error(error_body(error))
        letter = DeadLetter.of(
            arrival.record,
            group=self._groups[arrival.origin_class],
            delivery_count=prior.note.attempt,
            message=error.message,
        )
        last = self._attempts.ending(arrival.record, arrival.epoch)
        beside = (letter.encode(self._topics.dead_letters), *last.beside)
        self._writers[arrival.origin_class].put(
            Terminal(reply, arrival.record, arrival.epoch, arrival.origin_class, last.written, beside=beside)
        )

    def revoke(self, topic: str, partition: int, epoch: int) -> None:
        """The partition is another worker's now: drop its unfinished streams, and what the engine still says of them.

        A stream that was dropped must not begin again in the middle: its final would lack the text before.
        """
        self._revoked[topic, partition] = epoch
        for record_id in [place for place in self._streams if (place.topic, place.partition) == (topic, partition)]:
            del self._streams[record_id]

    # --- deltas ---------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        dues = (stream.due_s(self._interval_s, self._max_tokens) for stream in self._streams.values())
        soonest_s = min((due_s for due_s in dues if due_s is not None), default=None)
        try:
            async with asyncio.timeout(None if soonest_s is None else max(0.0, soonest_s - time.monotonic())):
                await self._news.wait()
        except TimeoutError:
            return  # a delta is due

    async def _send_due(self) -> None:
        now_s = time.monotonic()
        for stream in self._streams.values():
            due_s = stream.due_s(self._interval_s, self._max_tokens)
            if due_s is not None and due_s <= now_s:
                # Without room the texts grow together, and all are sent when there is some.
                if not self._deltas.has_room:
                    await self._deltas.wait_for_room()
                    return self._news.set()
                self._send_delta(stream, finish_reason=None)
        return None

    async def _publish(self, publication: Publication) -> None:
        arrival, prepared = publication.arrival, publication.prepared
        if arrival.epoch <= self._revoked.get((arrival.id.topic, arrival.id.partition), 0):
            self._outbox.delivered(publication)
            return
        stream = None
        if prepared is not None:
            stream = self._streams.get(arrival.id)
            if stream is None:
                stream = self._streams[arrival.id] = self._new_stream(arrival, prepared)
            new_tokens = stream.take(publication.token_ids, publication.text, publication.logprobs)
            self._attempts.progressed(arrival, stream.tokens)
            self._on_tokens(arrival, new_tokens)
        if publication.ending is not None:
            await self._end(publication, stream, publication.ending)

    def _new_stream(self, arrival: Arrival, prepared: PreparedRequest) -> ReplyStream:
        detokenizer = None if prepared.stop else self._new_detokenizer()
        context = self.context_of(arrival)
        body = ReplyBody(arrival.headers.request_id, prepared, self._token_bytes)
        logprobs = None
        if prepared.sampling.logprobs is not None:
            logprobs = AnswerLogprobs(self._new_detokenizer(), prepared.eos_token_ids)
        start = self._attempts.start_of(arrival)
        return ReplyStream(arrival, prepared, detokenizer, context, body, logprobs, start)

    def _send_delta(self, stream: ReplyStream, finish_reason: FinishReason | None) -> None:
        first = not stream.started
        part = stream.next_delta(time.monotonic())
        value = stream.body.chunk(part.text, first=first, finish_reason=finish_reason, logprobs=part.logprobs)
        record = stream.context.delta(value, seq=part.seq, token_ids=part.token_ids)
        stream.last_acknowledgement = self._deltas.send(record)

    # --- ends -----------------------------------------------------------------------------------------------------

    async def _end(self, publication: Publication, stream: ReplyStream | None, ending: Ending) -> None:
        arrival = publication.arrival
        told = None
        stages = stage_times(arrival, ending.timeline, self._clock)
        if stream is None:
            assert ending.error is not None, f"{arrival.id} ended well without having been staged"
            reply = self.context_of(arrival).error(error_body(ending.error), stages)
        else:
            del self._streams[arrival.id]
            stream.finish()
            if ending.error is not None:
                reply = stream.context.error(error_body(ending.error), stages)
            else:
                assert isinstance(ending.reason, FinishReason)
                if stream.prepared.stream:
                    await self._send_last_deltas(stream, ending, ending.reason)
                reply = stream.context.final(
                    stream.body.final(
                        stream.text,
                        ending.reason,
                        prompt_tokens=ending.prompt_tokens,
                        output_tokens=ending.output_tokens,
                        logprobs=stream.logprobs,
                    ),
                    stages,
                )
            told = stream.last_acknowledgement
        last = self._attempts.ending(arrival.record, arrival.epoch)
        after = _all_of(told, last.written)
        beside = last.beside
        if self._usage is not None:
            used = self._usage.record(arrival, publication.prepared, ending, reply.attempt)
            beside = (*beside, used)
        self._writers[arrival.origin_class].put(
            Terminal(reply, arrival.record, arrival.epoch, arrival.origin_class, after, publication, beside)
        )

    async def _send_last_deltas(self, stream: ReplyStream, ending: Ending, reason: FinishReason) -> None:
        """Those that an earlier attempt has told are not told again."""
        if not stream.start.finished:
            while stream.more_than_a_delta:
                await self._room()
                self._send_delta(stream, finish_reason=None)
            await self._room()
            self._send_delta(stream, reason)
        if stream.prepared.include_usage and not stream.start.usage_told:
            part = stream.next_delta(time.monotonic())
            value = stream.body.usage_chunk(prompt_tokens=ending.prompt_tokens, output_tokens=ending.output_tokens)
            await self._room()
            stream.last_acknowledgement = self._deltas.send(stream.context.delta(value, seq=part.seq, token_ids=()))

    def context_of(self, arrival: Arrival) -> ReplyContext:
        """Of all replies to this attempt."""
        return self._context(arrival.headers.reply_address, arrival)

    async def _room(self) -> None:
        while not self._deltas.has_room:
            await self._deltas.wait_for_room()

    def _context(self, address: ReplyAddress, arrival: Arrival | None = None) -> ReplyContext:
        headers = None if arrival is None else arrival.headers
        return ReplyContext(
            request_id=address.request_id,
            attempt=1 if arrival is None else self._attempts.number(arrival),
            delta_topic=self._topics.deltas,
            reply_topic=address.topic or self._topics.replies,
            reply_partition=address.partition,
            correlation_id=address.correlation_id,
            job_id=None if headers is None else headers.job_id,
            custom_id=None if headers is None else headers.custom_id,
            traceparent=None if headers is None else headers.traceparent,
            tracestate=None if headers is None else headers.tracestate,
        )


def _all_of(*acknowledgements: asyncio.Future[Any] | None) -> asyncio.Future[Any] | None:
    """One that is done when all are, whatever came of them."""
    given = [each for each in acknowledgements if each is not None]
    open_ones = [each for each in given if not each.done()]
    if len(open_ones) > 1:
        return asyncio.gather(*open_ones, return_exceptions=True)
    return next(iter(open_ones or given), None)
