"""Which payloads stay in memory: within the budget, those that run first, and never one too many forgotten."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from scheduling.priority import PriorityClass
from topics.assignment import PartitionEpoch
from topics.headers import RequestHeaders
from topics.record import InboundRecord, RecordId
from workers.intake.longest import Longest
from workers.intake.payloads import Payloads, Sender, record_size
from workers.intake.request import Arrival

SENDERS: dict[RecordId, Sender] = {}
"""Of the records that were made last."""
SIZE = record_size(InboundRecord(RecordId("p1", 0, 0), 0, None, bytes(100), ()))


def arrival_of(offset: int, tenant: str = "A", flow: str = "", *, partition: int = 0, epoch: int = 1) -> Arrival:
    return Arrival(
        id=RecordId("p1", partition, offset),
        timestamp_ms=0,
        epoch=epoch,
        headers=RequestHeaders(f"r{offset}"),
        origin_class=PriorityClass.P1,
        service_class=PriorityClass.P1,
        tenant=tenant,
        flow=flow,
        arrived_s=0.0,
        ttft_deadline_s=None,
        hard_deadline_s=None,
        body_bytes=100,
        max_tokens=None,
    )


def record_of(arrival: Arrival, size: int = 100) -> InboundRecord:
    SENDERS[arrival.id] = Sender(arrival.tenant, arrival.flow)
    return InboundRecord(arrival.id, 0, None, bytes(size), ())


def sender_of(record: InboundRecord) -> Sender:
    """As ingress reads it of the headers, which these records have not."""
    return SENDERS[record.id]


def kept(payloads: Payloads, arrivals: list[Arrival]) -> list[int]:
    return [arrival.id.offset for arrival in arrivals if payloads.find(arrival) is not None]


def test_the_end_of_the_longest_backlog_goes_first() -> None:
    payloads = Payloads(6 * SIZE, sender_of)
    job = [arrival_of(offset, "A", "job") for offset in range(10)]
    for arrival in job:
        payloads.keep(arrival, record_of(arrival))
    assert kept(payloads, job) == [0, 1, 2, 3, 4, 5]
    other = arrival_of(10, "B")
    payloads.keep(other, record_of(other))
    assert kept(payloads, [*job, other]) == [0, 1, 2, 3, 4, 10], "who has little waiting keeps it"
    beside = arrival_of(11, "A", "chat")
    payloads.keep(beside, record_of(beside))
    assert kept(payloads, [*job, other, beside]) == [0, 1, 2, 3, 10, 11], "and so does a short flow beside a long one"
    payloads.check_integrity()


def test_a_flow_for_each_request_makes_no_tenant_look_small() -> None:
    payloads = Payloads(6 * SIZE, sender_of)
    many = [arrival_of(offset, "A", f"flow{offset}") for offset in range(10)]
    few = [arrival_of(100 + number, "B", "one") for number in range(2)]
    for arrival in [*many, *few]:
        payloads.keep(arrival, record_of(arrival))
    assert kept(payloads, few) == [100, 101]


def test_what_is_read_again_stands_before_its_flow_and_what_runs_last_makes_room() -> None:
    payloads = Payloads(4 * SIZE, sender_of)
    job = [arrival_of(offset) for offset in range(8)]
    for arrival in job:
        payloads.keep(arrival, record_of(arrival))
    for arrival in job[:2]:
        payloads.drop(arrival.assignment, arrival.id.offset)
    late = arrival_of(8)
    payloads.keep(late, record_of(late))
    assert kept(payloads, [*job, late]) == [2, 3, 8]
    for arrival in reversed(job[4:6]):
        assert payloads.restore(arrival.assignment, record_of(arrival))
    assert kept(payloads, [*job, late]) == [2, 3, 4, 5], "the newest went, though it came last"
    assert not payloads.restore(job[2].assignment, record_of(job[2])), "nobody misses it"
    assert not payloads.restore(job[0].assignment, record_of(job[0])), "it was answered"
    payloads.check_integrity()


def test_one_that_is_larger_than_the_budget_is_not_kept_but_known() -> None:
    payloads = Payloads(SIZE, sender_of)
    large = arrival_of(0)
    payloads.keep(large, record_of(large, 5_000))
    assert payloads.find(large) is None
    assert payloads.misses(large.assignment, 0)
    payloads.check_integrity()


def test_what_was_revoked_is_not_found_and_leaves_in_slices() -> None:
    payloads = Payloads(5 * SIZE, sender_of)
    gone = [arrival_of(offset) for offset in range(8)]
    for arrival in gone:
        payloads.keep(arrival, record_of(arrival))
    payloads.revoke(gone[0].assignment)
    assert kept(payloads, gone) == []
    assert not payloads.misses(gone[7].assignment, 7)
    back = arrival_of(0, epoch=2)
    payloads.keep(back, record_of(back))
    payloads.check_integrity()
    assert payloads.sweep(3)
    assert not payloads.sweep(6)
    assert kept(payloads, [back]) == [0]
    statistics = payloads.statistics()
    assert (statistics.resident, statistics.evicted, statistics.bytes) == (1, 0, SIZE)


def test_the_longest_is_found_among_many_that_come_and_go() -> None:
    sizes: Longest[int] = Longest()
    for key in range(1_000):
        sizes.grow(key, 10)
        sizes.shrink(key, 10)
    assert len(sizes._heap) < 200, "keys that are gone fill it"
    for key in range(10):
        sizes.grow(key, key + 1)
    sizes.shrink(9, 9)
    assert sizes.longest() == 8


class PayloadsMachine(RuleBasedStateMachine):
    """Against a model that knows only which requests wait."""

    arrivals = Bundle("arrivals")

    def __init__(self) -> None:
        super().__init__()
        self.payloads = Payloads(20 * SIZE, sender_of)
        self.waiting: dict[tuple[PartitionEpoch, int], Arrival] = {}
        self.epochs = {0: 1, 1: 1}
        self.offset = 0

    @rule(
        target=arrivals,
        count=st.integers(1, 12),
        tenant=st.sampled_from("AB"),
        flow=st.sampled_from("xyz"),
        partition=st.integers(0, 1),
        size=st.integers(0, 2_000),
    )
    def come(self, count: int, tenant: str, flow: str, partition: int, size: int) -> object:
        came = []
        for _ in range(count):
            self.offset += 1
            arrival = arrival_of(self.offset, tenant, flow, partition=partition, epoch=self.epochs[partition])
            self.waiting[arrival.assignment, self.offset] = arrival
            self.payloads.keep(arrival, record_of(arrival, size))
            came.append(arrival)
        return multiple(*came)

    @rule(arrival=consumes(arrivals))
    def answer(self, arrival: Arrival) -> None:
        self.waiting.pop((arrival.assignment, arrival.id.offset), None)
        self.payloads.drop(arrival.assignment, arrival.id.offset)

    @rule(arrival=arrivals)
    def read_again(self, arrival: Arrival) -> None:
        missed = self.payloads.misses(arrival.assignment, arrival.id.offset)
        assert self.payloads.restore(arrival.assignment, record_of(arrival)) == missed

    @rule(partition=st.integers(0, 1))
    def revoke(self, partition: int) -> None:
        assignment = PartitionEpoch("p1", partition, self.epochs[partition])
        self.epochs[partition] += 1
        self.payloads.revoke(assignment)
        self.waiting = {place: each for place, each in self.waiting.items() if place[0] != assignment}

    @rule(most=st.integers(1, 30))
    def sweep(self, most: int) -> None:
        self.payloads.sweep(most)

    @invariant()
    def every_request_has_its_payload_or_is_known_to_miss_it(self) -> None:
        for (assignment, offset), arrival in self.waiting.items():
            record = self.payloads.find(arrival)
            assert (record is None) == self.payloads.misses(assignment, offset), f"{arrival.id} is lost"
            assert record is None or record.id == arrival.id

    @invariant()
    def the_books_are_right(self) -> None:
        self.payloads.check_integrity()

    def teardown(self) -> None:
        for partition, epoch in self.epochs.items():
            self.payloads.revoke(PartitionEpoch("p1", partition, epoch))
        while self.payloads.sweep(100):
            pass
        statistics = self.payloads.statistics()
        assert (statistics.resident, statistics.evicted, statistics.bytes) == (0, 0, 0)


TestPayloads = PayloadsMachine.TestCase
