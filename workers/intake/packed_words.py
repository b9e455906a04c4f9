"""A waiting request's words, packed: what its client wrote in the headers, as one short bytes object.

Knows how headers are written down and read back, exactly. Does not know rows, nor what the words mean. Pure.

Everything that scheduling looks at is in columns; these are read when the request is staged, answered, moved or asked
for by its id. As an object with a field each they took half a kilobyte a request, most of it Python's own. What a
request repeats is left out: its tenant and its flow are columns already, a row of a job has the job's id before its
own, and what its sender says of every request of his is kept once (`SharedWords`). UUIDs and trace ids go as bytes.
"""

from typing import NamedTuple

from topics.headers import RequestHeaders
from topics.record import RecordId

__all__ = ["SharedWords", "pack_words", "unpack_request_id", "unpack_words", "was_moved"]

# The first byte says in which form the parts are that have several.
_UUID = 1
"""The request id is one in hex, with dashes: 16 bytes."""
_UNDASHED = 2
"""The same, without dashes."""
_OF_JOB = 4
"""The request id begins with the job's: the rest is a text."""
_PLACE = 8
"""The request id is the record's place: no bytes."""
_TRACE = 16
"""The trace parent is of version 00: 25 bytes."""
_TENANT = 32
"""The tenant header is the tenant."""
_FLOW = 64
"""The flow header is the flow."""

_MOVED = 128
"""It has `requeued_sent_ms`."""

_UUID_BYTES = 16
_TRACE_BYTES = 25
_BETWEEN = "\x1f"
"""Between texts: none of them has a control character, for `RequestHeaders.decode` takes only printable ones."""
_TEXTS = 9
"""In front of the correlation id, which is bytes of any kind and so the last."""


class SharedWords(NamedTuple):
    """What a sender says of many requests alike."""

    tier: str | None
    sla_ms: int | None
    reply_topic: str | None
    reply_partition: int | None
    job_id: str | None
    ignored: tuple[str, ...]

    @classmethod
    def of(cls, headers: RequestHeaders) -> "SharedWords":
        return cls(
            headers.tier,
            headers.sla_ms,
            headers.reply_topic,
            headers.reply_partition,
            headers.job_id,
            headers.ignored,
        )


def pack_words(headers: RequestHeaders, place: RecordId, tenant: str, flow: str) -> bytes:
    """All but the shared words. `tenant`, `flow`: whose it is taken for, whatever the headers say."""
    forms, front, request_id = _pack_request_id(headers, place)
    traceparent = headers.traceparent or ""
    if (trace := _trace_bytes(traceparent)) is not None:
        forms, front, traceparent = forms | _TRACE, front + trace, ""
    own_tenant, own_flow = headers.tenant or "", headers.flow or ""
    if own_tenant and own_tenant == tenant:
        forms, own_tenant = forms | _TENANT, ""
    if own_flow and own_flow == flow:
        forms, own_flow = forms | _FLOW, ""
    sent_ms = headers.requeued_sent_ms
    texts = _BETWEEN.join(
        (
            request_id,
            headers.custom_id or "",
            "" if headers.deadline_ms is None else str(headers.deadline_ms),
            traceparent,
            headers.tracestate or "",
            headers.baggage or "",
            own_flow,
            own_tenant,
            "" if sent_ms is None else str(sent_ms),
        )
    )
    if sent_ms is not None:
        forms |= _MOVED
    if headers.correlation_id is not None:
        return bytes((forms,)) + front + f"{texts}{_BETWEEN}".encode() + headers.correlation_id
    # The most frequent stand first: empty ones at the end take no room.
    return bytes((forms,)) + front + texts.rstrip(_BETWEEN).encode()


def unpack_words(packed: bytes, shared: SharedWords, place: RecordId, tenant: str, flow: str) -> RequestHeaders:
    """The headers as they were."""
    forms, at, traceparent = packed[0], _texts_at(packed), None
    if forms & _TRACE:
        trace = packed[at - _TRACE_BYTES : at].hex()
        traceparent = f"00-{trace[:32]}-{trace[32:48]}-{trace[48:]}"
    parts = packed[at:].split(_BETWEEN.encode(), _TEXTS)
    correlation_id = parts.pop() if len(parts) > _TEXTS else None
    texts = [part.decode() or None for part in parts]
    texts.extend([None] * (_TEXTS - len(texts)))
    _, custom_id, deadline_ms, other_trace, tracestate, baggage, own_flow, own_tenant, sent_ms = texts
    return RequestHeaders(
        request_id=unpack_request_id(packed, shared.job_id, place),
        tenant=tenant if forms & _TENANT else own_tenant,
        flow=flow if forms & _FLOW else own_flow,
        tier=shared.tier,
        deadline_ms=None if deadline_ms is None else int(deadline_ms),
        sla_ms=shared.sla_ms,
        reply_topic=shared.reply_topic,
        reply_partition=shared.reply_partition,
        correlation_id=correlation_id,
        traceparent=traceparent or other_trace,
        tracestate=tracestate,
        baggage=baggage,
        job_id=shared.job_id,
        custom_id=custom_id,
        requeued_sent_ms=None if sent_ms is None else int(sent_ms),
        ignored=shared.ignored,
    )


def unpack_request_id(packed: bytes, job_id: str | None, place: RecordId) -> str:
    """The request id alone, in a fifth of the time."""
    forms = packed[0]
    if forms & _UUID:
        return _dashed(packed[1 : 1 + _UUID_BYTES].hex())
    if forms & _UNDASHED:
        return packed[1 : 1 + _UUID_BYTES].hex()
    if forms & _PLACE:
        return str(place)
    text = packed[_texts_at(packed) :].partition(_BETWEEN.encode())[0].decode()
    return f"{job_id}{text}" if forms & _OF_JOB else text


def was_moved(packed: bytes) -> bool:
    """Whether a worker moved the request here from another class's topic."""
    return packed[0] & _MOVED != 0


def _pack_request_id(headers: RequestHeaders, place: RecordId) -> tuple[int, bytes, str]:
    """Its form, its bytes, and what of it is a text."""
    request_id, job_id = headers.request_id, headers.job_id
    if len(request_id) in (32, 36) and (short := _hex_bytes(request_id.replace("-", ""), _UUID_BYTES)) is not None:
        digits = short.hex()
        if digits == request_id:
            return _UNDASHED, short, ""
        if _dashed(digits) == request_id:
            return _UUID, short, ""
    if job_id is not None and request_id.startswith(job_id):
        return _OF_JOB, b"", request_id[len(job_id) :]
    if request_id == str(place):
        return _PLACE, b"", ""
    return 0, b"", request_id


def _trace_bytes(text: str) -> bytes | None:
    """None: it is of another form."""
    if len(text) != 55 or text[:3] != "00-" or text[35] != "-" or text[52] != "-":
        return None
    digits = text[3:35] + text[36:52] + text[53:]
    short = _hex_bytes(digits, _TRACE_BYTES)
    return short if short is not None and short.hex() == digits else None


def _hex_bytes(digits: str, size: int) -> bytes | None:
    """None: they are not so many bytes in hex. With capital letters or spaces in it they don't come back."""
    try:
        short = bytes.fromhex(digits)
    except ValueError:
        return None
    return short if len(short) == size else None


def _dashed(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _texts_at(packed: bytes) -> int:
    forms = packed[0]
    return 1 + bool(forms & (_UUID | _UNDASHED)) * _UUID_BYTES + bool(forms & _TRACE) * _TRACE_BYTES
