"""Reading and writing headers."""

import pytest

from topics import headers as names
from topics.errors import RequestError
from topics.headers import ReplyAddress, ReplyEvent, RequestHeaders
from topics.record import InboundRecord, RecordId


def record(*headers: tuple[str, bytes], timestamp_ms: int = 1_000_000) -> InboundRecord:
    return InboundRecord(RecordId("inference.p1", 3, 42), timestamp_ms, b"key", b"{}", headers)


def refusal(*headers: tuple[str, bytes], timestamp_ms: int = 1_000_000) -> RequestError:
    with pytest.raises(RequestError) as caught:
        RequestHeaders.decode(record(*headers, timestamp_ms=timestamp_ms))
    return caught.value


def test_a_record_without_headers_is_known_by_its_place() -> None:
    assert RequestHeaders.decode(record()) == RequestHeaders(request_id="inference.p1-3-42")


def test_all_headers_are_read() -> None:
    read = RequestHeaders.decode(
        record(
            ("request-id", b"r-1"),
            ("tenant", "Jörg".encode()),
            ("flow", b"f"),
            ("tier", b"P2"),
            ("deadline-ms", b"1700000000000"),
            ("sla-ms", b"250"),
            ("kafka_replyTopic", b"my.replies"),
            ("kafka_replyPartition", b"\x00\x00\x00\x07"),
            ("kafka_correlationId", b"\xff\x00raw"),
            ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("tracestate", b"a=b"),
            ("baggage", b"k=v"),
            ("job-id", b"j"),
            ("custom-id", b"row 7"),
            ("somebody-elses", b"\xff"),
        )
    )
    assert read == RequestHeaders(
        request_id="r-1",
        tenant="Jörg",
        flow="f",
        tier="p2",
        deadline_ms=1_700_000_000_000,
        sla_ms=250,
        reply_topic="my.replies",
        reply_partition=7,
        correlation_id=b"\xff\x00raw",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        tracestate="a=b",
        baggage="k=v",
        job_id="j",
        custom_id="row 7",
    )


def test_the_last_of_two_wins() -> None:
    assert RequestHeaders.decode(record(("tenant", b"a"), ("tenant", b"b"))).tenant == "b"


@pytest.mark.parametrize(
    ("value", "partition"),
    [(b"\x00\x00\x01\x00", 256), (b"12", 12), (b"0", 0), (b"1234", 1234), (b"2147483647", 2**31 - 1)],
)
def test_a_reply_partition_is_four_bytes_or_digits(value: bytes, partition: int) -> None:
    read = RequestHeaders.decode(record(("kafka_replyTopic", b"t"), ("kafka_replyPartition", value)))
    assert read.reply_partition == partition


BAD = [
    ("request-id", b""),
    ("request-id", b"\xc3\x28"),
    ("request-id", b"a\nb"),
    ("request-id", b"x" * 257),
    ("tenant", b"\xff"),
    ("tenant", b"   "),
    ("flow", b"x" * 257),
    ("tier", b"p4"),
    ("tier", b"gold"),
    ("deadline-ms", b"soon"),
    ("deadline-ms", b"-5"),
    ("deadline-ms", b"1e12"),
    ("deadline-ms", "١٢".encode()),
    ("deadline-ms", b"1" * 16),
    ("sla-ms", b"0"),
    ("sla-ms", b" 5"),
    ("kafka_replyTopic", b"no spaces"),
    ("kafka_replyTopic", b".."),
    ("kafka_replyTopic", b"t" * 250),
    ("kafka_correlationId", b""),
    ("kafka_correlationId", b"c" * 1025),
    ("job-id", b"\x00"),
    ("custom-id", b"c" * 513),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_header_is_refused_by_name(name: str, value: bytes) -> None:
    error = refusal((name, value))
    assert (error.status_code, error.param, error.code) == (400, name, "invalid_header")
    assert name in error.message


@pytest.mark.parametrize("value", [b"", b"\xff\xff\xff\xff", b"12345678901", b"x", b"2147483648", b"-1"])
def test_a_bad_reply_partition_is_refused(value: bytes) -> None:
    assert refusal(("kafka_replyTopic", b"t"), ("kafka_replyPartition", value)).param == "kafka_replyPartition"


def test_a_reply_partition_alone_is_refused() -> None:
    assert refusal(("kafka_replyPartition", b"1")).param == "kafka_replyPartition"


def test_an_sla_needs_a_timestamp() -> None:
    assert refusal(("sla-ms", b"5"), timestamp_ms=-1).param == "sla-ms"


def test_a_bad_trace_is_ignored_and_named() -> None:
    read = RequestHeaders.decode(record(("traceparent", b"\xff"), ("baggage", b"k=v"), ("tracestate", b"")))
    assert (read.traceparent, read.baggage) == (None, "k=v")
    assert read.ignored == ("traceparent", "tracestate")


def test_a_refusal_repeats_no_value() -> None:
    assert "secret" not in refusal(("tier", b"secret")).message


def test_of_two_deadlines_the_earlier_counts() -> None:
    headers = RequestHeaders(request_id="r", deadline_ms=5_000, sla_ms=100)
    assert headers.deadline_at_ms(1_000) == 1_100
    assert headers.deadline_at_ms(4_990) == 5_000
    assert RequestHeaders(request_id="r").deadline_at_ms(1_000) is None


def test_the_flow_is_the_header_then_the_job_then_the_key() -> None:
    assert RequestHeaders(request_id="r", flow="f", job_id="j").flow_of(b"k") == "f"
    assert RequestHeaders(request_id="r", job_id="j").flow_of(b"k") == "j"
    assert RequestHeaders(request_id="r").flow_of(b"k\xff") == "k\\xff"
    assert RequestHeaders(request_id="r").flow_of(None) is None
    assert len(RequestHeaders(request_id="r").flow_of(b"k" * 5_000) or "") == 32


def test_the_reply_address_of_good_headers() -> None:
    headers = RequestHeaders(request_id="r", reply_topic="t", reply_partition=1, correlation_id=b"c")
    assert headers.reply_address == ReplyAddress("r", "t", 1, b"c")


def test_a_refusal_can_be_sent_although_another_header_is_bad() -> None:
    salvaged = ReplyAddress.salvage(
        record(
            ("tenant", b"\xff"),
            ("request-id", b"r"),
            ("kafka_replyTopic", b"t"),
            ("kafka_replyPartition", b"2"),
            ("kafka_correlationId", b"c"),
        )
    )
    assert salvaged == ReplyAddress("r", "t", 2, b"c", identified=True)


def test_each_bad_part_of_an_address_falls_back_alone() -> None:
    salvaged = ReplyAddress.salvage(
        record(
            ("request-id", b"\xff"),
            ("kafka_replyTopic", b"no topic"),
            ("kafka_replyPartition", b"2"),
            ("kafka_correlationId", b"c"),
        )
    )
    assert salvaged == ReplyAddress("inference.p1-3-42", None, None, b"c", identified=True)


def test_a_record_that_names_nothing_is_not_identified() -> None:
    salvaged = ReplyAddress.salvage(record(("tenant", b"t"), ("request-id", b"\xff")))
    assert salvaged == ReplyAddress("inference.p1-3-42", identified=False)


def test_only_final_and_error_are_terminal() -> None:
    assert {event for event in ReplyEvent if event.terminal} == {ReplyEvent.FINAL, ReplyEvent.ERROR}


def test_every_request_header_is_in_the_table_of_caps() -> None:
    written = RequestHeaders(
        "r", "t", "f", "p1", 1, 1, "topic", 1, b"c", "trace", "state", "baggage", "j", "c"
    ).encode()
    # One is read of workers alone, which write it (`topics.requeue`).
    assert {name for name, _ in written} == set(names.CAP_BYTES) - {names.REQUEUED_SENT_MS}
