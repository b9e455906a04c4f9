"""What the records of replies and dead letters hold."""

import pytest

from topics.dead_letters import DeadLetter
from topics.headers import ReplyEvent
from topics.record import InboundRecord, RecordId
from topics.replies import OutboundRecord, ReplyContext, decode_token_ids, encode_token_ids

CONTEXT = ReplyContext(
    request_id="r-1",
    attempt=2,
    delta_topic="inference.deltas",
    reply_topic="billing.replies",
    reply_partition=3,
    correlation_id=b"\x00\xff",
    job_id="job",
    custom_id="line-7",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)


def test_a_delta_stands_on_the_delta_topic_under_its_request_with_its_place_and_tokens() -> None:
    delta = CONTEXT.delta(b"{}", seq=4, token_ids=[1, 29901, 0])
    headers = dict(delta.headers)
    assert (delta.topic, delta.partition, delta.key, delta.value) == ("inference.deltas", None, b"r-1", b"{}")
    assert headers["event"] == b"delta"
    assert headers["request-id"] == b"r-1"
    assert headers["attempt"] == b"2"
    assert headers["seq"] == b"4"
    assert headers["tokens"] == b"1,29901,0"


@pytest.mark.parametrize("event", [ReplyEvent.FINAL, ReplyEvent.ERROR])
def test_a_terminal_reply_goes_where_the_caller_asked_and_echoes_its_marks(event: ReplyEvent) -> None:
    reply = CONTEXT.final(b"{}") if event is ReplyEvent.FINAL else CONTEXT.error(b"{}")
    headers = dict(reply.headers)
    assert (reply.topic, reply.partition, reply.key) == ("billing.replies", 3, b"r-1")
    assert headers["event"] == event.value.encode()
    assert headers["kafka_correlationId"] == b"\x00\xff"
    assert (headers["job-id"], headers["custom-id"]) == (b"job", b"line-7")
    assert headers["traceparent"] == CONTEXT.traceparent.encode() if CONTEXT.traceparent else False


def test_absent_marks_make_no_headers() -> None:
    reply = ReplyContext("r", 1, "d", "r").final(b"{}")
    assert [name for name, _ in reply.headers] == ["event", "request-id", "attempt"]


@pytest.mark.parametrize("ids", [(), (0,), (1, 2, 4_000_000)])
def test_token_ids_come_back(ids: tuple[int, ...]) -> None:
    assert decode_token_ids(encode_token_ids(ids)) == ids


@pytest.mark.parametrize("value", [b"1,,2", b"-1", b"1, 2", b"x", b","])
def test_other_bytes_are_no_token_ids(value: bytes) -> None:
    with pytest.raises(ValueError, match="not a list of token ids"):
        decode_token_ids(value)


def inbound(
    headers: tuple[tuple[str, bytes], ...], value: bytes | None = b"\xff{", key: bytes | None = b"k"
) -> InboundRecord:
    return InboundRecord(RecordId("inference.p1", 5, 77), 1_000, key, value, headers)


def as_inbound(record: OutboundRecord) -> InboundRecord:
    return InboundRecord(RecordId(record.topic, 0, 0), 2_000, record.key, record.value, record.headers)


def test_a_dead_letter_keeps_bytes_and_headers_and_says_where_it_stood() -> None:
    headers = (("trace", b"a"), ("trace", b"b"), ("bin", b"\x80"))
    letter = DeadLetter.of(inbound(headers), group="headrace.p1", delivery_count=3, message="not JSON: line 1")
    record = letter.encode("inference.dlq")
    assert (record.topic, record.key, record.value) == ("inference.dlq", b"k", b"\xff{")
    assert record.headers[:3] == headers
    assert record.headers[3:] == (
        ("__dlq.errors.topic", b"inference.p1"),
        ("__dlq.errors.partition", b"5"),
        ("__dlq.errors.offset", b"77"),
        ("__dlq.errors.group", b"headrace.p1"),
        ("__dlq.errors.delivery.count", b"3"),
        ("__dlq.errors.message", b"not JSON: line 1"),
    )
    assert DeadLetter.decode(as_inbound(record)) == letter


def test_a_replayed_letter_that_fails_again_says_so_once() -> None:
    first = DeadLetter.of(inbound((("a", b"1"),)), group="g", delivery_count=1, message="first").encode("dlq")
    again = DeadLetter.of(as_inbound(first), group="g", delivery_count=1, message="second").encode("dlq")
    assert [value for name, value in again.headers if name == "__dlq.errors.message"] == [b"second"]
    assert again.headers[0] == ("a", b"1")


def test_a_tombstone_without_a_key_can_be_a_dead_letter() -> None:
    record = DeadLetter.of(inbound((), value=None, key=None), group="g", delivery_count=1, message="m").encode("dlq")
    assert (record.key, record.value) == (None, b"")


@pytest.mark.parametrize("missing", ["__dlq.errors.offset", "__dlq.errors.message"])
def test_a_record_without_the_headers_is_no_dead_letter(missing: str) -> None:
    record = DeadLetter.of(inbound(()), group="g", delivery_count=1, message="m").encode("dlq")
    cut = OutboundRecord("dlq", None, None, b"", tuple(h for h in record.headers if h[0] != missing))
    with pytest.raises(ValueError, match=missing.replace(".", r"\.")):
        DeadLetter.decode(as_inbound(cut))
