"""What waits is kept packed, and comes back as it came; of many alike what they share is kept once."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.priority import PriorityClass
from tests.workers.engine.table_rig import TableRig
from topics.headers import RequestHeaders
from topics.record import RecordId
from workers.engine.packed_arrivals import PackedArrivals
from workers.intake.request import Arrival

ARRIVALS = st.builds(
    Arrival,
    id=st.builds(RecordId, st.sampled_from(["inference.p1", "inference.p2"]), st.integers(0, 2), st.integers(0, 2**62)),
    timestamp_ms=st.integers(-1, 2**50),
    epoch=st.integers(1, 3),
    headers=st.builds(RequestHeaders, request_id=st.sampled_from(["a", "b"]), job_id=st.sampled_from([None, "job"])),
    origin_class=st.sampled_from([PriorityClass.P0, PriorityClass.P1]),
    service_class=st.sampled_from([PriorityClass.P1, PriorityClass.P3]),
    tenant=st.sampled_from(["acme", "default"]),
    flow=st.sampled_from(["", "chat"]),
    arrived_s=st.floats(0, 10**6),
    ttft_deadline_s=st.none() | st.floats(0, 10**6),
    hard_deadline_s=st.none() | st.floats(0, 10**6),
    body_bytes=st.integers(0, 2**30),
    max_tokens=st.none() | st.integers(0, 10**20),
    body_unread=st.booleans(),
    prompts=st.integers(1, 3),
    choices=st.integers(1, 3),
)


@given(st.lists(ARRIVALS, max_size=30), st.sets(st.integers(0, 29)))
def test_an_arrival_comes_back_as_it_came(arrivals: list[Arrival], ended: set[int]) -> None:
    rig = TableRig()
    packed = PackedArrivals(rig.index)
    rows = [rig.add(arrival) for arrival in arrivals]
    for row, arrival in zip(rows, arrivals, strict=True):
        packed.put(row, arrival, arrival.assignment)
    for row in ended & set(rows):
        packed.forget(row)
    packed.check_integrity()
    for row, arrival in zip(rows, arrivals, strict=True):
        assert packed.knows(row) == (row not in ended)
        assert packed.holds(row, arrival) == (row not in ended)
        if packed.knows(row):
            assert packed.get(row) == arrival
            assert packed.sent_ms(row) == arrival.sent_ms


def test_one_that_is_renewed_is_of_its_new_assignment_alone() -> None:
    rig = TableRig()
    packed = PackedArrivals(rig.index)
    arrival = replace(ARRIVAL, epoch=1)
    packed.put(rig.add(arrival), arrival, arrival.assignment)
    packed.renew(0, 2)
    assert packed.get(0) == replace(arrival, epoch=2)
    assert not packed.holds(0, arrival)
    packed.check_integrity()


ARRIVAL = Arrival(
    id=RecordId("inference.p1", 0, 7),
    timestamp_ms=0,
    epoch=1,
    headers=RequestHeaders("a"),
    origin_class=PriorityClass.P1,
    service_class=PriorityClass.P1,
    tenant="acme",
    flow="",
    arrived_s=0.0,
    ttft_deadline_s=None,
    hard_deadline_s=None,
    body_bytes=100,
    max_tokens=None,
)
