"""Tenants of one class: credit, weights that change with who is there, what is remembered."""

import pytest

from scheduling.capacity import CapacityMeter
from scheduling.event_queue import EventQueue
from scheduling.index import Index
from scheduling.sfq import FlowRows, Sfq
from scheduling.tenants import Tenants
from scheduling.tree import FlowOrder, LeafConfig, TenantsConfig
from tests.scheduling.queue_rig import Job, add, release

RATE = 100.0


class Class:
    def __init__(self, burst: int = 100, **config: object) -> None:
        self.index = Index()
        rows = FlowRows(self.index, FlowOrder.FIFO)
        self.tenants = Tenants(
            self.index,
            TenantsConfig(**{"quantum": 10, **config}),  # type: ignore[arg-type]
            lambda leaf: Sfq(self.index, leaf, rows),
            burst=burst,
            initial_fill=0.5,
            now=0.0,
        )
        self.tenants.set_rate(RATE, 0.0)
        self.tenant_of: dict[int, str] = {}

    def push(self, tenant: str, cost: int = 10, now: float = 0.0, count: int = 1) -> None:
        for _ in range(count):
            row = add(self.index, Job(tenant=tenant, prompt=cost, output=0))
            self.tenant_of[row] = tenant
            self.tenants.push(row, now)

    def pop(self, count: int, now: float = 0.0, end: bool = False) -> str:
        served = ""
        for _ in range(count):
            popped = self.tenants.pop(now, 0)
            if popped is None:
                break
            row, _, grant = popped
            served += self.tenant_of[row]
            if end:
                self.tenants.end(grant, 0, now)
                release(self.index, row)
            self.tenants.check_integrity()
        return served


def test_tenants_in_credit_go_before_those_in_debt() -> None:
    one = Class()
    one.push("a", cost=60, count=5)
    assert one.pop(2) == "aa", "fifty were saved up at the start, and what nobody else wants"
    one.push("b", cost=10, count=8)
    assert one.pop(6) == "bbbbbb", "b runs on its own fifty"
    assert set(one.pop(3)) == {"a", "b"}


def test_time_pays_debts_by_weight_among_the_active() -> None:
    one = Class(weights={"a": 3.0})
    one.push("a", cost=150 + 75, count=2)
    one.push("b", cost=50 + 75, count=2)
    assert sorted(one.pop(2)) == ["a", "b"], "both are 75 in debt now, but a saved thrice"
    one.push("c", cost=1, count=1)
    assert one.pop(1) == "c"
    # Two share now (c is in flight too): weights 3 + 1 + 1 of 100 units a second.
    assert next(iter(one.tenants)).in_credit is False
    one.push("a", now=1.3)
    first = one.pop(1, now=1.3)
    assert first == "a", "60 units a second paid its 75 in 1.25 s; b's 20 a second have not"


def test_a_quantum_is_by_weight() -> None:
    one = Class(burst=0, weights={"a": 2.0})
    one.push("a", cost=10, count=20)
    one.push("b", cost=10, count=20)
    served = one.pop(30)
    assert abs(served.count("a") - 2 * served.count("b")) <= 4


def test_a_debt_outlives_a_tenants_leaving() -> None:
    one = Class()
    one.push("a", cost=1050)
    assert one.pop(1, end=True) == "a"
    one.push("b", count=30)
    one.pop(8, end=True)
    one.push("a", now=1.0)
    assert "a" not in one.pop(4, now=1.0), "a thousand in debt, and a hundred a second"
    assert len(list(one.tenants)) == 2


def test_a_tenant_is_forgotten_when_it_makes_no_difference() -> None:
    one = Class()
    for number in range(100):
        one.push(f"t{number}", now=float(number))
        one.pop(1, now=float(number), end=True)
    assert len(list(one.tenants)) <= 3
    assert len(one.index.tenants) <= 3


def test_a_new_tenant_has_what_it_would_have_saved_since_the_start() -> None:
    one = Class(burst=100)
    one.push("late", cost=90, count=2, now=50.0)
    one.push("other", cost=1, now=50.0)
    assert one.pop(2, now=50.0) in ("lateother", "otherlate")
    assert one.pop(1, now=50.0) == "late"


def test_new_weights_keep_debts() -> None:
    one = Class()
    one.push("a", cost=250, count=3)
    one.push("b", cost=250, count=3)
    one.pop(2)
    one.tenants.reconfigure(TenantsConfig(weights={"a": 9.0}, quantum=10), 100, 0.0)
    one.tenants.check_integrity()
    assert one.pop(1, now=2.5) == "a", "200 in debt, 90 a second"
    in_credit = {one.index.tenants.name(tenant.number): tenant.in_credit for tenant in one.tenants}
    assert in_credit == {"a": False, "b": False}


def test_a_borrow_limit_blocks_until_the_debt_is_paid() -> None:
    one = Class(borrow_limit=0.0)
    one.push("a", cost=60, count=3)
    assert one.pop(3) == "a"
    at = one.tenants.next_event(0.0)
    assert at == pytest.approx(0.1)
    assert one.pop(1, now=0.09) == ""
    assert one.pop(1, now=0.11) == "a"


# --- wake-ups ---------------------------------------------------------------------------------------------------------


class Sleeper:
    def __init__(self) -> None:
        self.event_at: float | None = None


def test_an_entry_that_is_early_enough_stands() -> None:
    queue: EventQueue[Sleeper] = EventQueue()
    sleeper = Sleeper()
    assert queue.schedule(sleeper, 5.0)
    assert not queue.schedule(sleeper, 9.0)
    assert queue.due(5.0) == [sleeper]
    assert queue.due(100.0) == []


def test_an_earlier_time_replaces_a_later_one() -> None:
    queue: EventQueue[Sleeper] = EventQueue()
    one, other = Sleeper(), Sleeper()
    queue.schedule(one, 5.0)
    queue.schedule(other, 4.0)
    queue.schedule(one, 3.0)
    assert queue.next() == 3.0
    assert queue.due(4.5) == [one, other]
    assert queue.due(10.0) == []
    assert queue.next() == float("inf")


def test_who_sleeps_on_is_not_woken() -> None:
    queue: EventQueue[Sleeper] = EventQueue()
    sleeper = Sleeper()
    queue.schedule(sleeper, 1.0)
    queue.cancel(sleeper)
    assert queue.due(10.0) == []


def test_stale_entries_do_not_pile_up() -> None:
    queue: EventQueue[Sleeper] = EventQueue()
    sleeper = Sleeper()
    for number in range(10_000):
        queue.schedule(sleeper, 10_000.0 - number)
    assert len(queue._heap) < 200
    assert queue.due(1e9) == [sleeper]


# --- capacity ---------------------------------------------------------------------------------------------------------


def test_capacity_follows_saturated_steps_and_tells_changes_only() -> None:
    meter = CapacityMeter(1000.0)
    assert meter.observe(100, 0.1) is None, "as expected"
    told = [meter.observe(200, 0.1) for _ in range(600)]
    changes = [units for units in told if units is not None]
    assert changes == sorted(changes)
    assert len(changes) < 60
    assert meter.statistics().units_s == pytest.approx(2000.0, rel=0.15)


def test_a_capacity_is_above_nought() -> None:
    with pytest.raises(ValueError, match="above 0"):
        CapacityMeter(0.0)


def test_leaf_configuration_reaches_new_tenants() -> None:
    index = Index()
    seen: list[LeafConfig] = []
    rows = FlowRows(index, FlowOrder.FIFO)

    def make(leaf: LeafConfig) -> Sfq:
        seen.append(leaf)
        return Sfq(index, leaf, rows)

    tenants = Tenants(index, TenantsConfig(), make, burst=10, initial_fill=0.5, now=0.0)
    tenants.push(add(index, Job(tenant="a")), 0.0)
    tenants.reconfigure(TenantsConfig(leaf=LeafConfig(quantum=7)), 10, 0.0)
    tenants.push(add(index, Job(tenant="b")), 0.0)
    assert [leaf.quantum for leaf in seen] == [1024, 7]
