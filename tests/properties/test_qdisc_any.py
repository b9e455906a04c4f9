"""What every policy promises, on random sequences of calls: nothing lost, nothing charged twice, peek foretells."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduling.accounting import AccountedQdisc
from scheduling.default_tree import default_tree
from scheduling.index import Index
from scheduling.ledger import Cause
from scheduling.policies import LEAF_POLICIES, POLICIES, make_qdisc
from scheduling.priority import PriorityClass
from scheduling.qdisc import Room
from scheduling.quota import Limit, Over, Quota, Quotas, Unit
from scheduling.state import RequestState
from scheduling.tree import ClassConfig, FlowOrder, Rate, TreeConfig
from tests.scheduling.queue_rig import Job, add, release

HARD = "htb, hard limits"
"""A tree in which limits may leave the machine idle."""
LEAVES = {f"htb over {policy}": policy for policy in LEAF_POLICIES if policy != "sfq"}
VARIANTS = [*POLICIES, HARD, *LEAVES]
QUOTAS = {"htb, quotas": "htb", "fifo, quotas": "fifo", "vtc, quotas": "vtc"}
"""Policies behind a gate that holds tenants back."""
VARIANTS += QUOTAS
HEADS_WAIT = ("fifo", "vtc", "mlfq")
"""They know no classes: a request without room holds up those behind it (of its client)."""
LIMITED = (HARD, "tiered", *QUOTAS)


def make(variant: str, index: Index, tree: TreeConfig) -> AccountedQdisc:
    quotas = Quotas(
        everybody=(Limit(400, Unit.COST, 5.0),),
        each_tenant=Quota(limits=(Limit(3, Unit.REQUESTS, 2.0), Limit(200, Unit.COST, 2.0))),
        tenants={"b": Quota(limits=(Limit(90, Unit.COST, 1.0),), over=Over.DEMOTE), "c": Quota(limits=())},
    )
    policy = QUOTAS.get(variant, variant if variant in POLICIES else "htb")
    return make_qdisc(policy, index, tree, quotas=quotas if variant in QUOTAS else None)


def tree_for(variant: str, order: FlowOrder, grouped: bool = False) -> TreeConfig:
    tree = default_tree(capacity_units_s=100.0, largest_item=50)
    leaf = LEAVES.get(variant, "sfq")
    classes = tuple(
        replace(
            child,
            tenants=replace(child.tenants, leaf=replace(child.tenants.leaf, order=order, quantum=20, policy=leaf)),
        )
        for child in tree.classes
    )
    if variant == HARD:
        p0, p1, p2, p3 = classes
        p1 = replace(p1, ceil=Rate(share=0.7), lendable=0.5)
        p2 = replace(p2, borrow_limit=0.5)
        classes = (p0, p1, p2, replace(p3, lendable=0.0))
    if grouped:
        classes = (
            replace(classes[0], name="urgent", weight=3, max_wait_s=1.0),
            ClassConfig(name="rest", weight=2, children=tuple(replace(child, max_wait_s=4.0) for child in classes[1:])),
        )
    return replace(tree, classes=classes)


jobs = st.builds(
    Job,
    priority=st.sampled_from(PriorityClass),
    tenant=st.sampled_from("abc"),
    flow=st.sampled_from("xyz"),
    prompt=st.integers(1, 60),
    output=st.integers(0, 40),
    ttft_deadline_s=st.floats(0, 100),
)


class AnyQdisc(RuleBasedStateMachine):
    @initialize(variant=st.sampled_from(VARIANTS), order=st.sampled_from(FlowOrder))
    def start(self, variant: str, order: FlowOrder) -> None:
        self.variant = variant
        self.index = Index()
        self.qdisc = make(variant, self.index, tree_for(variant, order))
        self.now = 0.0
        self.queued: list[int] = []
        self.flying: dict[int, int] = {}
        """By row: what was charged, in cost units."""
        self.ended = 0
        self.charged = 0

    @rule(job=jobs)
    def enqueue(self, job: Job) -> None:
        row = add(self.index, job)
        self.qdisc.enqueue(row, self.now)
        self.queued.append(row)

    @rule(blocked=st.integers(0, 15))
    def dequeue(self, blocked: int) -> None:
        room = Room(blocked)
        foretold = self.qdisc.peek(self.now, room)
        by_right = self.qdisc.peek_strict(self.now, room)
        assert by_right is None or (by_right == foretold and self.index.service[by_right] == PriorityClass.P0)
        row = self.qdisc.dequeue(self.now, room)
        assert row == foretold
        admitted = [queued for queued in self.queued if room.admits(self.index.service[queued])]
        if row is None:
            assert self.variant in (*HEADS_WAIT, *LIMITED) or not admitted, "idle with work that has room"
            return
        assert row in admitted
        self.queued.remove(row)
        self.flying[row] = self.index.prompt_cost[row]
        self.charged += self.index.prompt_cost[row]

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), cost=st.integers(1, 60), cause=st.sampled_from([Cause.OUTPUT, Cause.PREEMPTION]))
    def charge(self, data: st.DataObject, cost: int, cause: Cause) -> None:
        row = data.draw(st.sampled_from(sorted(self.flying)))
        self.qdisc.charge(row, cost, self.now, cause)
        self.flying[row] += cost
        self.charged += cost

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), refunded=st.floats(0, 1))
    def settle(self, data: st.DataObject, refunded: float) -> None:
        row = data.draw(st.sampled_from(sorted(self.flying)))
        refund = int(refunded * self.index.prompt_cost[row])
        self.qdisc.settle(row, self.now, refund)
        self.charged -= refund
        self.ended += self.flying.pop(row) - refund
        release(self.index, row)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        fresh = [row for row, charged in self.flying.items() if charged == self.index.prompt_cost[row]]
        if fresh:
            row = data.draw(st.sampled_from(sorted(fresh)))
            self.qdisc.requeue(row, self.now)
            self.charged -= self.flying.pop(row)
            self.queued.append(row)

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.queued)))
        self.qdisc.cancel(row, self.now)
        self.queued.remove(row)
        release(self.index, row)

    @precondition(lambda self: self.queued)
    @rule(data=st.data(), prompt=st.integers(1, 80), cached=st.floats(0, 1))
    def stage(self, data: st.DataObject, prompt: int, cached: float) -> None:
        row = data.draw(st.sampled_from(sorted(self.queued)))
        if self.index.state[row] == RequestState.WAITING:
            self.index.set_tokens(row, prompt_tokens=prompt, cached_tokens=int(prompt * cached))
            self.index.move(row, RequestState.STAGED)

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(limit=st.integers(0, 12), skip=st.sets(st.sampled_from(PriorityClass)))
    def upcoming(self, limit: int, skip: set[PriorityClass]) -> None:
        rows = self.qdisc.upcoming(limit, frozenset(skip))
        assert len(rows) == len(set(rows)) <= limit
        waiting = [
            row
            for row in self.queued
            if self.index.state[row] == RequestState.WAITING and self.index.service[row] not in skip
        ]
        assert set(rows) <= set(waiting)
        if self.variant not in LIMITED:
            assert len(rows) == min(limit, len(waiting)), "it looks at all that is near"

    @rule(grouped=st.booleans(), order=st.sampled_from(FlowOrder))
    def reload(self, grouped: bool, order: FlowOrder) -> None:
        self.qdisc.reload(tree_for(self.variant, order, grouped), self.now)

    @rule(capacity=st.floats(1.0, 1e6))
    def measure(self, capacity: float) -> None:
        self.qdisc.set_capacity(capacity, self.now)

    @rule(share=st.floats(0.1, 1.0))
    def divide(self, share: float) -> None:
        self.qdisc.divide_quotas(share, self.now)

    @rule()
    def next_event(self) -> None:
        at = self.qdisc.next_event(self.now)
        if self.variant not in LIMITED:
            assert at is None, "without hard limits time alone changes nothing"
        elif self.queued and self.qdisc.peek(self.now) is None:
            assert at is not None, "blocked for ever"
            self.now = max(self.now, at)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.qdisc.check_integrity()
        assert len(self.qdisc) == len(self.queued)
        statistics = self.qdisc.statistics()
        assert sum(figures.queued for figures in statistics.by_class.values()) == len(self.queued)
        assert sum(figures.in_flight for figures in statistics.by_class.values()) == len(self.flying)

    @invariant()
    def every_unit_is_accounted_for(self) -> None:
        ledger = self.qdisc.ledger()
        assert ledger.settled == self.ended
        assert ledger.open == sum(self.flying.values())
        assert ledger.charged - ledger.refunded == self.charged
        if not self.flying:
            dispatched = sum(figures.dispatched_cost for figures in self.qdisc.statistics().by_class.values())
            assert dispatched == ledger.settled

    def teardown(self) -> None:
        """Whatever happened, everything leaves, and nothing is kept of the names."""
        if not hasattr(self, "qdisc"):
            return
        for _ in range(10_000):
            row = self.qdisc.dequeue(self.now)
            if row is None:
                if not self.queued:
                    break
                at = self.qdisc.next_event(self.now)
                assert at is not None, "blocked for ever"
                self.now = max(self.now, at)
                continue
            self.queued.remove(row)
            self.qdisc.settle(row, self.now)
            release(self.index, row)
        assert not self.queued
        for row in self.flying:
            self.qdisc.settle(row, self.now)
            release(self.index, row)
        self.qdisc.check_integrity()
        assert not len(self.index)


TestAnyQdisc = AnyQdisc.TestCase
TestAnyQdisc.settings = settings(stateful_step_count=60, deadline=None)


Event = tuple[str, Job, int, float]
events = st.lists(
    st.tuples(st.sampled_from(["enqueue", "dequeue", "charge", "settle"]), jobs, st.integers(0, 15), st.floats(0, 3)),
    max_size=60,
)


def decisions(variant: str, happened: list[Event], peeks: bool) -> list[int | None]:
    """The rows a discipline lets go; with `peeks` it is asked all the time what it would do."""
    index = Index()
    qdisc = make(variant, index, tree_for(variant, FlowOrder.FIFO))
    now = 0.0
    flying: list[int] = []
    let_go = []
    for what, job, number, later in happened:
        now += later
        if peeks:
            qdisc.peek(now, Room(number))
            qdisc.upcoming(5)
            qdisc.next_event(now)
        if what == "enqueue":
            qdisc.enqueue(add(index, job), now)
        elif what == "dequeue":
            row = qdisc.dequeue(now, Room(number if number < 4 else 0))
            let_go.append(row)
            if row is not None:
                flying.append(row)
        elif flying and what == "charge":
            qdisc.charge(flying[number % len(flying)], 1 + job.prompt, now)
        elif flying:
            qdisc.settle(flying.pop(number % len(flying)), now)
    return let_go


@pytest.mark.parametrize("variant", VARIANTS)
@given(happened=events)
def test_the_same_events_give_the_same_decisions_whoever_looks(variant: str, happened: list[Event]) -> None:
    first = decisions(variant, happened, peeks=False)
    assert decisions(variant, happened, peeks=False) == first
    assert decisions(variant, happened, peeks=True) == first
