"""A discipline that is changed while it works: nothing queued or in flight is lost, and the books go on."""

from itertools import product

import pytest

from scheduling.accounting import AccountedQdisc
from scheduling.default_tree import default_tree
from scheduling.index import Index
from scheduling.policies import POLICIES, PolicyError, change_quotas, make_qdisc, switch_policy
from scheduling.priority import PriorityClass
from scheduling.quota import Limit, Quota, Quotas, Unit
from scheduling.state import RequestState

P0, P1, P2, P3 = PriorityClass
NO_QUOTAS = Quotas()


class Line:
    """Rows of four classes and three tenants, queued and dispatched through one discipline."""

    def __init__(self, policy: str = "htb", quotas: Quotas = NO_QUOTAS) -> None:
        self.index = Index()
        self.tree = default_tree(1_000.0)
        self.qdisc: AccountedQdisc = make_qdisc(policy, self.index, self.tree, quotas=quotas)
        self.now = 0.0
        self.in_flight: list[int] = []
        self.ended: list[int] = []

    def add(self, count: int, tenant: str | None = None, priority: PriorityClass | None = None) -> list[int]:
        rows = []
        for number in range(count):
            row = self.index.add(
                origin=PriorityClass(number % 4) if priority is None else priority,
                tenant=tenant or f"t{number % 3}",
                flow=f"f{number % 5}",
                prompt_tokens=10 + number % 7,
                output_tokens=5,
                arrival_s=self.now,
            )
            self.now += 0.001
            self.qdisc.enqueue(row, self.now)
            rows.append(row)
        return rows

    def dispatch(self, most: int) -> list[int]:
        rows: list[int] = []
        while len(rows) < most and (row := self.qdisc.dequeue(self.now)) is not None:
            self.index.move(row, RequestState.CLAIMED)
            rows.append(row)
        self.in_flight += rows
        return rows

    def end_all(self) -> None:
        for row in self.in_flight:
            self.qdisc.charge(row, 7, self.now)
            self.qdisc.settle(row, self.now)
            self.index.move(row, RequestState.FAILED)
            self.ended.append(row)
        self.in_flight.clear()
        self.qdisc.check_integrity()

    def switch(self, policy: str, quotas: Quotas = NO_QUOTAS, paused: frozenset[str] = frozenset()) -> None:
        switch_policy(self.qdisc, policy, self.index, self.tree, self.now, quotas, paused)
        self.qdisc.check_integrity()


@pytest.mark.parametrize(("before", "after"), [(a, b) for a, b in product(POLICIES, repeat=2) if "htb" in (a, b)])
def test_a_switch_loses_nothing(before: str, after: str) -> None:
    line = Line(before)
    rows = line.add(60)
    line.dispatch(20)
    line.switch(after)
    assert len(line.qdisc) == 40
    line.dispatch(10)
    line.end_all()
    line.dispatch(60)
    line.end_all()
    assert sorted(line.ended) == sorted(rows)
    assert len(line.qdisc) == 0


def test_after_a_switch_the_new_policy_orders_what_waited() -> None:
    line = Line("fifo")
    late_batch = line.add(5, priority=P3)
    urgent = line.add(1, priority=P0)
    line.switch("strict")
    assert line.dispatch(6) == urgent + late_batch


def test_a_policy_that_nobody_knows_changes_nothing() -> None:
    line = Line("fifo")
    rows = line.add(3)
    with pytest.raises(PolicyError):
        line.switch("lottery")
    assert line.dispatch(3) == rows


@pytest.mark.parametrize("policy", ["htb", "fifo", "vtc"])
def test_a_paused_tenant_waits_and_goes_on_afterwards(policy: str) -> None:
    line = Line(policy)
    theirs, others = line.add(10, tenant="paused"), line.add(10, tenant="other")
    going = set(line.dispatch(4))
    change_quotas(line.qdisc, line.index, line.now, NO_QUOTAS, frozenset({"paused"}))
    line.qdisc.check_integrity()
    late = line.add(2, tenant="paused")
    assert set(line.dispatch(99)) == set(others) - going
    assert line.qdisc.next_event(line.now) is None
    line.end_all()
    change_quotas(line.qdisc, line.index, line.now, NO_QUOTAS)
    assert set(line.dispatch(99)) == set(theirs + late) - going
    line.end_all()


def test_a_paused_tenants_request_can_be_cancelled() -> None:
    line = Line()
    first, second = line.add(2, tenant="paused")
    change_quotas(line.qdisc, line.index, line.now, NO_QUOTAS, frozenset({"paused"}))
    line.qdisc.cancel(first, line.now)
    line.qdisc.check_integrity()
    change_quotas(line.qdisc, line.index, line.now, NO_QUOTAS)
    assert line.dispatch(9) == [second]
    line.end_all()


def test_a_pause_survives_a_change_of_policy() -> None:
    line = Line()
    line.add(3, tenant="paused")
    line.switch("fifo", paused=frozenset({"paused"}))
    assert line.dispatch(9) == []


def test_a_quota_that_is_new_counts_from_then_on_and_one_that_is_gone_does_not() -> None:
    quotas = Quotas(tenants={"t": Quota(limits=(Limit(2, Unit.REQUESTS, 60.0),))})
    line = Line()
    queued = line.add(3, tenant="t")
    change_quotas(line.qdisc, line.index, line.now, quotas)
    limited = line.add(5, tenant="t")
    assert len(line.dispatch(99)) == len(queued) + 3, "two by the quota, and one more that it owes"
    line.end_all()
    change_quotas(line.qdisc, line.index, line.now, NO_QUOTAS)
    assert len(line.dispatch(99)) == len(limited) - 3
    line.end_all()


def test_what_is_owed_on_a_quota_that_stays_is_owed_when_anothers_changes() -> None:
    def quotas(other: float) -> Quotas:
        limit = {"t": 1.0, "other": other}
        return Quotas(tenants={n: Quota(limits=(Limit(each, Unit.REQUESTS, 60.0),)) for n, each in limit.items()})

    line = Line(quotas=quotas(5))
    line.add(4, tenant="t")
    served = len(line.dispatch(99))
    change_quotas(line.qdisc, line.index, line.now, quotas(9))
    assert line.dispatch(99) == []
    assert served < 4
