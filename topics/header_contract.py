"""The headers as a contract: what each means and how its text looks, for the published schemas.

Knows the texts of headers; names and caps are `topics.headers`'. Reads and writes none: a test holds this table to what
`topics.headers`, `topics.replies` and `topics.dead_letters` read and write.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topics import dead_letters
from topics.headers import (
    ATTEMPT,
    BAGGAGE,
    CAP_BYTES,
    CORRELATION_ID,
    CUSTOM_ID,
    DEADLINE_MS,
    EVENT,
    FLOW,
    JOB_ID,
    REPLY_PARTITION,
    REPLY_TOPIC,
    REQUEST_ID,
    REQUEUED_SENT_MS,
    SEQ,
    SLA_MS,
    TENANT,
    TIER,
    TOKENS,
    TRACEPARENT,
    TRACESTATE,
    ReplyEvent,
)
from topics.stage_times import SERVER_TIMING

__all__ = [
    "DEAD_LETTER_HEADERS",
    "REQUEST_HEADERS",
    "HeaderRow",
    "delta_headers",
    "headers_schema",
    "mark_headers",
    "terminal_headers",
]


@dataclass(frozen=True, slots=True)
class HeaderRow:
    name: str
    meaning: str
    pattern: str | None = None
    """Of the whole text (ECMA 262)."""
    values: tuple[str, ...] = ()
    """All that there are; empty: any."""
    always: bool = False

    def schema(self) -> dict[str, Any]:
        text: dict[str, Any] = {"type": "string", "description": self.meaning}
        if self.pattern is not None:
            text["pattern"] = self.pattern
        if self.values:
            text["enum"] = list(self.values)
        if self.name in CAP_BYTES:
            text["maxLength"] = CAP_BYTES[self.name]
        return text


_DIGITS = "^[0-9]+$"

REQUEST_HEADERS: Sequence[HeaderRow] = (
    HeaderRow(REQUEST_ID, "By what the answer is recognised. Absent: topic-partition-offset of the record."),
    HeaderRow(TENANT, "Who pays, where the worker trusts this header."),
    HeaderRow(FLOW, "What the scheduler is fair between inside a tenant: a user, a session. Absent: job-id, else key."),
    HeaderRow(TIER, "A class: it may lower the topic's, never raise it.", "^[pP][0-3]$"),
    HeaderRow(DEADLINE_MS, "Not started after this time: milliseconds since the epoch.", _DIGITS),
    HeaderRow(SLA_MS, "The same, in milliseconds after the record's timestamp; at least 1.", _DIGITS),
    HeaderRow(REPLY_TOPIC, "Where the terminal reply goes, if the worker allows it.", "^[A-Za-z0-9._-]+$"),
    HeaderRow(REPLY_PARTITION, "Of that topic: four bytes big-endian, or ASCII digits."),
    HeaderRow(CORRELATION_ID, "Opaque; comes back in every reply."),
    HeaderRow(TRACEPARENT, "W3C trace context."),
    HeaderRow(TRACESTATE, "W3C trace context."),
    HeaderRow(BAGGAGE, "W3C baggage."),
    HeaderRow(JOB_ID, "Of a batch job; comes back in every reply."),
    HeaderRow(CUSTOM_ID, "Of a row of it; comes back in every reply."),
    HeaderRow(REQUEUED_SENT_MS, "Written by a worker that moved the request: when it was sent, for cancels.", _DIGITS),
)
"""All are optional. Of a name that is there twice the last one counts."""

_ECHOED = frozenset({CORRELATION_ID, JOB_ID, CUSTOM_ID, TRACEPARENT, TRACESTATE})


def _reply_headers(events: Sequence[ReplyEvent]) -> tuple[HeaderRow, ...]:
    return (
        HeaderRow(EVENT, "What the record is.", values=tuple(event.value for event in events), always=True),
        HeaderRow(REQUEST_ID, "The request's, or its topic-partition-offset.", always=True),
        HeaderRow(ATTEMPT, "1 for the first run; a redelivery after a crash is the next.", _DIGITS, always=True),
        *(row for row in REQUEST_HEADERS if row.name in _ECHOED),
    )


def delta_headers() -> tuple[HeaderRow, ...]:
    return (
        *_reply_headers([ReplyEvent.DELTA]),
        HeaderRow(SEQ, "Counts the pieces of a stream from 0, over all attempts.", _DIGITS, always=True),
        HeaderRow(TOKENS, "Ids of the tokens that the record covers.", "^([0-9]+(,[0-9]+)*)?$", always=True),
    )


def mark_headers() -> tuple[HeaderRow, ...]:
    return _reply_headers([ReplyEvent.ATTEMPT, ReplyEvent.RESET])


def terminal_headers(event: ReplyEvent) -> tuple[HeaderRow, ...]:
    assert event.terminal, f"{event = }"
    return (*_reply_headers([event]), HeaderRow(SERVER_TIMING, "Where the time went: W3C Server Timing, milliseconds."))


DEAD_LETTER_HEADERS: Sequence[HeaderRow] = (
    HeaderRow(dead_letters.TOPIC, "Where the record stood.", always=True),
    HeaderRow(dead_letters.PARTITION, "Where the record stood.", _DIGITS, always=True),
    HeaderRow(dead_letters.OFFSET, "Where the record stood.", _DIGITS, always=True),
    HeaderRow(dead_letters.GROUP, "The consumer group that gave it up.", always=True),
    HeaderRow(dead_letters.DELIVERY_COUNT, "How often it was handed to a worker.", _DIGITS, always=True),
    HeaderRow(dead_letters.MESSAGE, "Why it is here, without text of the request.", always=True),
)
"""Beside the record's own (names of KIP-1191)."""


def headers_schema(rows: Sequence[HeaderRow]) -> Mapping[str, Any]:
    """JSON Schema of the headers as a mapping of texts. Names beyond the table are allowed everywhere."""
    schema: dict[str, Any] = {"type": "object", "properties": {row.name: row.schema() for row in rows}}
    if required := [row.name for row in rows if row.always]:
        schema["required"] = required
    return schema
