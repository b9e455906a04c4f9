"""Reply records: deltas and terminal replies, as values ready for a producer.

Knows which headers a reply carries, its key and where it goes. Does not know what a value says (`topics.messages`,
encoded by the worker) nor how it is sent (`topics.producer`).

Every reply has `event` and `request-id`, echoes the caller's correlation id, job and row, and carries the trace context.
The key is the request id: one request's deltas keep their order in one partition.
"""

from collections.abc import Iterable
from dataclasses import dataclass

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
    ReplyAddress,
    ReplyEvent,
)

__all__ = ["OutboundRecord", "ReplyContext", "decode_tokens", "delta_record", "encode_tokens", "terminal_record"]


@dataclass(frozen=True, slots=True)
class OutboundRecord:
    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    partition: int | None = None
    """None: by the hash of the key."""

    @property
    def bytes(self) -> int:
        """Size on the wire, roughly: what a bound on memory counts."""
        return (
            len(self.key or b"") + len(self.value or b"") + sum(len(name) + len(value) for name, value in self.headers)
        )


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """Whose reply it is, and what it echoes."""

    address: ReplyAddress
    attempt: int = 1
    """The run of the request that made this reply, from 1."""
    job_id: str | None = None
    custom_id: str | None = None
    traceparent: str | None = None


def encode_tokens(token_ids: Iterable[int]) -> bytes:
    """The `tokens` header: decimal ids with commas between them, readable from any client."""
    return ",".join(map(str, token_ids)).encode()


def decode_tokens(value: bytes) -> tuple[int, ...]:
    """Raises `ValueError` for what `encode_tokens` did not write."""
    return tuple(int(part) for part in value.decode("ascii").split(",")) if value else ()


def delta_record(context: ReplyContext, topic: str, seq: int, token_ids: Iterable[int], value: bytes) -> OutboundRecord:
    """The next piece of a stream. `seq` counts the request's deltas from 0; `token_ids` are those it covers."""
    return OutboundRecord(
        topic=topic,
        key=context.address.request_id.encode(),
        value=value,
        headers=(
            *_headers(context, ReplyEvent.DELTA),
            (SEQ, b"%d" % seq),
            (TOKENS, encode_tokens(token_ids)),
        ),
    )


def terminal_record(
    context: ReplyContext, default_topic: str, event: ReplyEvent, value: bytes, deltas: int = 0
) -> OutboundRecord:
    """The one terminal reply of a request, to the caller's topic or to `default_topic`.

    `deltas`: how many deltas went before it. It is the reply's `seq`, so a reader of the stream knows when it has all.
    """
    assert event.terminal, f"{event} ends nothing"
    address = context.address
    return OutboundRecord(
        topic=address.topic or default_topic,
        key=address.request_id.encode(),
        value=value,
        headers=(*_headers(context, event), (SEQ, b"%d" % deltas)),
        partition=address.partition,
    )


def _headers(context: ReplyContext, event: ReplyEvent) -> list[tuple[str, bytes]]:
    address = context.address
    headers = [
        (EVENT, event.encode()),
        (REQUEST_ID, address.request_id.encode()),
        (ATTEMPT, b"%d" % context.attempt),
    ]
    if address.correlation_id is not None:
        headers.append((CORRELATION_ID, address.correlation_id))
    for name, text in ((JOB_ID, context.job_id), (CUSTOM_ID, context.custom_id), (TRACEPARENT, context.traceparent)):
        if text is not None:
            headers.append((name, text.encode()))
    return headers
