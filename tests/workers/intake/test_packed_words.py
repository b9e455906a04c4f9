"""Headers come back from their packed form exactly as they were read, in whatever form their parts are."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import RequestError
from topics.headers import (
    BAGGAGE,
    CORRELATION_ID,
    CUSTOM_ID,
    DEADLINE_MS,
    FLOW,
    JOB_ID,
    REPLY_PARTITION,
    REPLY_TOPIC,
    REQUEST_ID,
    REQUEUED_SENT_MS,
    SLA_MS,
    TENANT,
    TIER,
    TRACEPARENT,
    TRACESTATE,
    RequestHeaders,
)
from topics.record import InboundRecord, RecordId
from workers.intake.packed_words import SharedWords, pack_words, unpack_request_id, unpack_words, was_moved

PLACE = RecordId("inference.p1", 3, 12)
UUID = "6f1cbd4e-9a0b-4c1d-8e2f-001f1f1f1f1f"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e471f-00f067aa0ba9021f-1f"

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20),
    st.uuids().map(str),
    st.uuids().map(lambda each: each.hex),
    st.sampled_from(["acme", "job-1", "job-1~1~7", TRACE, TRACE.upper(), UUID, UUID.upper(), "0" * 36, "g" * 32]),
)
NUMBERS = st.integers(1, 10**14).map(str)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys((REQUEST_ID, TENANT, FLOW, JOB_ID, CUSTOM_ID, TRACEPARENT, TRACESTATE, BAGGAGE), TEXTS),
        **dict.fromkeys((DEADLINE_MS, SLA_MS, REQUEUED_SENT_MS), NUMBERS),
        TIER: st.sampled_from(["p1", "p3"]),
        REPLY_TOPIC: st.sampled_from(["replies", "mine"]),
        REPLY_PARTITION: st.sampled_from(["0", "12"]),
        CORRELATION_ID: st.binary(min_size=1, max_size=20),
    },
)


def headers_of(values: dict[str, str | bytes]) -> RequestHeaders:
    pairs = tuple((name, value if isinstance(value, bytes) else value.encode()) for name, value in values.items())
    return RequestHeaders.decode(InboundRecord(PLACE, 0, None, b"{}", pairs))


def packed_size(**values: str) -> int:
    headers = headers_of({name.replace("_", "-"): value for name, value in values.items()})
    return len(pack_words(headers, PLACE, headers.tenant or "default", headers.flow_of(None) or ""))


@given(HEADERS, st.sampled_from(["acme", "default"]), st.sampled_from(["", "job-1", "acme"]))
def test_what_is_packed_comes_back(values: dict[str, str | bytes], tenant: str, flow: str) -> None:
    try:
        headers = headers_of(values)
    except RequestError:
        return  # a reply partition without its topic, or text that is no name: never packed
    packed = pack_words(headers, PLACE, tenant, flow)
    assert unpack_words(packed, SharedWords.of(headers), PLACE, tenant, flow) == headers
    assert unpack_request_id(packed, headers.job_id, PLACE) == headers.request_id
    assert was_moved(packed) == (headers.requeued_sent_ms is not None)


@pytest.mark.parametrize("request_id", [UUID, uuid.UUID(UUID).hex])
def test_ids_and_traces_that_end_like_a_separator_are_whole(request_id: str) -> None:
    headers = headers_of({REQUEST_ID: request_id, TRACEPARENT: TRACE})
    packed = pack_words(headers, PLACE, "default", "")
    assert unpack_words(packed, SharedWords.of(headers), PLACE, "default", "") == headers


def test_a_request_is_packed_into_some_tens_of_bytes() -> None:
    assert packed_size(request_id=UUID, traceparent=TRACE, tenant="acme") == 1 + 16 + 25
    assert packed_size(request_id=uuid.UUID(UUID).hex, flow="chat-4711") == 1 + 16
    assert packed_size(request_id="job-1~1~499999", job_id="job-1", custom_id="row-9") == 1 + len("~1~499999") + 6
    assert packed_size() == 1, "one that says nothing is known by its place"
