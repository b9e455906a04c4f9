"""Fairness of flows, tenants and classes before a constant-rate server, with output charged late.

Each property is a function that measures and asserts. It holds for `htb` on random loads, and it must fail for `fifo`,
for a deficit round robin that tops up at every call, and with nothing held outstanding: else it would say nothing.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from scheduling.accounting import AccountedQdisc
from scheduling.default_tree import default_tree
from scheduling.htb import Htb
from scheduling.index import Index
from scheduling.policies import make_qdisc
from scheduling.rotation import Owner, Rotation, Turn
from scheduling.sfq import FlowRows, Sfq
from scheduling.tenants import Tenants
from scheduling.tree import ClassConfig, FlowOrder, LeafConfig, Rate, TenantsConfig, TreeConfig
from tests.scheduling.queue_rig import P0, P1, P2, P3, SLICE, Job, Server, one_class

QUANTUM = 64
CAPACITY = 1000.0


# --- two flows --------------------------------------------------------------------------------------------------------


def assert_flows_are_fair(server: Server, quantum: int = QUANTUM) -> float:
    """Flows `a` and `b`, backlogged from the start, differ by ≤ quantum + largest item + errors in flight.

    Looked at after each dispatch for as long as both have something queued. Returns the worst gap ÷ its bound.
    """
    left = {flow: sum(1 for job in server.coming if job.flow == flow) for flow in "ab"}
    largest = max(max(job.cost, job.predicted_cost) for job in server.coming)
    server.run()
    spent = {"a": 0, "b": 0}
    worst = 0.0
    for number, dispatch in enumerate(server.dispatched):
        if dispatch.job.flow not in spent:
            continue
        spent[dispatch.job.flow] += dispatch.job.cost
        left[dispatch.job.flow] -= 1
        if not all(left.values()):
            break
        in_flight = server.dispatched[max(0, number + 1 - server.slots) : number + 1]
        # A prediction that was exceeded is raised by slices, so what is counted may be one slice ahead of the truth.
        error = sum(abs(other.job.cost - other.job.predicted_cost) for other in in_flight)
        slices = 32 if error else 0
        bound = quantum + largest + error + slices * len(in_flight)
        gap = abs(spent["a"] - spent["b"])
        assert gap <= bound, f"after {number + 1} dispatches the flows differ by {gap}, more than {bound}"
        worst = max(worst, gap / bound)
    return worst


def queue_of(flow: str) -> st.SearchStrategy[list[Job]]:
    return st.lists(
        st.builds(Job, flow=st.just(flow), prompt=st.integers(1, 100), output=st.integers(0, 100)),
        min_size=1,
        max_size=30,
    )


@given(a=queue_of("a"), b=queue_of("b"), c=queue_of("c"), slots=st.integers(1, 64))
def test_flows_are_fair_when_output_is_as_predicted(a: list[Job], b: list[Job], c: list[Job], slots: int) -> None:
    target(assert_flows_are_fair(Server([*a, *b, *c], tree=one_class(quantum=QUANTUM), slots=slots)))


@given(
    a=queue_of("a"), b=queue_of("b"), slots=st.integers(1, 64), predictions=st.lists(st.integers(0, 100), min_size=60)
)
def test_flows_are_fair_up_to_the_errors_in_flight(
    a: list[Job], b: list[Job], slots: int, predictions: list[int]
) -> None:
    jobs = [replace(job, predicted=predicted) for job, predicted in zip([*a, *b], predictions, strict=False)]
    assert_flows_are_fair(Server(jobs, tree=one_class(quantum=QUANTUM), slots=slots))


def heavy_and_light(count: int = 60) -> list[Job]:
    """A flow of long answers and one of short ones, each with enough requests."""
    heavy = [Job(flow="a", prompt=5, output=95) for _ in range(count)]
    light = [Job(flow="b", prompt=5, output=2) for _ in range(count * 12)]
    return [*heavy, *light]


class TopUp(Rotation[Owner]):
    """The well-known error: a quantum at every call. Whoever is in front stays there."""

    def serve(self, turn: Turn[Owner], cost: int) -> None:
        turn.deficit += cost
        super().serve(turn, cost)

    def serve_last(self, turn: Turn[Owner], cost: int) -> None:
        turn.deficit += cost
        super().serve_last(turn, cost)


def topping_up(tree: TreeConfig) -> Callable[[Index], AccountedQdisc]:
    """`htb` in which flows, tenants and classes take turns by `TopUp`."""

    def make(index: Index) -> AccountedQdisc:
        rows = FlowRows(index, FlowOrder.FIFO)

        def make_queue(config: LeafConfig) -> Sfq:
            leaf = Sfq(index, config, rows)
            leaf._rotation = TopUp()
            return leaf

        def make_leaf(tree: TreeConfig, config: ClassConfig, now: float) -> Tenants:
            tenants = Tenants(index, config.tenants, make_queue)
            tenants._rotation = TopUp()
            return tenants

        htb = Htb(index, tree, make_leaf)
        htb._links.rows[:] = [TopUp() for _ in htb._links.rows]
        htb._root.feeds.update({prio: TopUp() for prio in htb._root.feeds})
        return AccountedQdisc(index, htb)

    return make


def test_the_flows_property_fails_for_fifo() -> None:
    with pytest.raises(AssertionError, match="differ by"):
        assert_flows_are_fair(Server(heavy_and_light(), "fifo"))


def test_the_flows_property_fails_for_a_round_robin_that_tops_up() -> None:
    tree = one_class(quantum=QUANTUM)
    with pytest.raises(AssertionError, match="differ by"):
        assert_flows_are_fair(Server(heavy_and_light(), topping_up(tree), tree))


class Nought:
    """A column that is nought whatever is written to it."""

    def __getitem__(self, row: int) -> int:
        return 0

    def __setitem__(self, row: int, cost: int) -> None:
        pass


def without_outstanding(index: Index) -> AccountedQdisc:
    """`htb` that counts a prompt at dispatch, and output only as it comes: all outputs are predicted to be nothing."""
    index.output_cost = Nought()  # type: ignore[assignment]
    return make_qdisc("htb", index, one_class(quantum=QUANTUM))


def test_the_flows_property_fails_without_outstanding() -> None:
    assert_flows_are_fair(Server(heavy_and_light(), tree=one_class(quantum=QUANTUM), slots=64))
    with pytest.raises(AssertionError, match="differ by"):
        assert_flows_are_fair(Server(heavy_and_light(), without_outstanding, slots=64))


def test_the_flows_bound_is_not_idle() -> None:
    assert assert_flows_are_fair(Server(heavy_and_light(), tree=one_class(quantum=QUANTUM), slots=8)) > 0.3


# --- classes ----------------------------------------------------------------------------------------------------------

WEIGHTS = {P0: 16, P1: 8, P2: 4, P3: 2}
BURST = 200


def four_classes(capacity: float = CAPACITY, burst: int = BURST) -> TreeConfig:
    """The default weights without a strict limit. A small burst is for bounds, a large one for long-term shares."""
    tree = default_tree(capacity_units_s=capacity, largest_item=burst)
    classes = tuple(
        replace(child, strict_limit=None, burst_s=0.0, tenants=TenantsConfig(quantum=QUANTUM)) for child in tree.classes
    )
    return replace(tree, classes=classes, quantum=32)


def assert_backlogged_classes_get_their_share(server: Server) -> float:
    """Each class of one tenant that always had something queued got ≥ rate × time − Σ others' (burst + largest item).

    Looked at after each dispatch. Returns the worst shortfall ÷ its bound.
    """
    left = {priority: sum(1 for job in server.coming if job.priority is priority) for priority in WEIGHTS}
    always = {
        priority for priority in WEIGHTS if any(job.priority is priority and not job.arrival_s for job in server.coming)
    }
    largest = max(job.cost for job in server.coming)
    server.run()
    total = sum(WEIGHTS.values())
    got = dict.fromkeys(WEIGHTS, 0)
    worst = 0.0
    for dispatch in server.dispatched:
        for priority in always:
            rate = CAPACITY * WEIGHTS[priority] / total
            bound = 3 * (BURST + largest)
            shortfall = rate * dispatch.at_s - got[priority]
            assert shortfall <= bound, f"{priority.label} is {shortfall:.0f} behind its share, more than {bound}"
            worst = max(worst, shortfall / bound)
        got[dispatch.job.priority] += dispatch.job.cost
        left[dispatch.job.priority] -= 1
        if not left[dispatch.job.priority]:
            always.discard(dispatch.job.priority)
    return worst


def load_of(priority: object) -> st.SearchStrategy[list[Job]]:
    return st.builds(
        lambda jobs, start: [replace(job, arrival_s=start) for job in jobs],
        st.lists(
            st.builds(Job, priority=st.just(priority), prompt=st.integers(1, 100), output=st.integers(0, 50)),
            max_size=40,
        ),
        st.sampled_from([0.0, 0.0, 0.5, 2.0]),
    )


@given(loads=st.tuples(*(load_of(priority) for priority in WEIGHTS)), slots=st.integers(1, 64))
def test_backlogged_classes_get_their_share(loads: tuple[list[Job], ...], slots: int) -> None:
    jobs = [job for load in loads for job in load]
    if jobs:
        target(assert_backlogged_classes_get_their_share(Server(jobs, tree=four_classes(), slots=slots)))


def units_of(server: Server, **fields: object) -> int:
    """Units worked off for the jobs of which this holds."""
    return server.units(lambda job: all(getattr(job, name) == value for name, value in fields.items()))


def four_floods(count: int = 150) -> list[Job]:
    """The least urgent class first, so that arrival order is the worst."""
    return [
        Job(priority=priority, prompt=20, output=40, tenant=priority.label)
        for priority in (P3, P2, P1, P0)
        for _ in range(count)
    ]


def test_the_shares_property_fails_for_fifo_and_strict() -> None:
    for policy in ("fifo", "strict"):
        with pytest.raises(AssertionError, match="behind its share"):
            assert_backlogged_classes_get_their_share(Server(four_floods(), policy, four_classes()))


def assert_classes_take_turns(server: Server) -> None:
    """On a machine far faster than the tree thinks, rates mean nothing; what is left is turns, by weight."""
    left = {priority: sum(1 for job in server.coming if job.priority is priority) for priority in WEIGHTS}
    largest = max(job.cost for job in server.coming)
    server.run()
    got = dict.fromkeys(WEIGHTS, 0)
    for dispatch in server.dispatched:
        got[dispatch.job.priority] += dispatch.job.cost
        left[dispatch.job.priority] -= 1
        if not all(left.values()):
            break
        rounds = {priority: cost / (32 * WEIGHTS[priority]) for priority, cost in got.items()}
        # Before turns count, each class may run on its burst and an item; after that, a turn and an item.
        bound = 1 + (BURST + 2 * largest) / (32 * min(WEIGHTS.values()))
        gap = max(rounds.values()) - min(rounds.values())
        assert gap <= bound, f"{gap:.1f} rounds between the classes, more than {bound:.1f}"


def test_classes_take_turns() -> None:
    for slots in (1, 8, 64):
        assert_classes_take_turns(Server(four_floods(), tree=four_classes(capacity=1.0), slots=slots))


def test_the_turns_property_fails_for_fifo_and_for_a_round_robin_that_tops_up() -> None:
    tree = four_classes(capacity=1.0)
    for policy in ("fifo", topping_up(tree)):
        with pytest.raises(AssertionError, match="rounds between"):
            assert_classes_take_turns(Server(four_floods(), policy, tree, slots=8))


def test_the_shares_bound_is_not_idle() -> None:
    light = [replace(job, prompt=150, output=0) for job in four_floods() if job.priority is P3]
    heavy = [replace(job, prompt=150, output=25) for job in four_floods() if job.priority is not P3]
    assert assert_backlogged_classes_get_their_share(Server([*light, *heavy], tree=four_classes(), slots=1)) > 0.3


@pytest.mark.parametrize(("one", "other"), [(P0, P1), (P1, P2), (P2, P3), (P1, P3)])
def test_what_idle_classes_leave_is_shared_by_weight(one: object, other: object) -> None:
    jobs = [job for job in four_floods(400) if job.priority in (one, other)]
    server = Server(jobs, tree=four_classes(burst=2000), slots=8).run(until_s=30.0)
    # After the first seconds, in which bursts are spent.
    ratio = server.units(lambda job: job.priority is one, 10.0) / server.units(lambda job: job.priority is other, 10.0)
    wanted = WEIGHTS[one] / WEIGHTS[other]  # type: ignore[index]
    assert ratio == pytest.approx(wanted, rel=0.1)


def test_a_class_does_not_gain_by_many_tenants() -> None:
    many = [replace(job, tenant=f"t{number % 50}") for number, job in enumerate(four_floods(800)) if job.priority is P2]
    one = [job for job in four_floods(800) if job.priority is P1]
    server = Server([*many, *one], tree=four_classes(burst=2000), slots=8).run(until_s=40.0)
    ratio = server.units(lambda job: job.priority is P1, 10.0) / server.units(lambda job: job.priority is P2, 10.0)
    assert ratio == pytest.approx(2.0, rel=0.1)


# --- tenants ----------------------------------------------------------------------------------------------------------


def assert_tenants_are_fair(server: Server, weights: dict[str, float]) -> float:
    """Tenants that are backlogged from the start differ, by weight, by ≤ a quantum and the largest item.

    Looked at after each dispatch for as long as all have something queued. Returns the worst gap ÷ its bound.
    """
    left = {tenant: sum(1 for job in server.coming if job.tenant == tenant) for tenant in weights}
    largest = max(job.cost for job in server.coming)
    server.run()
    got = dict.fromkeys(weights, 0)
    worst = 0.0
    for number, dispatch in enumerate(server.dispatched):
        got[dispatch.job.tenant] += dispatch.job.cost
        left[dispatch.job.tenant] -= 1
        if not all(left.values()):
            break
        for one, one_weight in weights.items():
            for other, other_weight in weights.items():
                gap = got[one] / one_weight - got[other] / other_weight
                bound = QUANTUM + largest / min(one_weight, other_weight)
                assert gap <= bound, f"after {number + 1}: {one} is {gap:.0f} ahead of {other}, more than {bound:.0f}"
                worst = max(worst, gap / bound)
    return worst


def tenant_tree(weights: dict[str, float]) -> TreeConfig:
    tenants = TenantsConfig(quantum=QUANTUM, weights=weights)
    return TreeConfig(
        classes=(ClassConfig(name="only", priority=P1, tenants=tenants),), largest_item=BURST, capacity_units_s=CAPACITY
    )


@given(
    weights=st.tuples(*[st.sampled_from([1.0, 2.0, 5.0])] * 3),
    outputs=st.tuples(*[st.integers(0, 100)] * 3),
    slots=st.integers(1, 64),
)
def test_tenants_are_fair_by_weight(weights: tuple[float, ...], outputs: tuple[int, ...], slots: int) -> None:
    named = dict(zip("abc", weights, strict=True))
    jobs = [
        Job(tenant=tenant, prompt=10, output=output)
        for tenant, output in zip("abc", outputs, strict=True)
        for _ in range(40)
    ]
    target(assert_tenants_are_fair(Server(jobs, tree=tenant_tree(named), slots=slots), named))


def test_the_tenants_property_fails_for_fifo_and_for_a_round_robin_that_tops_up() -> None:
    jobs = [Job(tenant=tenant, prompt=10, output=50) for tenant in "ab" for _ in range(80)]
    tree = tenant_tree({})
    for policy in ("fifo", topping_up(tree)):
        with pytest.raises(AssertionError, match="ahead of"):
            assert_tenants_are_fair(Server(jobs, policy, tree), {"a": 1.0, "b": 1.0})


def test_the_tenants_bound_is_not_idle() -> None:
    jobs = [Job(tenant=tenant, prompt=10, output=70) for tenant in "ab" for _ in range(80)]
    assert assert_tenants_are_fair(Server(jobs, tree=tenant_tree({})), {"a": 1.0, "b": 1.0}) > 0.3


def test_a_tenant_that_leaves_and_returns_brings_its_debt_along() -> None:
    """One huge request at a time, always a new one when the last is done, beside a steady stream of small ones."""
    small = [Job(tenant="b", prompt=10, output=0, arrival_s=0.001) for _ in range(3000)]
    huge = [Job(tenant="a", prompt=1000, output=0, arrival_s=float(number)) for number in range(30)]
    server = Server([*small, *huge], tree=tenant_tree({}), slots=1).run(until_s=30.0)
    got = {tenant: units_of(server, tenant=tenant) for tenant in "ab"}
    assert got["a"] / got["b"] == pytest.approx(1.0, rel=0.1)


def test_a_tenant_inside_its_share_waits_no_longer_than_alone_on_a_machine_of_its_share() -> None:
    light = [Job(tenant="b", prompt=10, output=20, arrival_s=0.5 * number) for number in range(40)]
    flood = [Job(tenant="a", prompt=10, output=20) for _ in range(800)]
    busy = Server([*light, *flood], tree=tenant_tree({}), slots=1).run(until_s=20.0)
    alone = Server(light, tree=tenant_tree({}), slots=1, capacity=CAPACITY / 2).run()
    ends = [{job.arrival_s: at for at, job, _ in server.work if job.tenant == "b"} for server in (busy, alone)]
    waits = [[at - arrival for arrival, at in end.items()] for end in ends]
    assert sum(waits[0]) / len(waits[0]) <= 1.1 * sum(waits[1]) / len(waits[1]) + 50 / CAPACITY


# --- strict -----------------------------------------------------------------------------------------------------------


@given(
    urgent=st.lists(
        st.builds(
            Job,
            priority=st.just(P0),
            tenant=st.sampled_from("ab"),
            prompt=st.integers(1, 100),
            output=st.integers(0, 50),
            arrival_s=st.floats(0, 6),
        ),
        max_size=40,
    ),
    slots=st.integers(1, 16),
)
def test_strict_waits_for_nothing_while_under_its_limit(urgent: list[Job], slots: int) -> None:
    tree = default_tree(capacity_units_s=CAPACITY, largest_item=BURST)
    others = [Job(priority=priority, prompt=20, output=40) for priority in (P1, P2, P3) for _ in range(60)]
    server = Server([*urgent, *others], tree=tree, slots=slots, capacity=CAPACITY)
    level, level_at = tree.initial_fill * CAPACITY * 0.5 * 2.0, 0.0
    queued: list[Job] = []
    coming = sorted(urgent, key=lambda job: job.arrival_s)
    server.run()
    for dispatch in server.dispatched:
        while coming and coming[0].arrival_s <= dispatch.at_s:
            queued.append(coming.pop(0))
        level = min(CAPACITY * 0.5 * 2.0, level + CAPACITY * 0.5 * (dispatch.at_s - level_at))
        level_at = dispatch.at_s
        if queued and level > 1e-6:
            assert dispatch.job.priority is P0, f"{dispatch.job} before P0, which has {level:.0f} units left"
        if dispatch.job.priority is P0:
            strict = level > -1e-6
            queued.remove(dispatch.job)
            if strict:
                level -= dispatch.job.cost


def test_strict_takes_no_more_than_its_limit_and_its_share() -> None:
    tree = default_tree(capacity_units_s=CAPACITY, largest_item=BURST)
    server = Server(four_floods(1000), tree=tree, slots=8, capacity=CAPACITY).run(until_s=60.0)
    seconds = server.now
    for priority, share in ((P0, 16 / 30), (P1, 8 / 30), (P2, 4 / 30), (P3, 2 / 30)):
        got = units_of(server, priority=priority) / CAPACITY / seconds
        assert got == pytest.approx(share, abs=0.04), priority


# --- hard limits ------------------------------------------------------------------------------------------------------


@given(
    jobs=st.lists(
        st.builds(
            Job,
            priority=st.sampled_from([P1, P2]),
            prompt=st.integers(1, 100),
            output=st.integers(0, 100),
            predicted=st.integers(0, 100),
        ),
        min_size=1,
        max_size=60,
    ),
    slots=st.integers(1, 64),
    share=st.sampled_from([0.05, 0.2, 0.5]),
    by=st.sampled_from(["ceil", "borrow_limit"]),
)
def test_a_hard_limit_is_exceeded_by_a_burst_an_item_and_the_errors_only(
    jobs: list[Job], slots: int, share: float, by: str
) -> None:
    limited = ClassConfig(name="limited", priority=P1, rate=Rate(share=share), burst_s=0.0)
    limited = replace(limited, **({"ceil": Rate(share=share)} if by == "ceil" else {"borrow_limit": 0.0}))
    tree = TreeConfig(
        classes=(limited, ClassConfig(name="other", priority=P2)), largest_item=BURST, capacity_units_s=CAPACITY
    )
    server = Server(jobs, tree=tree, slots=slots, capacity=CAPACITY).run()
    assert len(server.ended) == len(jobs), "a limit delays, it loses nothing"
    got = errors = 0
    largest = max(max(job.cost, job.predicted_cost) for job in jobs)
    for dispatch in server.dispatched:
        if dispatch.job.priority is P1:
            got += dispatch.job.cost
            errors += max(0, dispatch.job.cost - dispatch.job.predicted_cost)
            assert got <= CAPACITY * share * dispatch.at_s + BURST + largest + errors


# --- the machine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["htb", "fifo", "strict"])
@given(
    jobs=st.lists(
        st.builds(
            Job,
            priority=st.sampled_from([P0, P1, P2, P3]),
            tenant=st.sampled_from("abc"),
            prompt=st.integers(1, 100),
            output=st.integers(0, 50),
            predicted=st.integers(0, 50),
            arrival_s=st.sampled_from([0.0, 0.1, 5.0]),
        ),
        min_size=1,
        max_size=40,
    ),
    slots=st.integers(1, 64),
)
def test_the_machine_is_never_idle_while_there_is_work(policy: str, jobs: list[Job], slots: int) -> None:
    tree = default_tree(capacity_units_s=CAPACITY, largest_item=BURST)
    server = Server(jobs, policy, tree, slots=slots).run()
    assert len(server.ended) == len(jobs)
    busy_until = 0.0
    for job in sorted(jobs, key=lambda job: job.arrival_s):
        busy_until = max(busy_until, job.arrival_s) + job.cost / CAPACITY
    # A round that has begun is finished before a newcomer joins.
    assert server.now == pytest.approx(busy_until, abs=1e-6 + slots * SLICE / CAPACITY)
