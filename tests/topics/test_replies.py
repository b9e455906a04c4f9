"""Reply records and dead letters: headers, keys, places."""

import pytest

from topics.dead_letters import dead_letter
from topics.headers import ReplyAddress, ReplyEvent
from topics.record import InboundRecord, RecordId
from topics.replies import ReplyContext, decode_tokens, delta_record, encode_tokens, terminal_record

CONTEXT = ReplyContext(
    ReplyAddress("r-1", "team.answers", 3, b"\x00corr"), attempt=2, job_id="j", custom_id="row-7", traceparent="00-…"
)


def test_a_delta_carries_its_place_in_the_stream_and_its_tokens() -> None:
    record = delta_record(CONTEXT, "inference.deltas", 4, [5, 70, 900], b"{}")
    headers = dict(record.headers)
    assert (record.topic, record.key, record.partition) == ("inference.deltas", b"r-1", None)
    assert headers["event"] == b"delta"
    assert (headers["request-id"], headers["attempt"], headers["seq"]) == (b"r-1", b"2", b"4")
    assert headers["tokens"] == b"5,70,900"
    assert (headers["kafka_correlationId"], headers["job-id"], headers["custom-id"]) == (b"\x00corr", b"j", b"row-7")


def test_a_terminal_reply_goes_to_the_callers_topic_and_partition() -> None:
    record = terminal_record(CONTEXT, "inference.replies", ReplyEvent.FINAL, b"{}", deltas=5)
    assert (record.topic, record.partition) == ("team.answers", 3)
    assert dict(record.headers)["event"] == b"final"
    assert dict(record.headers)["seq"] == b"5"


def test_without_an_address_it_goes_to_the_default_topic() -> None:
    record = terminal_record(ReplyContext(ReplyAddress("r")), "inference.replies", ReplyEvent.ERROR, b"{}")
    assert (record.topic, record.partition) == ("inference.replies", None)
    assert "kafka_correlationId" not in dict(record.headers)


def test_a_delta_is_no_terminal_reply() -> None:
    with pytest.raises(AssertionError, match="ends nothing"):
        terminal_record(CONTEXT, "inference.replies", ReplyEvent.DELTA, b"{}")


@pytest.mark.parametrize("ids", [(), (0,), (1, 49151, 7)])
def test_token_ids_read_back(ids: tuple[int, ...]) -> None:
    assert decode_tokens(encode_tokens(ids)) == ids


def test_a_dead_letter_keeps_the_bytes_and_says_why() -> None:
    record = InboundRecord(
        RecordId("inference.p1", 2, 77), 0, b"k", b"\xff", (("tenant", b"acme"), ("__dlq.errors.message", b"old"))
    )
    letter = dead_letter(record, "inference.dlq", group="headrace.p1", delivery_count=1, message="not JSON")
    headers = dict(letter.headers)
    assert (letter.topic, letter.key, letter.value) == ("inference.dlq", b"k", b"\xff")
    assert headers["tenant"] == b"acme"
    assert [value for name, value in letter.headers if name == "__dlq.errors.message"] == [b"not JSON"]
    assert headers["__dlq.errors.topic"] == b"inference.p1"
    assert (headers["__dlq.errors.partition"], headers["__dlq.errors.offset"]) == (b"2", b"77")
    assert (headers["__dlq.errors.group"], headers["__dlq.errors.delivery.count"]) == (b"headrace.p1", b"1")
