"""Tenants of one class: turns by weight, what is remembered. And two small parts: wake-ups, the capacity meter."""

import pytest

from scheduling.capacity import CapacityMeter
from scheduling.event_queue import EventQueue
from scheduling.index import Index
from scheduling.sfq import FlowRows, Sfq
from scheduling.tenants import Tenants
from scheduling.tree import FlowOrder, LeafConfig, TenantsConfig
from tests.scheduling.queue_rig import Job, add, release


class Class:
    def __init__(self, **config: object) -> None:
        self.index = Index()
        rows = FlowRows(self.index, FlowOrder.FIFO)
        template = TenantsConfig(**{"quantum": 10, **config})  # type: ignore[arg-type]
        self.tenants = Tenants(self.index, template, lambda leaf: Sfq(self.index, leaf, rows))
        self.tenant_of: dict[int, str] = {}

    def push(self, tenant: str, cost: int = 10, count: int = 1) -> None:
        for _ in range(count):
            row = add(self.index, Job(tenant=tenant, prompt=cost, output=0))
            self.tenant_of[row] = tenant
            self.tenants.push(row, 0.0)

    def pop(self, count: int, end: bool = False) -> str:
        served = ""
        for _ in range(count):
            popped = self.tenants.pop(0.0, 0)
            if popped is None:
                break
            row, _, grant = popped
            served += self.tenant_of[row]
            if end:
                self.tenants.end(grant, 0, 0.0)
                release(self.index, row)
            self.tenants.check_integrity()
        return served


def test_tenants_take_turns_whoever_came_first() -> None:
    one = Class()
    one.push("a", count=5)
    one.push("b", count=3)
    assert one.pop(8) == "abababaa"


def test_a_quantum_is_by_weight() -> None:
    one = Class(weight=2.0, weights={"a": 4.0})
    one.push("a", count=20)
    one.push("b", count=20)
    assert one.pop(12) == "aaaabbaaaabb"


def test_a_debt_outlives_a_tenants_leaving() -> None:
    one = Class()
    one.push("a", cost=100)
    one.push("b", count=30)
    assert one.pop(2, end=True) == "ab"
    one.push("a", cost=100)
    assert one.pop(12, end=True).index("a") >= 7
    assert len(list(one.tenants)) == 2


def test_a_tenant_is_forgotten_when_it_makes_no_difference() -> None:
    one = Class()
    for number in range(100):
        one.push(f"t{number}")
        one.pop(1, end=True)
    assert len(list(one.tenants)) <= 3
    assert len(one.index.tenants) <= 3


def test_a_newcomer_waits_for_one_turn_of_each_other_at_most() -> None:
    one = Class()
    for tenant in "abc":
        one.push(tenant, count=10)
    one.pop(4)
    one.push("d")
    assert "d" in one.pop(4)


def test_new_weights_hold_from_the_next_turn() -> None:
    one = Class()
    one.push("a", count=40)
    one.push("b", count=40)
    one.pop(4)
    one.tenants.reconfigure(TenantsConfig(weights={"a": 3.0}, quantum=10))
    one.tenants.check_integrity()
    served = one.pop(24)
    assert abs(served.count("a") - 3 * served.count("b")) <= 3


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

    tenants = Tenants(index, TenantsConfig(), make)
    tenants.push(add(index, Job(tenant="a")), 0.0)
    tenants.reconfigure(TenantsConfig(leaf=LeafConfig(quantum=7)))
    tenants.push(add(index, Job(tenant="b")), 0.0)
    assert [leaf.quantum for leaf in seen] == [1024, 7]
