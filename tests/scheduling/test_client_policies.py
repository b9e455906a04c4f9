"""Policies that order clients: `vtc` and `mlfq`, over tenants and, as leaves, over flows."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from scheduling.accounting import AccountedQdisc
from scheduling.default_tree import default_tree
from scheduling.index import Index
from scheduling.policies import make_qdisc
from scheduling.qdisc import Room
from scheduling.tree import LeafConfig, TenantsConfig, TreeConfig
from tests.scheduling.queue_rig import P0, P1, Job, Server, add, order, release

TREE = default_tree(1000.0, 100)


def queue(policy: str, *jobs: Job, tree: TreeConfig = TREE) -> tuple[Index, AccountedQdisc, list[int]]:
    index = Index()
    qdisc = make_qdisc(policy, index, tree)
    rows = [add(index, job) for job in jobs]
    for row in rows:
        qdisc.enqueue(row, 0.0)
    return index, qdisc, rows


def flow_leaf(policy: str) -> TreeConfig:
    tenants = TenantsConfig(leaf=LeafConfig(policy=policy))
    return replace(TREE, classes=tuple(replace(child, tenants=tenants) for child in TREE.classes))


# --- vtc --------------------------------------------------------------------------------------------------------------


@given(
    prompts=st.tuples(st.integers(1, 80), st.integers(1, 80)),
    outputs=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    slots=st.integers(1, 16),
)
def test_vtc_backlogged_clients_differ_by_no_more_than_published(
    prompts: tuple[int, int], outputs: tuple[int, int], slots: int
) -> None:
    """Theorem 4.4: |W_f − W_g| ≤ 2 U, U = max(prompt cost of a request, cost that a full batch holds)."""
    jobs = [
        Job(tenant=tenant, prompt=prompts[number], output=outputs[number], predicted=0)
        for number, tenant in enumerate("ab")
        for _ in range(60)
    ]
    server = Server(jobs, "vtc", TREE, slots=slots).run()
    bound = 2 * max(*prompts, slots * max(job.cost for job in jobs))
    last_start = {tenant: max(d.at_s for d in server.dispatched if d.job.tenant == tenant) for tenant in "ab"}
    served: Counter[str] = Counter()
    worst = 0
    for at_s, job, units in server.work:
        if at_s > min(last_start.values()):
            break
        served[job.tenant] += units
        worst = max(worst, abs(served["a"] - served["b"]))
    assert worst <= bound + 8 * 2
    target(worst / bound)


def test_vtc_counts_what_is_generated_and_not_what_is_predicted() -> None:
    foreseen = (("a", 0), ("b", 500), ("a", 0))
    jobs = [Job(tenant=tenant, prompt=10, output=0, predicted=predicted) for tenant, predicted in foreseen]
    _, qdisc, rows = queue("vtc", *jobs, Job(tenant="b", prompt=10, output=0))
    first, second = qdisc.dequeue(0.0), qdisc.dequeue(0.0)
    assert [first, second] == [rows[0], rows[1]]
    for _ in range(20):
        qdisc.charge(rows[0], 2, 0.0)
    assert qdisc.dequeue(0.0) == rows[3], "a has been served 50, b 10 whatever was predicted for it"


def test_vtc_lifts_a_client_that_comes_back_to_the_least_of_those_that_wait() -> None:
    index, qdisc, _ = queue("vtc", *[Job(tenant="a", prompt=100, output=0) for _ in range(12)])
    for _ in range(8):
        qdisc.dequeue(0.0)
    late = [add(index, Job(tenant="b", prompt=100, output=0)) for _ in range(4)]
    for row in late:
        qdisc.enqueue(row, 0.0)
    went = [qdisc.dequeue(0.0) for _ in range(8)]
    assert went[:4] != late, "it has no credit for having been away"
    assert [row in late for row in went] == [False, True] * 4


def test_vtc_shares_by_weight() -> None:
    tenants = TenantsConfig(weights={"a": 3.0})
    tree = replace(TREE, classes=tuple(replace(child, tenants=tenants) for child in TREE.classes))
    jobs = [Job(tenant=tenant, prompt=10, output=0) for tenant in "ab" for _ in range(80)]
    _, qdisc, rows = queue("vtc", *jobs, tree=tree)
    first = [row for _ in range(80) if (row := qdisc.dequeue(0.0)) is not None]
    assert sum(rows.index(row) < 80 for row in first) == pytest.approx(60, abs=2)


def test_vtc_passes_over_a_client_whose_oldest_has_no_room() -> None:
    _, qdisc, rows = queue("vtc", Job(priority=P0, tenant="a"), Job(priority=P1, tenant="a"), Job(tenant="b"))
    assert qdisc.dequeue(0.0, Room(1 << P0)) == rows[2]
    assert qdisc.dequeue(0.0, Room(1 << P0)) is None


# --- mlfq -------------------------------------------------------------------------------------------------------------


def test_mlfq_a_light_client_goes_before_one_that_used_much() -> None:
    index, qdisc, _ = queue("mlfq", *[Job(tenant="heavy", prompt=1000, output=0) for _ in range(9)])
    for _ in range(3):
        qdisc.dequeue(0.0)
    late = add(index, Job(tenant="light", prompt=1000, output=0))
    qdisc.enqueue(late, 0.0)
    assert qdisc.dequeue(0.0) == late


def test_mlfq_clients_of_a_level_take_turns() -> None:
    _, qdisc, rows = queue("mlfq", *[Job(tenant=tenant, prompt=1, output=0) for tenant in "aaabbb"])
    went = [row for _ in range(6) if (row := qdisc.dequeue(0.0)) is not None]
    assert [rows.index(row) // 3 for row in went] == [0, 1] * 3


def test_mlfq_a_boost_lets_all_start_afresh() -> None:
    jobs = [Job(tenant="heavy", prompt=1000, output=0) for _ in range(9)]
    index, qdisc, rows = queue("mlfq", *jobs)
    for _ in range(4):
        qdisc.dequeue(0.0)
    for tenant in ("light", "light"):
        qdisc.enqueue(add(index, Job(tenant=tenant, prompt=10, output=0)), 0.0)
    assert qdisc.peek(29.0) not in rows
    assert [qdisc.dequeue(30.0) in rows for _ in range(2)] == [False, True], "both are in the first level again"


def test_mlfq_starves_nobody_for_longer_than_a_boost() -> None:
    jobs = [Job(tenant="heavy", prompt=900, output=0) for _ in range(30)]
    jobs += [Job(tenant=f"light-{number}", prompt=120, output=0, arrival_s=0.1 * number) for number in range(900)]
    server = Server(jobs, "mlfq", TREE).run(90.0)
    heavy = [dispatch.at_s for dispatch in server.dispatched if dispatch.job.tenant == "heavy"]
    gaps = [later - earlier for earlier, later in pairwise(heavy)]
    assert 10 < max(gaps) < 45, "a boost, and the work of those who are lighter"


# --- as leaves --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["wfq", "vtc", "mlfq", "sfq"])
def test_flows_of_a_tenant_share_under_every_fair_leaf(policy: str) -> None:
    jobs = [Job(flow="a", prompt=10, output=20) for _ in range(100)] + [Job(flow="b", prompt=10, output=20)] * 20
    server = Server(jobs, tree=flow_leaf(policy), slots=2).run()
    last_of_b = max(number for number, job in enumerate(order(server)) if job.flow == "b")
    assert last_of_b < 60
    fifo = Server(jobs, tree=flow_leaf("fifo"), slots=2).run()
    assert [job.flow for job in order(fifo)][:100] == ["a"] * 100


@pytest.mark.parametrize("policy", ["vtc", "mlfq"])
def test_clients_are_forgotten(policy: str) -> None:
    index = Index()
    qdisc = make_qdisc(policy, index, TREE)
    for number in range(500):
        row = add(index, Job(tenant=f"t{number}", prompt=10, output=0))
        qdisc.enqueue(row, 40.0 * number)
        assert qdisc.dequeue(40.0 * number) == row
        qdisc.settle(row, 40.0 * number)
        release(index, row)
    assert len(index.tenants) < 10
