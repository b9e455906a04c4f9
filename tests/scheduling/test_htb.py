"""Classes: limits, strictness, promotion, groups, capacity, reload. Shares are in tests/properties."""

from dataclasses import replace

import pytest

from scheduling.default_tree import default_tree
from scheduling.index import Index
from scheduling.ledger import Cause
from scheduling.policies import make_qdisc
from scheduling.priority import PriorityClass
from scheduling.qdisc import Room
from scheduling.tree import ClassConfig, Rate, TreeConfig, TreeError
from tests.scheduling.queue_rig import P0, P1, P2, P3, Job, Server, add, order, release

CAPACITY = 1000.0
ITEM = 100


def tree(*classes: ClassConfig, **changes: object) -> TreeConfig:
    """Small bursts: ten milliseconds and an item."""
    return TreeConfig(
        classes=tuple(replace(child, burst_s=0.01) for child in classes),
        capacity_units_s=CAPACITY,
        largest_item=ITEM,
        **changes,  # type: ignore[arg-type]
    )


def of(priority: PriorityClass, **changes: object) -> ClassConfig:
    return ClassConfig(name=priority.label, priority=priority, **changes)  # type: ignore[arg-type]


def flood(priority: PriorityClass, count: int = 300, **changes: object) -> list[Job]:
    return [Job(priority=priority, prompt=20, output=40, **changes) for _ in range(count)]  # type: ignore[arg-type]


def share(server: Server, priority: PriorityClass, since_s: float = 0.0) -> float:
    """Of the machine's capacity."""
    units = server.units(lambda job: job.priority is priority, since_s)
    return units / server.capacity / (server.now - since_s)


# --- hard limits ------------------------------------------------------------------------------------------------------


def test_a_ceil_holds_on_an_idle_machine() -> None:
    server = Server(flood(P1), tree=tree(of(P1, rate=Rate(share=0.1), ceil=Rate(share=0.3)), of(P2))).run(30.0)
    assert share(server, P1) == pytest.approx(0.3, abs=0.02)


def test_a_ceil_holds_for_a_class_under_its_own_rate_through_its_group() -> None:
    group = ClassConfig(name="team", rate=Rate(share=0.2), ceil=Rate(share=0.2), children=(of(P1), of(P2)))
    server = Server([*flood(P1), *flood(P2)], tree=tree(group, of(P3))).run(30.0)
    assert share(server, P1) + share(server, P2) == pytest.approx(0.2, abs=0.02)


def test_a_blocked_class_says_when_it_is_free_again() -> None:
    index = Index()
    qdisc = make_qdisc("htb", index, tree(of(P1, rate=Rate(units_s=10), ceil=Rate(units_s=10)), of(P2)))
    for job in flood(P1, 3):
        qdisc.enqueue(add(index, job), 0.0)
    assert qdisc.dequeue(0.0) is not None
    assert qdisc.dequeue(0.0) is None
    at = qdisc.next_event(0.0)
    assert at is not None
    # Half a burst of 100 was there, the request cost 100: 50 are to be earned.
    assert at == pytest.approx(5.0)
    assert qdisc.peek(at - 0.01) is None
    assert qdisc.peek(at) is not None


def test_a_borrow_limit_is_a_multiple_of_the_own_rate() -> None:
    limited = of(P1, rate=Rate(share=0.2), borrow_limit=0.5)
    server = Server(flood(P1), tree=tree(limited, of(P2))).run(40.0)
    assert share(server, P1) == pytest.approx(0.3, abs=0.02)


def test_what_is_not_lendable_is_left_idle() -> None:
    classes = of(P1, rate=Rate(share=0.3)), of(P2, rate=Rate(share=0.5), lendable=0.4)
    server = Server(flood(P1), tree=tree(*classes)).run(40.0)
    # Its own 30 %, the 20 % that nobody has, and two fifths of the other's 50 %.
    assert share(server, P1) == pytest.approx(0.7, abs=0.03)


def test_a_busy_class_lends_nothing() -> None:
    classes = of(P1, rate=Rate(share=0.3)), of(P2, rate=Rate(share=0.7), lendable=0.5)
    server = Server([*flood(P1, 600), *flood(P2, 600)], tree=tree(*classes)).run(40.0)
    assert share(server, P1) == pytest.approx(0.3, abs=0.03)


def test_soft_limits_leave_nothing_idle() -> None:
    server = Server(flood(P3), tree=default_tree(CAPACITY, ITEM)).run(20.0)
    assert share(server, P3) == pytest.approx(1.0, abs=0.02)
    statistics = server.qdisc.statistics().by_class[P3]
    assert 0 < statistics.borrowed_cost < statistics.dispatched_cost


def test_what_is_borrowed_is_told_with_its_lender() -> None:
    group = ClassConfig(name="group", weight=1, children=(of(P2, rate=Rate(share=0.2)), of(P1, rate=Rate(share=0.3))))
    server = Server(flood(P2), tree=tree(group, of(P3))).run(20.0)
    told = server.qdisc.tree(20.0)
    assert told is not None
    lent = {one.lender: one.cost for one in told.borrowed if one.borrower is P2}
    assert sum(lent.values()) == server.qdisc.statistics().by_class[P2].borrowed_cost > 0
    assert lent.keys() == {"root", "group"}
    assert {(bucket.node, bucket.bucket) for bucket in told.buckets} >= {("group", "rate"), ("p2", "rate")}


def test_a_class_is_over_its_rate_until_it_has_earned_what_it_ran() -> None:
    index = Index()
    qdisc = make_qdisc("htb", index, tree(of(P1, rate=Rate(share=0.5)), of(P2, rate=Rate(share=0.5)), initial_fill=0.0))
    qdisc.enqueue(add(index, flood(P1)[0]), 0.0)
    assert not qdisc.over_rate(P1, 0.0)
    assert qdisc.dequeue(0.0) is not None
    assert qdisc.over_rate(P1, 0.1)
    assert not qdisc.over_rate(P2, 0.1)
    assert not qdisc.over_rate(P1, 0.2), "a request of 100 at 500 a second"


# --- strict and prio --------------------------------------------------------------------------------------------------


def test_a_strict_class_goes_before_all_that_wait() -> None:
    jobs = [*flood(P1, 5), *flood(P3, 5), *flood(P0, 2)]
    first = order(Server(jobs, tree=default_tree(CAPACITY, ITEM)).run())[:2]
    assert [job.priority for job in first] == [P0, P0]


def test_a_blocked_strict_class_is_passed_over() -> None:
    index = Index()
    qdisc = make_qdisc("htb", index, default_tree(CAPACITY, ITEM))
    urgent, other = (add(index, Job(priority=priority)) for priority in (P0, P3))
    qdisc.enqueue(urgent, 0.0)
    qdisc.enqueue(other, 0.0)
    assert qdisc.dequeue(0.0, Room(1 << P0)) == other
    assert qdisc.dequeue(0.0) == urgent


@pytest.mark.parametrize(("overrun", "borrowed"), [(1_050, 0), (1_150, 100)])
def test_strict_runs_on_its_own_rate_until_that_owes_a_burst(overrun: int, borrowed: int) -> None:
    """Else a class had its strict limit on top of its rate, and broke the rates of others."""
    index = Index()
    classes = of(P0, rate=Rate(share=0.5), strict_limit=Rate(share=0.1)), of(P3, rate=Rate(share=0.5))
    qdisc = make_qdisc("htb", index, tree(*classes, initial_fill=0.0))
    for job in flood(P0, 3):
        qdisc.enqueue(add(index, job), 0.0)
    first = qdisc.dequeue(0.0)
    ordinary = qdisc.dequeue(0.5)
    assert first is not None
    assert ordinary is not None
    assert [qdisc.reason(first), qdisc.reason(ordinary)] == ["strict", "own rate"]
    # Of the overrun its own rate has earned all but half of its burst of 100 by then, or all but one and a half.
    qdisc.charge(ordinary, overrun, 0.5, Cause.PREEMPTION)
    third = qdisc.dequeue(2.5)
    assert third is not None
    assert qdisc.reason(third) == "strict"
    assert qdisc.statistics().by_class[P0].borrowed_cost == borrowed


def test_a_lower_prio_borrows_first() -> None:
    classes = of(P1, rate=Rate(share=0.1), prio=0), of(P2, rate=Rate(share=0.3), prio=1)
    server = Server([*flood(P1, 600), *flood(P2, 600)], tree=tree(*classes)).run(40.0)
    assert share(server, P1) == pytest.approx(0.7, abs=0.03)
    assert share(server, P2) == pytest.approx(0.3, abs=0.03)


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_shares_within_before_it_lends() -> None:
    """What P1 leaves of its group's half goes to P2, not to P3."""
    group = ClassConfig(name="team", rate=Rate(share=0.5), children=(of(P1), of(P2)))
    server = Server([*flood(P2, 600), *flood(P3, 600)], tree=tree(group, of(P3, rate=Rate(share=0.5)))).run(40.0)
    assert share(server, P2, 5.0) == pytest.approx(0.5, abs=0.03)


def test_eight_levels_work() -> None:
    inner = ClassConfig(name="g6", children=(of(P1), of(P2)))
    for level in range(5, 0, -1):
        inner = ClassConfig(name=f"g{level}", children=(inner,))
    jobs = [*flood(P1, 300), *flood(P2, 300), *flood(P3, 300)]
    server = Server(jobs, tree=tree(inner, of(P3))).run(40.0)
    server.qdisc.check_integrity()
    # After the time in which the groups' bursts are spent.
    assert share(server, P3, 10.0) == pytest.approx(0.5, abs=0.03)
    assert share(server, P1, 10.0) == pytest.approx(share(server, P2, 10.0), abs=0.03)


# --- waiting too long -------------------------------------------------------------------------------------------------


def aged(max_wait_s: float | None) -> TreeConfig:
    """P1 has all the rate and goes first when it borrows: P3 gets what its patience gives it."""
    return tree(of(P1, rate=Rate(share=1.0), prio=0), of(P3, rate=Rate(share=0.0), prio=1, max_wait_s=max_wait_s))


def test_overdue_requests_get_their_promotion_share_and_no_more() -> None:
    server = Server([*flood(P1, 900), *flood(P3, 300)], tree=aged(2.0)).run(60.0)
    assert share(server, P3, 10.0) == pytest.approx(0.05, abs=0.015)


def test_without_a_limit_they_wait() -> None:
    server = Server([*flood(P1, 900), *flood(P3, 300)], tree=aged(None)).run(60.0)
    assert share(server, P3, 10.0) < 0.01


def test_what_is_promoted_is_part_of_the_classs_own_rate() -> None:
    """All of P3 is overdue, and P1 gets what it was promised."""
    classes = of(P1, rate=Rate(share=0.8)), of(P3, rate=Rate(share=0.2), max_wait_s=2.0, burst_s=1.0)
    config = TreeConfig(classes=classes, capacity_units_s=CAPACITY, largest_item=ITEM)
    server = Server([*flood(P1, 900), *flood(P3, 600)], tree=config).run(60.0)
    assert share(server, P3, 10.0) == pytest.approx(0.2, abs=0.015)


def test_a_promoted_request_is_the_oldest_whoever_sent_it() -> None:
    tenants = [Job(priority=P3, tenant=f"t{number}", arrival_s=0.01 * number) for number in range(8)]
    server = Server([*flood(P1, 200), *reversed(tenants)], tree=aged(2.0)).run(20.0)
    promoted = [job.tenant for job in order(server) if job.priority is P3]
    assert promoted[:4] == ["t0", "t1", "t2", "t3"]


# --- capacity and reload ----------------------------------------------------------------------------------------------


def test_shares_follow_the_measured_capacity() -> None:
    index = Index()
    qdisc = make_qdisc("htb", index, tree(of(P1, rate=Rate(share=0.5), ceil=Rate(share=0.5)), of(P2)))
    for job in flood(P1, 3):
        qdisc.enqueue(add(index, job), 0.0)
    while qdisc.dequeue(0.0) is not None:
        pass
    qdisc.set_capacity(2 * CAPACITY, 0.0)
    faster = qdisc.next_event(0.0)
    qdisc.set_capacity(CAPACITY, 0.0)
    slower = qdisc.next_event(0.0)
    assert faster is not None
    assert slower == pytest.approx(2 * faster)


def test_rates_in_units_shrink_together_on_a_machine_that_is_slower_than_they_are() -> None:
    classes = of(P1, rate=Rate(units_s=600)), of(P2, rate=Rate(units_s=300))
    jobs = [*flood(P1, 300), *flood(P2, 300)]
    server = Server(jobs, tree=tree(*classes), capacity=300.0)
    server.qdisc.set_capacity(300.0, 0.0)
    server.run(60.0)
    assert share(server, P1) == pytest.approx(2 / 3, abs=0.03)


def test_a_reload_keeps_debts_and_queues() -> None:
    index = Index()
    before = tree(of(P1, rate=Rate(units_s=10), ceil=Rate(units_s=10)), of(P2))
    qdisc = make_qdisc("htb", index, before)
    rows = [add(index, job) for job in flood(P1, 3)]
    for row in rows:
        qdisc.enqueue(row, 0.0)
    assert qdisc.dequeue(0.0) == rows[0]
    qdisc.reload(tree(of(P1, rate=Rate(units_s=20), ceil=Rate(units_s=20)), of(P2)), 0.0)
    qdisc.check_integrity()
    assert qdisc.dequeue(0.0) is None
    assert qdisc.next_event(0.0) == pytest.approx(2.5), "fifty units of debt, at the new rate"
    assert qdisc.dequeue(2.5) == rows[1]


def test_a_reload_moves_a_class_into_a_group() -> None:
    index = Index()
    qdisc = make_qdisc("htb", index, tree(of(P1), of(P2)))
    rows = [add(index, Job(priority=priority)) for priority in (P1, P2, P1, P2)]
    for row in rows:
        qdisc.enqueue(row, 0.0)
    in_flight = qdisc.dequeue(0.0)
    assert in_flight is not None
    qdisc.reload(tree(ClassConfig(name="team", children=(of(P1), of(P2)))), 1.0)
    qdisc.charge(in_flight, 500, 1.0)
    qdisc.settle(in_flight, 2.0)
    qdisc.check_integrity()
    served = {qdisc.dequeue(2.0) for _ in range(3)}
    assert served == set(rows) - {in_flight}


def test_a_class_with_queued_requests_is_not_taken_away() -> None:
    index = Index()
    qdisc = make_qdisc("htb", index, tree(of(P1), of(P2)))
    row = add(index, Job(priority=P2))
    qdisc.enqueue(row, 0.0)
    with pytest.raises(TreeError, match="no class for p2, which has 1 requests queued"):
        qdisc.reload(tree(of(P1)), 0.0)
    assert qdisc.dequeue(0.0) == row
    qdisc.reload(tree(of(P1)), 0.0)
    qdisc.charge(row, 50, 1.0)
    qdisc.settle(row, 1.0)
    qdisc.check_integrity()
    assert qdisc.ledger().settled == 60


def test_a_turn_in_debt_stays_in_debt_over_a_reload() -> None:
    slow = tree(of(P1, quantum=100), of(P2, quantum=100), quantum=100)
    index = Index()
    qdisc = make_qdisc("htb", index, replace(slow, capacity_units_s=0.001))
    for priority in (P1, P2):
        for number in range(30):
            job = Job(priority=priority, prompt=3000 if priority is P1 and number == 1 else 100, output=0)
            qdisc.enqueue(add(index, job), 0.0)
    seen: list[int] = []
    while seen.count(P1) < 4:
        row = qdisc.dequeue(0.0)
        assert row is not None
        seen.append(index.service[row])
        if len(seen) == 6:
            qdisc.reload(replace(slow, capacity_units_s=0.001), 0.0)
    assert seen.count(P2) >= 25, "the large request of P1 is paid for by thirty of P2"


# --- what it forgets --------------------------------------------------------------------------------------------------


def test_a_priority_without_a_class_is_a_bug_that_is_named() -> None:
    index = Index()
    qdisc = make_qdisc("htb", index, tree(of(P1)))
    with pytest.raises(AssertionError, match="no class of the tree serves p3"):
        qdisc.enqueue(add(index, Job(priority=P3)), 0.0)


def test_names_are_let_go_once_nothing_is_owed() -> None:
    index = Index()
    qdisc = make_qdisc("htb", index, default_tree(CAPACITY, ITEM))
    for number in range(200):
        row = add(index, Job(tenant=f"t{number}", flow=f"f{number}"))
        qdisc.enqueue(row, float(number))
        assert qdisc.dequeue(float(number)) == row
        qdisc.settle(row, float(number))
        release(index, row)
    assert len(index.tenants) < 20
    assert len(index.flows) < 20


def test_a_borrow_limit_of_nought_is_the_own_rate_and_no_more() -> None:
    limited = of(P1, rate=Rate(share=0.2), borrow_limit=0.0)
    server = Server(flood(P1), tree=tree(limited, of(P2))).run(40.0)
    assert share(server, P1) == pytest.approx(0.2, abs=0.01)


def test_a_refund_brings_the_end_of_a_debt_nearer() -> None:
    """It was predicted to be long, was short, and its class is in credit as soon as it is."""
    index = Index()
    classes = of(P1, rate=Rate(units_s=100), prio=1), of(P2, rate=Rate(units_s=0), prio=0)
    qdisc = make_qdisc("htb", index, tree(*classes))
    long, next_one = add(index, Job(priority=P1, prompt=120, output=200)), add(index, Job(priority=P1))
    for row in (long, next_one):
        qdisc.enqueue(row, 0.0)
    assert qdisc.dequeue(0.0) == long
    qdisc.settle(long, 0.0)
    qdisc.enqueue(add(index, Job(priority=P2, prompt=500)), 0.0)
    qdisc.enqueue(add(index, Job(priority=P2)), 0.0)
    qdisc.dequeue(0.0)
    assert qdisc.dequeue(1.0) == next_one, "P2 borrows first, but P1 has its rate again"
