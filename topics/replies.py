"""The records that answer a request: deltas and terminal replies, ready to be produced.

Knows which topic, partition, key and headers a reply has. Does not know what its value says (`topics.reply_messages`,
already encoded here), when it is sent, or how it is acknowledged (`topics.producer`).

Every reply has the headers `event` (`topics.headers.ReplyEvent`), `request-id` and `attempt`, and echoes the
request's `kafka_correlationId`, `job-id` and `custom-id`. A delta also has `seq` and `tokens`, a terminal reply
`server-timing` (`topics.stage_times`).

Key: the request id, so that one request's deltas stand in one partition, in their order, and its final where its
reader expects it.

**`tokens`**, the ids of the tokens that a delta covers, is text: decimal numbers with commas between them and
nothing else (`1,29901,42`), empty for none. Text can't be turned back into the same tokens, so whoever continues a
stream needs the ids; and any client in any language can read them. Binary would be about a third shorter.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from topics.headers import (
    ATTEMPT,
    CORRELATION_ID,
    CUSTOM_ID,
    EVENT,
    JOB_ID,
    REQUEST_ID,
    SEQ,
    TOKENS,
    TRACEPARENT,
    TRACESTATE,
    ReplyEvent,
)
from topics.stage_times import SERVER_TIMING, StageTimes

__all__ = ["OutboundRecord", "ReplyContext", "decode_token_ids", "encode_token_ids"]

_RECORD_OVERHEAD_BYTES = 64
"""Of Kafka's record format, and of our own objects around a record in flight: only memory bounds hang on it."""

_EVENTS = {event: (EVENT, event.value.encode()) for event in ReplyEvent}


@dataclass(frozen=True, slots=True)
class OutboundRecord:
    """A record to be produced."""

    topic: str
    partition: int | None
    """None: by the key."""
    key: bytes | None
    value: bytes | None
    """None is a tombstone, and needs a key."""
    headers: tuple[tuple[str, bytes], ...] = ()
    size_bytes: int = field(init=False, compare=False, repr=False)
    """In memory, roughly. Reckoned once: it is asked for whenever a bound is."""

    def __post_init__(self) -> None:
        size = _RECORD_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:
            size += len(name) + len(value)
        object.__setattr__(self, "size_bytes", size)

    @property
    def attempt(self) -> int:
        """Of a reply: which attempt it is of."""
        return next((int(value) for name, value in self.headers if name == ATTEMPT), 1)


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """What all replies to one attempt at one request share."""

    request_id: str
    attempt: int
    """1 for the first run; a redelivery after a crash is the next."""
    delta_topic: str
    reply_topic: str
    """Of the terminal reply: the caller's own, if it named an allowed one, else the default."""
    reply_partition: int | None = None
    """The one the caller asked for, on `reply_topic`."""
    correlation_id: bytes | None = None
    job_id: str | None = None
    custom_id: str | None = None
    traceparent: str | None = None
    """Of the span that a reader's spans hang on; the request's own trace."""
    tracestate: str | None = None

    def delta(self, value: bytes, *, seq: int, token_ids: Iterable[int]) -> OutboundRecord:
        """A piece of the stream. `seq` counts them from 0 within the request, over all its attempts."""
        headers = [(SEQ, str(seq).encode()), (TOKENS, encode_token_ids(token_ids))]
        return OutboundRecord(
            self.delta_topic,
            None,
            self.request_id.encode(),
            value,
            (*self._headers(ReplyEvent.DELTA), *headers),
        )

    def attempt_begins(self) -> OutboundRecord:
        """The marker in the stream: what earlier attempts write behind it is void."""
        return self._mark(ReplyEvent.ATTEMPT)

    def begins_again(self) -> OutboundRecord:
        """The stream can't be continued: `seq` counts from 0 again, and the text comes from its beginning."""
        return self._mark(ReplyEvent.RESET)

    def _mark(self, event: ReplyEvent) -> OutboundRecord:
        return OutboundRecord(self.delta_topic, None, self.request_id.encode(), b"{}", self._headers(event))

    def final(self, value: bytes, stages: StageTimes | None = None) -> OutboundRecord:
        """The whole answer. `stages`: where the request's time went."""
        return self._terminal(ReplyEvent.FINAL, value, stages)

    def error(self, value: bytes, stages: StageTimes | None = None) -> OutboundRecord:
        """No answer will come; `value` is an OpenAI error object."""
        return self._terminal(ReplyEvent.ERROR, value, stages)

    def _terminal(self, event: ReplyEvent, value: bytes, stages: StageTimes | None) -> OutboundRecord:
        headers = self._headers(event)
        if stages is not None:
            headers = (*headers, (SERVER_TIMING, stages.encode().encode("ascii")))
        return OutboundRecord(self.reply_topic, self.reply_partition, self.request_id.encode(), value, headers)

    def _headers(self, event: ReplyEvent) -> tuple[tuple[str, bytes], ...]:
        headers = [
            _EVENTS[event],
            (REQUEST_ID, self.request_id.encode()),
            (ATTEMPT, b"%d" % self.attempt),
        ]
        if self.correlation_id is not None:
            headers.append((CORRELATION_ID, self.correlation_id))
        for name, text in (
            (JOB_ID, self.job_id),
            (CUSTOM_ID, self.custom_id),
            (TRACEPARENT, self.traceparent),
            (TRACESTATE, self.tracestate),
        ):
            if text is not None:
                headers.append((name, text.encode()))
        return tuple(headers)


def encode_token_ids(token_ids: Iterable[int]) -> bytes:
    """The value of the `tokens` header."""
    return ",".join(map(str, token_ids)).encode("ascii")


def decode_token_ids(value: bytes) -> tuple[int, ...]:
    """Raises `ValueError` for anything that `encode_token_ids` doesn't write."""
    if not value:
        return ()
    parts = value.split(b",")
    if not all(part.isdigit() for part in parts):
        raise ValueError(f"{value[:64]!r} is not a list of token ids: expected decimal numbers and commas")
    return tuple(int(part) for part in parts)
