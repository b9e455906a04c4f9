"""Streams that go on: what the attempts before have told is read from the log, and the next attempt continues it.

Knows requests that are run again with `stream`, and what must hold for their streams to go on. Does not know why they
are run again (`workers.attempts.attempts`), the rules of the log (`topics.stream_history`), or how the engine takes up
tokens. Runs on the event loop, one round of reading at a time; whoever comes meanwhile is in the next one.

For each request: a marker is written to its stream, which makes everything void that earlier attempts write behind it;
what stands before the marker is read, from the time at which the first attempt began; and the token ids found are the
beginning of this attempt's answer. Nothing else is kept: penalties, stop strings and text are rebuilt from the ids,
and what is drawn next hangs on seed and position alone.

Where that is impossible the stream says `reset` and begins again: records are gone or can't be read, there is more to
read than is allowed, the model has another name, the tokens make another text than was told (a tool was called), there
are several answers, or log probabilities are asked for, which the final has of all tokens.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from topics.aiokafka_producer import KafkaUnavailableError
from topics.log_reader import LogReader, Stretch, StretchTooLongError
from topics.producer import DeltaProducer
from topics.record import InboundRecord, RecordId
from topics.replies import OutboundRecord, ReplyContext
from topics.reply_reader import Reply
from topics.stream_history import StreamHistory
from workers.answers.detokenizer import Detokenizer
from workers.answers.reply_stream import StreamStart
from workers.attempts.attempts import Attempts
from workers.engine.stop_strings import StopStrings
from workers.intake.prompt import PreparedRequest
from workers.intake.request import Arrival
from workers.intake.staging import Refused, Staged

__all__ = ["Continuing", "told_by"]

log = logging.getLogger(__name__)

_MAX_OFFSETS = 500_000
"""Of one round of reading: some seconds."""
_CLOCK_SLACK_MS = 2_000
"""The clock of one worker may have been put back a little."""
_AGAIN_S = 1.0


@dataclass(slots=True)
class _Round:
    """One round of reading: whose streams, where their markers stand, and what is found."""

    markers: Mapping[str, RecordId]
    """By request id."""
    found: dict[str, StreamHistory]

    def take(self, record: InboundRecord) -> None:
        """A record of the delta topic: nearly all of them are others'."""
        headers = dict(record.headers)
        request_id = headers.get("request-id", b"").decode(errors="replace")
        marker = self.markers.get(request_id)
        if marker is None or marker.partition != record.id.partition or record.value is None:
            return
        if 0 <= marker.offset <= record.id.offset:
            return
        try:
            self.found[request_id].take(Reply.decode(headers, record.value))
        except ValueError:
            self.found[request_id].broken = True


class Continuing:
    def __init__(
        self,
        attempts: Attempts,
        deltas: DeltaProducer,
        reader: LogReader,
        topic: str,
        *,
        context: Callable[[Staged], ReplyContext],
        new_detokenizer: Callable[[], Detokenizer],
        let_in: Callable[[Staged | Refused], None],
    ) -> None:
        """`topic`: of the deltas. `context`: of the request's replies. `let_in` hands the request to the engine."""
        self._attempts = attempts
        self._deltas = deltas
        self._reader = reader
        self._topic = topic
        self._context = context
        self._new_detokenizer = new_detokenizer
        self._let_in = let_in
        # Bounded by what the scheduler hands out.
        self._waiting: deque[Staged] = deque()
        self._news = asyncio.Event()

    def put(self, message: Staged) -> None:
        self._waiting.append(message)
        self._news.set()

    async def run(self) -> None:
        """Until it is cancelled: what waits then is left for the next worker."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                due = list(self._waiting)
                self._waiting.clear()
                if due:
                    await self._continue(due)
        finally:
            await self._reader.close()

    async def _continue(self, messages: Sequence[Staged]) -> None:
        for message in messages:
            if message.prepared.sequences > 1:
                await self._begin_again(message)
        due = [message for message in messages if message.prepared.sequences == 1]
        if due:
            await self._go_on(due)

    async def _begin_again(self, message: Staged) -> None:
        """One of several answers: which tokens belong to which is not on record. Said once for all of them."""
        arrival = message.job.arrival
        if not self._attempts.start_of(arrival).reset:
            await self._send(self._context(message).begins_again())
            self._attempts.starts(arrival, StreamStart(reset=True))
        self._let_in(message)

    async def _go_on(self, due: Sequence[Staged]) -> None:
        contexts = {self._context(message).request_id: message for message in due}
        if len(contexts) < len(due):
            # Two records with one request id share a stream that nobody can tell apart: one by one.
            for message in due:
                await self._go_on([message])
            return
        histories = await self._read(due)
        for request_id, message in contexts.items():
            start = self._start(message, None if histories is None else histories[request_id])
            if start.reset:
                await self._send(self._context(message).begins_again())
            self._attempts.starts(message.job.arrival, start)
            self._let_in(replace(message, output_token_ids=start.token_ids))

    async def _send(self, record: OutboundRecord) -> RecordId:
        while not self._deltas.has_room:
            await self._deltas.wait_for_room()
        return await self._deltas.send(record)

    async def _read(self, due: Sequence[Staged]) -> Mapping[str, StreamHistory] | None:
        """What the streams have told, by request id. None: more would have to be read than may be."""
        contexts = [self._context(message) for message in due]
        acknowledged = await asyncio.gather(*(self._send(context.attempt_begins()) for context in contexts))
        markers = {context.request_id: place for context, place in zip(contexts, acknowledged, strict=True)}
        since_ms = min(self._attempts.begun_ms(message.job.arrival) for message in due) - _CLOCK_SLACK_MS
        stretches: dict[int, Stretch] = {}
        for place in markers.values():
            # A marker that was sent twice may have come back without its place: then to the end.
            known = stretches.get(place.partition, Stretch(since_ms, 0)).end
            end = None if known is None or place.offset < 0 else max(known, place.offset + 1)
            stretches[place.partition] = Stretch(since_ms, end)
        while True:
            reading = _Round(markers, {request_id: StreamHistory() for request_id in markers})
            try:
                await self._reader.read(self._topic, stretches, reading.take, max_offsets=_MAX_OFFSETS)
            except StretchTooLongError as error:
                log.warning("%d streams begin again: %s", len(due), error)
                return None
            except KafkaUnavailableError as error:
                log.warning("what streams have told can't be read yet: %s", error)
                await asyncio.sleep(_AGAIN_S)
            else:
                return reading.found

    def _start(self, message: Staged, history: StreamHistory | None) -> StreamStart:
        arrival, prepared = message.job.arrival, message.prepared
        again = StreamStart(reset=True)
        if history is None or history.broken:
            return again
        if not history.seq:
            # Nothing was told; unless it was, and is gone.
            return again if self._attempts.reached(arrival) else StreamStart()
        if prepared.sampling.logprobs is not None:
            return again  # those of the tokens before are not known any more
        if history.models - {prepared.model}:
            log.warning(
                "the stream of %s begins again: it was begun by another model", arrival.id, extra=_trace_of(arrival)
            )
            return again
        told = history.text
        if told not in told_by(prepared, history.token_ids, self._new_detokenizer()):
            log.warning(
                "the stream of %s begins again: its tokens make another text than was told",
                arrival.id,
                extra=_trace_of(arrival),
            )
            return again
        return StreamStart(
            seq=history.seq,
            token_ids=tuple(history.token_ids),
            told_characters=len(told),
            finished=history.finished,
            usage_told=history.usage_told,
        )


def told_by(prepared: PreparedRequest, token_ids: Sequence[int], detokenizer: Detokenizer) -> tuple[str, str]:
    """What a stream has told with these tokens: if it goes on behind them, and if it ends with them."""
    shown = [token for token in token_ids if token not in prepared.eos_token_ids]
    matcher = StopStrings(prepared.stop)
    text, matched = matcher.feed(detokenizer.feed(shown))
    if matched:
        return text, text
    rest, matched = matcher.feed(detokenizer.flush())
    return text, text + rest + ("" if matched else matcher.flush())


def _trace_of(arrival: Arrival) -> dict[str, str | None]:
    """For a line of the log."""
    return {"traceparent": arrival.headers.traceparent}
