"""The usage record on the wire."""

import pytest

from topics.record import InboundRecord, RecordId
from topics.usage import UsageRecord

PLACE = RecordId("inference.p2", 3, 41)
USAGE = UsageRecord(
    request_id="r1",
    tenant="acme",
    priority="p2",
    model="smollm2",
    outcome="length",
    prompt_tokens=10,
    cached_tokens=4,
    output_tokens=7,
    cost=20,
    attempt=2,
    arrived_at_ms=1,
    ended_at_ms=2,
)


def test_a_record_is_read_as_it_was_written_under_its_requests_identity() -> None:
    written = USAGE.encode("inference.usage", PLACE)
    assert (written.topic, written.key) == ("inference.usage", b"inference.p2/3/41")
    read = InboundRecord(RecordId("inference.usage", 0, 0), 0, written.key, written.value, ())
    assert UsageRecord.decode(read) == USAGE


def test_what_no_worker_wrote_is_no_usage() -> None:
    read = InboundRecord(RecordId("inference.usage", 0, 0), 0, b"k", b'{"tenant": "acme"}', ())
    with pytest.raises(ValueError, match="request_id"):
        UsageRecord.decode(read)


@pytest.mark.parametrize(("outcome", "completed"), [("stop", True), ("length", True), ("expired", False)])
def test_an_error_is_not_completed(outcome: str, completed: bool) -> None:
    assert USAGE.model_copy(update={"outcome": outcome}).completed is completed
