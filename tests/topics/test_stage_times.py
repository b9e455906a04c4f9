"""The header that says where a request's time went: written, read back, and never a reason to lose an answer."""

import pytest

from topics.stage_times import StageTimes


def test_it_is_written_as_server_timing_in_milliseconds_and_read_back() -> None:
    stages = StageTimes(ingress=0.0031, queue=1.8858, slot=0.0, prefill=0.25)
    assert stages.encode() == "ingress;dur=3.1, queue;dur=1885.8, slot;dur=0.0, prefill;dur=250.0"
    assert StageTimes.decode_header(stages.encode().encode()) == stages


def test_suspensions_are_counted() -> None:
    stages = StageTimes(queue=1.0, suspended=2.5, suspensions=3)
    assert stages.encode() == "queue;dur=1000.0, suspended;dur=2500.0;desc=3"
    assert StageTimes.decode_header(stages.encode().encode()) == stages


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (b"", StageTimes()),
        (b'queue;desc="x";dur=5, unknown;dur=1, db', StageTimes(queue=0.005)),
        (b"queue;dur=fast", None),
        (b"suspended;dur=1;desc=often", None),
        (b"\xff", None),
    ],
)
def test_other_writers_headers_are_read_as_far_as_they_go(value: bytes, read: StageTimes | None) -> None:
    assert StageTimes.decode_header(value) == read
