"""Policies that order classes: `drr`, `drr-requests`, `wfq`, `hybrid`, `sjf`, `aging`, `aging-steps`, `tiered`."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.accounting import AccountedQdisc
from scheduling.default_tree import default_tree
from scheduling.index import Index
from scheduling.policies import PolicyError, make_qdisc
from scheduling.priority import PriorityClass
from scheduling.qdisc import Room
from scheduling.tiered import BORROW, tiered_tree
from scheduling.tree import LeafConfig, TenantsConfig, TreeConfig, TreeError
from tests.scheduling.queue_rig import P0, P1, P2, P3, Job, Server, add, order

TREE = default_tree(1000.0, 100)
WEIGHTS = {P0: 16, P1: 8, P2: 4, P3: 2}


def queue(policy: str, *jobs: Job, tree: TreeConfig = TREE, now: float = 0.0) -> tuple[AccountedQdisc, list[int]]:
    index = Index()
    qdisc = make_qdisc(policy, index, tree)
    rows = [add(index, job) for job in jobs]
    for row in rows:
        qdisc.enqueue(row, now)
    return qdisc, rows


def drained(qdisc: AccountedQdisc, now: float = 0.0, room: Room = Room()) -> list[int]:  # noqa: B008 (frozen)
    rows = []
    while (row := qdisc.dequeue(now, room)) is not None:
        rows.append(row)
    return rows


def backlog(count: int, cost: dict[PriorityClass, int]) -> list[Job]:
    return [Job(priority=priority, prompt=cost[priority], output=0) for priority in WEIGHTS for _ in range(count)]


# --- shares by weight -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "quantum"), [("drr", 512), ("wfq", 1)])
@given(costs=st.tuples(*[st.integers(1, 300)] * 4))
def test_backlogged_classes_share_cost_by_weight(policy: str, quantum: int, costs: tuple[int, ...]) -> None:
    cost = dict(zip(WEIGHTS, costs, strict=True))
    qdisc, rows = queue(policy, *backlog(60, cost))
    left = Counter(dict.fromkeys(WEIGHTS, 60))
    served: Counter[PriorityClass] = Counter()
    while all(left.values()):
        row = qdisc.dequeue(0.0)
        assert row is not None
        priority = PriorityClass(rows.index(row) // 60)
        left[priority] -= 1
        served[priority] += cost[priority]
        for one in WEIGHTS:
            for other in WEIGHTS:
                gap = abs(served[one] / WEIGHTS[one] - served[other] / WEIGHTS[other])
                assert gap <= quantum + cost[one] / WEIGHTS[one] + cost[other] / WEIGHTS[other] + 1


@given(
    jobs=st.lists(
        st.builds(Job, priority=st.sampled_from(PriorityClass), prompt=st.integers(1, 90), output=st.just(0)),
        min_size=1,
        max_size=40,
    )
)
def test_wfq_is_the_textbooks_start_time_fair_queueing(jobs: list[Job]) -> None:
    """All there at the start: a class's k-th request starts at the sum of its earlier costs ÷ weight."""
    qdisc, rows = queue("wfq", *jobs)
    start = {}
    spent: Counter[PriorityClass] = Counter()
    for row, job in zip(rows, jobs, strict=True):
        start[row] = spent[job.priority] // WEIGHTS[job.priority]
        spent[job.priority] += job.cost
    assert [start[row] for row in drained(qdisc)] == sorted(start.values())


def test_wfq_alternates_finely_where_drr_serves_a_quantum() -> None:
    tree = replace(TREE, classes=tuple(replace(child, weight=1.0, strict_limit=None) for child in TREE.classes))
    jobs = [Job(priority=priority, prompt=100, output=0) for priority in (P1, P2) for _ in range(12)]
    runs = {}
    for policy in ("drr", "wfq"):
        qdisc, rows = queue(policy, *jobs, tree=tree)
        classes = [rows.index(row) // 12 for row in drained(qdisc)]
        runs[policy] = sum(a != b for a, b in pairwise(classes))
    assert runs["wfq"] > 2 * runs["drr"] > 0


def test_drr_by_requests_counts_requests_and_by_cost_counts_cost() -> None:
    jobs = [Job(priority=P1, prompt=100, output=0)] * 700 + [Job(priority=P2, prompt=10, output=0)] * 1500
    share = {}
    for policy in ("drr", "drr-requests"):
        qdisc, rows = queue(policy, *jobs)
        first = {row for _ in range(900) if (row := qdisc.dequeue(0.0)) is not None}
        share[policy] = len(first & set(rows[:700])) / 900
    # 8 : 4 of the requests; of the cost, where one costs ten of the other. A turn is 41 requests of P1.
    assert share["drr-requests"] == pytest.approx(2 / 3, abs=0.01)
    assert share["drr"] == pytest.approx(1 / 6, abs=0.05)


def test_a_correction_moves_a_classs_turn() -> None:
    qdisc, rows = queue("wfq", *[Job(priority=priority, prompt=16, output=0) for priority in (P0, P0, P1, P1)])
    assert qdisc.dequeue(0.0) == rows[0]
    qdisc.charge(rows[0], 160, 0.0)
    assert drained(qdisc) == [rows[2], rows[3], rows[1]]


def test_a_reload_brings_new_weights() -> None:
    jobs = [Job(priority=priority, prompt=10, output=0) for priority in (P2, P3) for _ in range(60)]
    qdisc, rows = queue("wfq", *jobs)
    turned = {P2: 1.0, P3: 9.0}
    classes = tuple(
        replace(child, strict_limit=None, weight=turned.get(child.priority or P0, child.weight))
        for child in TREE.classes
    )
    qdisc.reload(replace(TREE, classes=classes), 0.0)
    first = drained(qdisc)[:40]
    assert sum(rows.index(row) >= 60 for row in first) == pytest.approx(36, abs=2)


def test_weights_too_fine_for_turns_are_refused() -> None:
    classes = tuple(replace(child, weight=child.weight / 100) for child in TREE.classes)
    with pytest.raises(TreeError, match="whole numbers"):
        make_qdisc("wfq", Index(), replace(TREE, classes=classes))


# --- hybrid -----------------------------------------------------------------------------------------------------------


def test_hybrid_p0_goes_first_and_p3_last() -> None:
    jobs = [Job(priority=priority) for priority in (P3, P2, P1, P0, P3, P0)]
    qdisc, rows = queue("hybrid", *jobs)
    assert [jobs[rows.index(row)].priority for row in drained(qdisc)] == [P0, P0, P2, P1, P3, P3]


def test_hybrid_p1_and_p2_share_by_weight() -> None:
    jobs = [Job(priority=priority, prompt=40, output=0) for priority in (P1, P2) for _ in range(60)]
    qdisc, rows = queue("hybrid", *jobs)
    assert sum(rows.index(row) < 60 for row in drained(qdisc)[:60]) == pytest.approx(40, abs=2)


def test_hybrid_p3_takes_part_once_it_has_waited_too_long() -> None:
    jobs = [Job(priority=priority, prompt=40, output=0) for priority in (P3, P1) for _ in range(40)]
    qdisc, rows = queue("hybrid", *jobs)
    before = [row for _ in range(10) if (row := qdisc.dequeue(29.0)) is not None]
    assert all(rows.index(row) >= 40 for row in before)
    after = [row for _ in range(20) if (row := qdisc.dequeue(31.0)) is not None]
    assert sum(rows.index(row) < 40 for row in after) == pytest.approx(4, abs=1)  # 2 of 8 + 2


def test_hybrid_p3_shares_with_p2_while_nobody_urgent_waits() -> None:
    jobs = [Job(priority=priority, prompt=40, output=0) for priority in (P2, P3) for _ in range(40)]
    qdisc, rows = queue("hybrid", *jobs)
    assert sum(rows.index(row) >= 40 for row in drained(qdisc)[:30]) == pytest.approx(10, abs=2)


# --- sjf --------------------------------------------------------------------------------------------------------------


def test_sjf_is_by_predicted_cost_across_classes() -> None:
    jobs = [Job(priority=p, prompt=cost, output=0) for p, cost in ((P0, 50), (P3, 10), (P1, 30), (P2, 10), (P0, 20))]
    qdisc, rows = queue("sjf", *jobs)
    assert qdisc.upcoming(9) == [rows[number] for number in (1, 3, 4, 2, 0)]
    assert drained(qdisc) == [rows[number] for number in (1, 3, 4, 2, 0)]


def test_sjf_passes_over_a_class_without_room() -> None:
    qdisc, rows = queue("sjf", Job(priority=P0, prompt=1), Job(priority=P1, prompt=2))
    assert qdisc.dequeue(0.0, Room(1 << P0)) == rows[1]


# --- aging ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["aging", "aging-steps"])
def test_aging_begins_as_strict(policy: str) -> None:
    jobs = [Job(priority=priority) for priority in (P3, P1, P0, P2)]
    qdisc, rows = queue(policy, *jobs)
    assert drained(qdisc) == [rows[number] for number in (2, 1, 3, 0)]


def test_aging_looks_at_the_clock_on_dequeue() -> None:
    jobs = [Job(priority=P3, arrival_s=0.0), Job(priority=P0, arrival_s=29.0), Job(priority=P0, arrival_s=31.0)]
    qdisc, rows = queue("aging", *jobs)
    assert drained(qdisc, now=32.0) == [rows[1], rows[0], rows[2]]


@pytest.mark.parametrize(
    ("waited_s", "passes"),
    [(4.9, []), (5.1, [P2]), (15.1, [P2, P1]), (30.1, [P2, P1, P0])],
)
def test_aging_by_steps_lifts_a_class_at_each(waited_s: float, passes: list[PriorityClass]) -> None:
    for other in (P0, P1, P2):
        jobs = [Job(priority=P3, arrival_s=0.0), Job(priority=other, arrival_s=waited_s)]
        qdisc, rows = queue("aging-steps", *jobs)
        assert (qdisc.dequeue(waited_s) == rows[0]) is (other in passes)


@pytest.mark.parametrize("policy", ["aging", "aging-steps"])
def test_aging_starves_nobody(policy: str) -> None:
    jobs = [Job(priority=P3, prompt=10, output=0)]
    jobs += [Job(priority=P0, prompt=110, output=0, arrival_s=0.1 * number) for number in range(600)]
    server = Server(jobs, policy, TREE).run(45.0)
    assert P3 in {job.priority for job in order(server)}
    starved = Server(jobs, "strict", TREE).run(45.0)
    assert P3 not in {job.priority for job in order(starved)}


# --- tiered -----------------------------------------------------------------------------------------------------------


def test_tiered_limits_what_a_tier_borrows() -> None:
    """Alone on the machine, interactive gets its 30 % and may borrow 30 % of that: the rest idles."""
    jobs = [Job(priority=P1, prompt=20, output=10, tenant=f"t{number % 3}") for number in range(2000)]
    server = Server(jobs, "tiered", replace(TREE, largest_item=40), slots=4).run(60.0)
    rate = server.units(lambda _: True, since_s=20.0, until_s=60.0) / 40.0
    assert rate == pytest.approx(1000.0 * 0.3 * (1 + BORROW), rel=0.05)


def test_tiered_keeps_tenants_and_slos() -> None:
    tiers = tiered_tree(TREE)
    for priority in PriorityClass:
        assert tiers.of(priority).tenants == TREE.of(priority).tenants
        assert tiers.of(priority).slo == TREE.of(priority).slo


# --- as leaves --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["drr", "strict", "tiered", "hybrid", "aging", "htb"])
def test_what_orders_classes_is_no_leaf(policy: str) -> None:
    leaf = TenantsConfig(leaf=LeafConfig(policy=policy))
    tree = replace(TREE, classes=tuple(replace(child, tenants=leaf) for child in TREE.classes))
    with pytest.raises(PolicyError, match="unknown leaf policy"):
        make_qdisc("htb", Index(), tree)


def test_an_sjf_leaf_orders_a_tenants_requests() -> None:
    leaf = TenantsConfig(leaf=LeafConfig(policy="sjf"))
    tree = replace(TREE, classes=tuple(replace(child, tenants=leaf) for child in TREE.classes))
    qdisc, rows = queue("htb", *[Job(prompt=prompt, output=0) for prompt in (30, 10, 20)], tree=tree)
    assert drained(qdisc) == [rows[1], rows[2], rows[0]]
