"""Headers survive the wire; whatever else comes, an answer can be addressed."""

from hypothesis import given
from hypothesis import strategies as st

from topics import headers as names
from topics.errors import RequestError
from topics.headers import ReplyAddress, RequestHeaders
from topics.record import InboundRecord, RecordId

PLACE = RecordId("inference.p0", 0, 7)
TEXT = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=60)
MILLISECONDS = st.integers(1, 10**15 - 1)
TOPIC = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,50}", fullmatch=True)


@st.composite
def request_headers(draw: st.DrawFn) -> RequestHeaders:
    reply_topic = draw(st.none() | TOPIC)
    return RequestHeaders(
        request_id=draw(TEXT),
        tenant=draw(st.none() | TEXT),
        flow=draw(st.none() | TEXT),
        tier=draw(st.none() | st.sampled_from(["p0", "p1", "p2", "p3"])),
        deadline_ms=draw(st.none() | MILLISECONDS),
        sla_ms=draw(st.none() | MILLISECONDS),
        reply_topic=reply_topic,
        # From 0x30303030 on, four bytes may read as digits; no cluster has so many partitions.
        reply_partition=None if reply_topic is None else draw(st.none() | st.integers(0, 0x30303030 - 1)),
        correlation_id=draw(st.none() | st.binary(min_size=1, max_size=64)),
        traceparent=draw(st.none() | TEXT),
        tracestate=draw(st.none() | TEXT),
        baggage=draw(st.none() | TEXT),
        job_id=draw(st.none() | TEXT),
        custom_id=draw(st.none() | TEXT),
    )


@given(request_headers())
def test_what_is_written_is_read(headers: RequestHeaders) -> None:
    record = InboundRecord(PLACE, 1, None, b"{}", tuple(headers.encode()))
    assert RequestHeaders.decode(record) == headers
    assert ReplyAddress.salvage(record) == headers.reply_address


@given(st.lists(st.tuples(st.sampled_from(sorted(names.CAP_BYTES)), st.binary(max_size=300)), max_size=12))
def test_whatever_comes_is_read_or_refused_and_can_be_addressed(headers: list[tuple[str, bytes]]) -> None:
    record = InboundRecord(PLACE, 1, None, b"{}", tuple(headers))
    salvaged = ReplyAddress.salvage(record)
    read, refusal = None, None
    try:
        read = RequestHeaders.decode(record)
    except RequestError as error:
        refusal = error
    if refusal is not None:
        assert refusal.status_code == 400
        assert refusal.param in names.CAP_BYTES
        assert salvaged.request_id
    if read is not None:
        assert salvaged.request_id == read.request_id
        assert salvaged.topic == read.reply_topic
        assert salvaged.partition == read.reply_partition
