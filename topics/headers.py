"""The headers of requests and replies: their names, how they are read, how they are written.

Knows names, encodings and size caps. Does not know policy: which reply topics are allowed, whether a tenant is
trusted, whether a deadline has passed (`workers.intake.ingress`).

Kafka headers are a list and names may repeat: **the last one wins**, as in Kafka's own `Headers.lastHeader`.
Headers that are not in the table are left alone. All are optional.

A header of ours that can't be read refuses the request, and the refusal names it. The three of W3C trace context
are the exception that their standard asks for: what can't be read is ignored and a new trace begins
(`RequestHeaders.ignored` lists them).
"""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any, TypeVar

from topics.errors import RequestError
from topics.record import InboundRecord

__all__ = [
    "ATTEMPT",
    "BAGGAGE",
    "CAP_BYTES",
    "CORRELATION_ID",
    "CUSTOM_ID",
    "DEADLINE_MS",
    "EVENT",
    "FLOW",
    "JOB_ID",
    "REPLY_PARTITION",
    "REPLY_TOPIC",
    "REQUEST_ID",
    "REQUEUED",
    "REQUEUED_SENT_MS",
    "SEQ",
    "SLA_MS",
    "TENANT",
    "TIER",
    "TOKENS",
    "TRACEPARENT",
    "TRACESTATE",
    "ReplyAddress",
    "ReplyEvent",
    "RequestHeaders",
]

T = TypeVar("T")

# Requests.
REQUEST_ID = "request-id"
TENANT = "tenant"
FLOW = "flow"
TIER = "tier"
DEADLINE_MS = "deadline-ms"
SLA_MS = "sla-ms"
JOB_ID = "job-id"
CUSTOM_ID = "custom-id"
REQUEUED = "requeued"
"""Written by a worker that moved the request here from another class's topic; only its presence says anything."""
REQUEUED_SENT_MS = "requeued-sent-ms"
"""With it: the time stamp that the request had on the topic to which its caller sent it."""
# Spring Kafka's names for request and reply; the correlation id is echoed unread.
REPLY_TOPIC = "kafka_replyTopic"
REPLY_PARTITION = "kafka_replyPartition"
CORRELATION_ID = "kafka_correlationId"
# W3C trace context.
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
BAGGAGE = "baggage"
# Replies; with `request-id`, and `kafka_correlationId`, `job-id` and `custom-id` echoed.
EVENT = "event"
ATTEMPT = "attempt"
SEQ = "seq"
TOKENS = "tokens"

CAP_BYTES: Mapping[str, int] = {
    REQUEST_ID: 256,
    TENANT: 256,
    FLOW: 256,
    TIER: 8,
    REQUEUED_SENT_MS: 15,
    DEADLINE_MS: 15,
    SLA_MS: 15,
    JOB_ID: 256,
    CUSTOM_ID: 512,
    REPLY_TOPIC: 249,  # Kafka's own limit on a topic's name
    REPLY_PARTITION: 10,
    CORRELATION_ID: 1024,
    TRACEPARENT: 256,
    TRACESTATE: 4096,
    BAGGAGE: 8192,  # the standard's own limit
}
"""Longest value of each request header. Digits: 15 of them are 31,000 years of milliseconds."""

_TIERS = ("p0", "p1", "p2", "p3")
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")
_MAX_PARTITION = 2**31 - 1


class ReplyEvent(StrEnum):
    """The value of the `event` header of a reply."""

    DELTA = "delta"
    """The next piece of a stream."""
    ATTEMPT = "attempt"
    """A new attempt begins in this stream; earlier attempts' later deltas are void."""
    RESET = "reset"
    """The stream begins again from its first token."""
    FINAL = "final"
    """The whole answer. Terminal."""
    ERROR = "error"
    """No answer will come. Terminal."""

    @property
    def terminal(self) -> bool:
        return self in (ReplyEvent.FINAL, ReplyEvent.ERROR)


@dataclass(frozen=True, slots=True)
class ReplyAddress:
    """Where a reply goes and by what its reader recognises it."""

    request_id: str
    topic: str | None = None
    """None: the default replies topic."""
    partition: int | None = None
    correlation_id: bytes | None = None
    identified: bool = True
    """The client gave something to know the answer by: request id, correlation id or reply topic.

    False: only the record's place is left, which a producer knows from its acknowledgement.
    """

    @classmethod
    def salvage(cls, record: InboundRecord) -> "ReplyAddress":
        """What can be made of the headers, however bad they are: so that a refusal can be sent. Never raises.

        Each part that can't be read falls back alone: the default replies topic, any partition, no correlation id,
        the record's place as request id.
        """
        last = dict(record.headers)
        topic = _salvaged(last, REPLY_TOPIC, _topic)
        request_id = _salvaged(last, REQUEST_ID, _text)
        correlation_id = _salvaged(last, CORRELATION_ID, _opaque)
        return cls(
            request_id=request_id or str(record.id),
            topic=topic,
            # A partition means nothing on another topic than the one it was given for.
            partition=_salvaged(last, REPLY_PARTITION, _partition) if topic is not None else None,
            correlation_id=correlation_id,
            identified=any(part is not None for part in (topic, request_id, correlation_id)),
        )


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """A request's headers, read. Absent ones are None."""

    request_id: str
    """From the header, else the record's place (`topic-partition-offset`)."""
    tenant: str | None = None
    flow: str | None = None
    tier: str | None = None
    """`p0` … `p3`. It may lower the topic's class, never raise it."""
    deadline_ms: int | None = None
    """Hard deadline, milliseconds since the epoch."""
    sla_ms: int | None = None
    """Hard deadline, milliseconds after the record's timestamp. At least 1."""
    reply_topic: str | None = None
    """A legal topic name; whether it is allowed is not known here."""
    reply_partition: int | None = None
    correlation_id: bytes | None = None
    """Opaque."""
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None
    job_id: str | None = None
    custom_id: str | None = None
    requeued_sent_ms: int | None = None
    """Milliseconds since the epoch: when its caller sent it, if a worker has moved it here."""
    ignored: tuple[str, ...] = ()
    """Trace headers that were there and could not be read."""

    @classmethod
    def decode(cls, record: InboundRecord) -> "RequestHeaders":
        """Read a record's headers.

        Raises `RequestError` (400) naming the first header that is bad: not UTF-8, empty, over its cap, not a
        number, not one of the values it may have. `ReplyAddress.salvage` then says where the refusal goes.
        """
        last = dict(record.headers)
        found: dict[str, Any] = {}
        ignored: list[str] = []
        # By what is there, and not by what there may be: most are absent, and every record is read.
        for name in last:
            field = _FIELDS.get(name)
            if field is None:
                continue
            try:
                found[field[0]] = _read(last, name, field[1])
            except RequestError:
                if name not in _TRACE_CONTEXT:
                    raise
                ignored.append(name)
        if REPLY_PARTITION in last and REPLY_TOPIC not in last:
            raise _bad(REPLY_PARTITION, f"is given without {REPLY_TOPIC}", f"send {REPLY_TOPIC} too, or neither")
        if SLA_MS in last:
            if found["sla_ms"] == 0:
                raise _bad(SLA_MS, "is 0", "send the milliseconds that the request may take, at least 1")
            if record.timestamp_ms < 0:
                raise _bad(SLA_MS, "counts from the record's timestamp, and it has none", f"send {DEADLINE_MS} instead")
        if REQUEST_ID not in last:
            found["request_id"] = str(record.id)
        if ignored:
            found["ignored"] = tuple(ignored)
        return cls(**found)

    def encode(self) -> list[tuple[str, bytes]]:
        """The headers as a producer sends them; absent ones are left out. The partition goes as Spring's 4 bytes.

        The values are the caller's own and not checked here: `decode` refuses what is bad.
        """
        texts = {
            REQUEST_ID: self.request_id,
            TENANT: self.tenant,
            FLOW: self.flow,
            TIER: self.tier,
            DEADLINE_MS: self.deadline_ms,
            SLA_MS: self.sla_ms,
            REPLY_TOPIC: self.reply_topic,
            TRACEPARENT: self.traceparent,
            TRACESTATE: self.tracestate,
            BAGGAGE: self.baggage,
            JOB_ID: self.job_id,
            CUSTOM_ID: self.custom_id,
        }
        headers = [(name, str(value).encode()) for name, value in texts.items() if value is not None]
        if self.reply_partition is not None:
            headers.append((REPLY_PARTITION, self.reply_partition.to_bytes(4, "big")))
        if self.correlation_id is not None:
            headers.append((CORRELATION_ID, self.correlation_id))
        return headers

    @property
    def reply_address(self) -> ReplyAddress:
        return ReplyAddress(self.request_id, self.reply_topic, self.reply_partition, self.correlation_id)

    def sent_ms(self, timestamp_ms: int) -> int:
        """When its caller sent it, in milliseconds since the epoch: an order to cancel means what was sent before.

        `timestamp_ms`: the record's. Nobody sends later than the broker takes it.
        """
        return timestamp_ms if self.requeued_sent_ms is None else min(self.requeued_sent_ms, timestamp_ms)

    def deadline_at_ms(self, timestamp_ms: int) -> int | None:
        """The hard deadline in milliseconds since the epoch; of two, the earlier. `timestamp_ms`: the record's."""
        deadlines = [] if self.deadline_ms is None else [self.deadline_ms]
        if self.sla_ms is not None:
            deadlines.append(timestamp_ms + self.sla_ms)
        return min(deadlines, default=None)

    def flow_of(self, key: bytes | None) -> str | None:
        """What SFQ is fair between: the flow header, else the job, else the record's key (hashed if long)."""
        if self.flow is not None:
            return self.flow
        if self.job_id is not None:
            return self.job_id
        if key is None:
            return None
        if len(key) > CAP_BYTES[FLOW]:
            return blake2b(key, digest_size=16).hexdigest()
        return key.decode(errors="backslashreplace")


def _read(last: Mapping[str, bytes], name: str, reader: Callable[[str, bytes], T]) -> T | None:
    """One header, or None where it is absent. Raises `RequestError` naming it."""
    value = last.get(name)
    if value is None:
        return None
    if not value:
        raise _bad(name, "is empty", "give it a value or leave it out")
    cap = CAP_BYTES[name]
    if len(value) > cap:
        raise _bad(name, f"has {len(value)} bytes", f"shorten it to {cap} bytes")
    return reader(name, value)


def _salvaged(last: Mapping[str, bytes], name: str, reader: Callable[[str, bytes], T]) -> T | None:
    """Like `_read`, with None for what is bad: the refusal itself is raised by `RequestHeaders.decode`."""
    try:
        return _read(last, name, reader)
    except RequestError:
        return None


def _bad(name: str, problem: str, remedy: str) -> RequestError:
    return RequestError.invalid_request(name, f"header {name} {problem}: {remedy}.", "invalid_header")


def _text(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise _bad(name, f"is not UTF-8 (byte {error.start})", "encode its text as UTF-8") from None
    if not text.isprintable() or text.isspace():
        raise _bad(name, "holds control characters or nothing but spaces", "send printable text")
    return text


def _name(name: str, value: bytes) -> str:
    """What many records say alike: one string for all that wait at the same time."""
    return sys.intern(_text(name, value))


def _opaque(name: str, value: bytes) -> bytes:
    return value


def _topic(name: str, value: bytes) -> str:
    text = _text(name, value)
    if not _TOPIC_NAME.fullmatch(text) or text in (".", ".."):
        raise _bad(name, "is not a topic's name", "use letters, digits, '.', '_' and '-'")
    return text


def _tier(name: str, value: bytes) -> str:
    tier = _text(name, value).lower()
    if tier not in _TIERS:
        raise _bad(name, "is not a class", "send one of p0, p1, p2, p3 (p0 is the most urgent)")
    return tier


def _number(name: str, value: bytes) -> int:
    # Only ASCII digits: int() would also take '+5', ' 5', '5_0' and other scripts' digits.
    if not (value.isascii() and value.isdigit()):
        raise _bad(name, "is not a whole number", "send ASCII digits")
    return int(value)


def _partition(name: str, value: bytes) -> int:
    """Four bytes are big-endian, unless all are ASCII digits: that number would be over 800 million partitions."""
    big_endian = len(value) == 4 and not value.isdigit()
    partition = int.from_bytes(value, "big") if big_endian else _number(name, value)
    if partition > _MAX_PARTITION:
        raise _bad(name, "is no partition", "send a number from 0, as 4 bytes big-endian or as ASCII digits")
    return partition


_TRACE_CONTEXT = frozenset({TRACEPARENT, TRACESTATE, BAGGAGE})
_FIELDS: Mapping[str, tuple[str, Callable[[str, bytes], object]]] = {
    REQUEST_ID: ("request_id", _text),
    TENANT: ("tenant", _name),
    FLOW: ("flow", _name),
    TIER: ("tier", _tier),
    DEADLINE_MS: ("deadline_ms", _number),
    SLA_MS: ("sla_ms", _number),
    REPLY_TOPIC: ("reply_topic", _topic),
    REPLY_PARTITION: ("reply_partition", _partition),
    CORRELATION_ID: ("correlation_id", _opaque),
    TRACEPARENT: ("traceparent", _text),
    TRACESTATE: ("tracestate", _text),
    BAGGAGE: ("baggage", _text),
    JOB_ID: ("job_id", _name),
    CUSTOM_ID: ("custom_id", _text),
    REQUEUED_SENT_MS: ("requeued_sent_ms", _number),
}
"""Each request header's field of `RequestHeaders`, and its reader."""
