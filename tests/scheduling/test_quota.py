"""Hard quotas: what a tenant, or everybody, may be served a period, before any policy."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduling.accounting import AccountedQdisc
from scheduling.default_tree import default_tree
from scheduling.index import Index
from scheduling.policies import make_qdisc
from scheduling.quota import Limit, Over, Quota, QuotaError, Quotas, Unit
from tests.scheduling.queue_rig import P0, P1, P3, Job, Server, add, release

TREE = default_tree(1000.0, 100)
REQUESTS, COST = Unit.REQUESTS, Unit.COST


def tenant_quota(*limits: Limit, over: Over = Over.WAIT) -> Quotas:
    return Quotas(tenants={"a": Quota(limits=limits, over=over)})


def queue(quotas: Quotas, *jobs: Job, policy: str = "htb") -> tuple[Index, AccountedQdisc, list[int]]:
    index = Index()
    qdisc = make_qdisc(policy, index, TREE, quotas=quotas)
    rows = [add(index, job) for job in jobs]
    for row in rows:
        qdisc.enqueue(row, 0.0)
    return index, qdisc, rows


def let_go(qdisc: AccountedQdisc, now: float) -> list[int]:
    rows = []
    while (row := qdisc.dequeue(now)) is not None:
        rows.append(row)
    return rows


@pytest.mark.parametrize("policy", ["htb", "fifo", "vtc"])
def test_requests_beyond_the_quota_wait_for_it(policy: str) -> None:
    quotas = tenant_quota(Limit(3, REQUESTS, 60.0))
    _, qdisc, rows = queue(quotas, *[Job(tenant="a") for _ in range(6)], policy=policy)
    # A bucket of 3 that owes nothing may be overdrawn by one.
    assert let_go(qdisc, 0.0) == rows[:4]
    assert qdisc.next_event(0.0) == pytest.approx(20.0)
    assert let_go(qdisc, 19.9) == []
    assert let_go(qdisc, 20.1) == rows[4:5]
    assert let_go(qdisc, 40.1) == rows[5:]


def test_another_tenant_does_not_wait() -> None:
    quotas = tenant_quota(Limit(1, REQUESTS, 60.0))
    _, qdisc, rows = queue(quotas, *[Job(tenant="a") for _ in range(5)], Job(tenant="b"))
    assert rows[5] in let_go(qdisc, 0.0)


def test_a_quota_holds_over_all_classes_and_the_urgent_go_first() -> None:
    quotas = tenant_quota(Limit(1, REQUESTS, 10.0))
    jobs = [Job(tenant="a", priority=P3) for _ in range(3)] + [Job(tenant="a", priority=P0)]
    _, qdisc, rows = queue(quotas, *jobs)
    assert let_go(qdisc, 0.0) == rows[:2]
    assert let_go(qdisc, 10.1) == [rows[3]]


@example(costs=[(1, 25, 0)] * 3, amount=50, slots=1)
@given(
    costs=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=40),
    amount=st.integers(50, 500),
    slots=st.integers(1, 8),
)
def test_what_is_served_never_passes_the_quota_by_more_than_what_was_not_foreseen(
    costs: list[tuple[int, int, int]], amount: int, slots: int
) -> None:
    jobs = [Job(tenant="a", prompt=prompt, output=output, predicted=guess) for prompt, output, guess in costs]
    quotas = tenant_quota(Limit(amount, COST, 10.0))
    server = Server(jobs, lambda index: make_qdisc("htb", index, TREE, quotas=quotas), TREE, slots=slots).run()
    largest = max(job.cost for job in jobs)
    # What the quota has let in counts as predicted until it ends, so that much may wait in the queue at once.
    within = amount + max(job.predicted_cost for job in jobs)
    let_in = sum(total <= within for total in accumulate(sorted(job.predicted_cost for job in jobs)))
    unforeseen = sum(sorted((max(0, job.cost - job.predicted_cost) for job in jobs), reverse=True)[:let_in])
    served = 0
    for at_s, _, units in server.work:
        served += units
        assert served <= amount + amount / 10.0 * at_s + largest + unforeseen
    assert len(server.ended) == len(jobs)


def test_a_wrong_prediction_is_put_right() -> None:
    quotas = tenant_quota(Limit(100, COST, 10.0))
    index, qdisc, rows = queue(quotas, *[Job(tenant="a", prompt=10, output=0, predicted=200) for _ in range(2)])
    assert let_go(qdisc, 0.0) == rows[:1]
    qdisc.settle(rows[0], 0.0)
    release(index, rows[0])
    assert let_go(qdisc, 0.0) == rows[1:], "the 400 that were held against it were never used"


def test_a_cancelled_request_spends_nothing() -> None:
    quotas = tenant_quota(Limit(1, REQUESTS, 60.0))
    index, qdisc, rows = queue(quotas, *[Job(tenant="a") for _ in range(3)])
    for row in rows[:2]:
        qdisc.cancel(row, 0.0)
        release(index, row)
    assert let_go(qdisc, 0.0) == rows[2:]


def test_the_quota_on_everybody_holds_over_tenants_and_keeps_the_policys_order() -> None:
    quotas = Quotas(everybody=(Limit(2, REQUESTS, 20.0),))
    _, qdisc, rows = queue(quotas, *[Job(tenant=tenant) for tenant in "aaaab"])
    assert len(let_go(qdisc, 0.0)) == 3
    assert rows[4] in let_go(qdisc, 0.0) or qdisc.next_event(0.0) == pytest.approx(10.0)
    assert len(let_go(qdisc, 10.1)) == 1
    assert len(let_go(qdisc, 20.2)) == 1


def test_a_share_divides_rates_and_bursts() -> None:
    quotas = tenant_quota(Limit(8, REQUESTS, 80.0))
    index = Index()
    qdisc = make_qdisc("htb", index, TREE, quotas=quotas)
    qdisc.enqueue(add(index, Job(tenant="a")), 0.0)
    qdisc.divide_quotas(0.25, 0.0)
    for _ in range(9):
        qdisc.enqueue(add(index, Job(tenant="a")), 0.0)
    # Eight ÷ 4 at once and one of overdraft, with the one that went before the division; then one in 40 seconds.
    assert len(let_go(qdisc, 0.0)) == 4
    assert let_go(qdisc, 39.9) == []
    assert len(let_go(qdisc, 40.1)) == 1


def test_demoted_requests_run_without_counting() -> None:
    quotas = tenant_quota(Limit(1, REQUESTS, 60.0), over=Over.DEMOTE)
    _, qdisc, _ = queue(quotas, *[Job(tenant="a", priority=P3) for _ in range(5)])
    assert len(let_go(qdisc, 0.0)) == 5
    assert qdisc.over_quota_s("a", P1, 0.0) == 0.0


def test_a_tenant_over_its_quota_is_known() -> None:
    quotas = tenant_quota(Limit(1, REQUESTS, 60.0))
    _, qdisc, _ = queue(quotas, Job(tenant="a"), Job(tenant="a"))
    assert qdisc.over_quota_s("a", P1, 0.0) == pytest.approx(60.0)
    assert qdisc.over_quota_s("b", P1, 0.0) == 0.0


def test_tenants_are_forgotten_when_they_owe_nothing() -> None:
    quotas = Quotas(each_tenant=Quota(limits=(Limit(5, REQUESTS, 1.0),)))
    index = Index()
    qdisc = make_qdisc("fifo", index, TREE, quotas=quotas)
    for number in range(300):
        row = add(index, Job(tenant=f"t{number}"))
        qdisc.enqueue(row, float(number))
        assert qdisc.dequeue(float(number)) == row
        qdisc.settle(row, float(number))
        release(index, row)
        qdisc.check_integrity()
    assert len(index.tenants) < 5


def test_what_comes_and_is_cancelled_while_the_quota_waits_leaves_nothing_behind() -> None:
    quotas = tenant_quota(Limit(1, REQUESTS, 86_400.0))
    index, qdisc, rows = queue(quotas, Job(tenant="a"), Job(tenant="a"))
    assert let_go(qdisc, 0.0) == rows[:2]
    for number in range(500):
        row = add(index, Job(tenant="a"))
        qdisc.enqueue(row, float(number))
        qdisc.cancel(row, float(number))
        release(index, row)
    gate = qdisc._gate
    assert gate is not None
    assert len(gate._wakes) < 100
    last = add(index, Job(tenant="a"))
    qdisc.enqueue(last, 500.0)
    assert let_go(qdisc, 86_401.0 * 2) == [last]


@pytest.mark.parametrize("wrong", [{"amount": 0.0}, {"amount": -1.0}, {"period_s": 0.0}])
def test_a_limit_of_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(QuotaError, match="must be above 0"):
        replace(Limit(1, REQUESTS, 1.0), **wrong)
