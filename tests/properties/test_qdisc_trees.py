"""What the tree promises, on random trees of up to five levels, with bounds computed from each tree.

Examples are drawn from numbered seeds and not by hypothesis, so that the worst measured ÷ bound over all of them can be
printed and looked at: a bound that nobody comes near would say nothing. `make properties` draws 100,000 trees.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import settings

from scheduling.accounting import AccountedQdisc
from scheduling.htb_build import build_tree, fill_buckets, nodes_of, set_rates
from scheduling.htb_node import ClassNode, GroupNode
from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.tenants import Tenants
from scheduling.tree import ClassConfig, Rate, TenantsConfig, TreeConfig
from tests.scheduling.queue_rig import SLICE, Job, Server

CAPACITY = 1000.0
_LARGEST = 200
"""Cost of the largest request drawn: 100 prompt and 50 output tokens."""
TREES = 300 if settings().max_examples <= 100 else 100_000


@dataclass(frozen=True)
class Case:
    tree: TreeConfig
    jobs: list[Job]
    slots: int


def random_case(seed: int, *, limited: bool) -> Case:
    """A tree over two to four priority classes, and queues of each that are there from the start, or come later."""
    random = Random(seed)
    slots = random.choice([1, 4, 16, 64])
    priorities = random.sample(list(PriorityClass), random.randint(2, 4))
    classes = tuple(_random_nodes(random, priorities, limited=limited, depth=1, saved_s=slots * _LARGEST / CAPACITY))
    tree = TreeConfig(
        classes=classes,
        capacity_units_s=CAPACITY,
        largest_item=random.choice([100, 300]),
        quantum=random.choice([8, 32, 256]),
        initial_fill=random.choice([0.0, 0.5, 1.0]),
    )
    jobs: list[Job] = []
    for priority in priorities:
        prompt, output = random.randint(1, 100), random.randint(0, 50)
        start = random.choice([0.0, 0.0, 0.5])
        jobs += [
            Job(
                priority=priority,
                tenant=f"{priority.label}-{random.randrange(3)}",
                prompt=random.randint(1, prompt),
                output=random.randint(0, output),
                arrival_s=start,
            )
            for _ in range(random.randint(5, 40))
        ]
    random.shuffle(jobs)
    return Case(tree, jobs, slots)


def _random_nodes(
    random: Random, priorities: list[PriorityClass], *, limited: bool, depth: int, saved_s: float
) -> list[ClassConfig]:
    """`saved_s`: what a burst must at least hold, in seconds of the rate: while a full server dispatches nobody
    a class saves up what is its due (design page: burst ≥ rate × duration of a request)."""
    nodes: list[ClassConfig] = []
    while priorities:
        count = random.randint(1, len(priorities))
        below, priorities = priorities[:count], priorities[count:]
        common = {
            "weight": float(random.randint(1, 8)),
            "burst_s": saved_s + random.choice([0.0, 0.2, 1.0]),
            "prio": random.choice([1, 1, 1, 0, 2]),
        }
        if limited and random.random() < 0.5:
            common["borrow_limit"] = random.choice([0.0, 0.3, 1.0])
        if count == 1 or depth == 4:
            nodes += [
                ClassConfig(name=f"{priority.label}-{depth}", priority=priority, **common)  # type: ignore[arg-type]
                for priority in below
            ]
        else:
            children = tuple(_random_nodes(random, below, limited=limited, depth=depth + 1, saved_s=saved_s))
            name = f"group-{depth}-{below[0].label}"
            nodes.append(ClassConfig(name=name, children=children, **{**common, "prio": 1}))  # type: ignore[arg-type]
    return nodes


def running_nodes(tree: TreeConfig) -> tuple[dict[PriorityClass, ClassNode], list[GroupNode]]:
    """Rates and bursts as the tree resolves them: by class, and of all nodes."""
    root = build_tree(tree, lambda tree, config, now: Tenants(Index(), TenantsConfig(), _no_leaf), 0.0)
    set_rates(root, tree, CAPACITY, 0.0)
    fill_buckets(root, tree.initial_fill, 0.0)
    leaves = {node.priority: node for node in nodes_of(root) if isinstance(node, ClassNode)}
    return leaves, list(nodes_of(root))


def _no_leaf(config: object) -> Tenants:
    raise AssertionError("nothing is queued here")


Policy = str | Callable[[Index], AccountedQdisc]


def serve(case: Case, policy: Policy = "htb") -> Server:
    return Server(case.jobs, policy, case.tree, capacity=CAPACITY, slots=case.slots).run()


def assert_shares(case: Case, policy: Policy = "htb") -> float:
    """A class backlogged from the start got ≥ rate × time − Σ over the others of (burst + largest item) − an item.

    And minus its rate over the time that the server takes for what is in flight: nobody is dispatched before a slot
    falls free. Looked at before each dispatch. Returns the worst shortfall ÷ its bound.
    """
    leaves, _ = running_nodes(case.tree)
    left = {priority: sum(job.priority is priority for job in case.jobs) for priority in leaves}
    always = {job.priority for job in case.jobs if not job.arrival_s}
    largest = max(job.cost for job in case.jobs)
    got = dict.fromkeys(leaves, 0)
    worst = 0.0
    for dispatch in serve(case, policy).dispatched:
        for priority in always:
            others = [node for other, node in leaves.items() if other is not priority]
            in_flight = leaves[priority].rate / CAPACITY * case.slots * largest
            bound = sum(node.bucket.burst + largest for node in others) + largest + in_flight
            shortfall = leaves[priority].rate * dispatch.at_s - got[priority]
            assert shortfall <= bound, f"{priority.label} is {shortfall:.0f} behind its share, more than {bound:.0f}"
            worst = max(worst, shortfall / bound)
        got[dispatch.job.priority] += dispatch.job.cost
        left[dispatch.job.priority] -= 1
        if not left[dispatch.job.priority]:
            always.discard(dispatch.job.priority)
    return worst


def assert_nobody_starves(case: Case, policy: Policy = "htb") -> float:
    """Between two dispatches of a backlogged class: ≤ (largest item + Σ others' (burst + largest item)) ÷ its rate.

    And a round of the server, in which nobody is dispatched. Returns the longest wait ÷ its bound.
    """
    leaves, _ = running_nodes(case.tree)
    left = {priority: sum(job.priority is priority for job in case.jobs) for priority in leaves}
    last = {job.priority: job.arrival_s for job in case.jobs}
    largest = max(job.cost for job in case.jobs)
    worst = 0.0
    for dispatch in serve(case, policy).dispatched:
        priority = dispatch.job.priority
        ahead = sum(node.bucket.burst + largest for other, node in leaves.items() if other is not priority)
        bound = (largest + ahead) / leaves[priority].rate + case.slots * (SLICE + largest) / CAPACITY
        waited = dispatch.at_s - last[priority]
        assert waited <= bound, f"{priority.label} waited {waited:.2f} s, more than {bound:.2f}"
        worst = max(worst, waited / bound)
        last[priority] = dispatch.at_s
        left[priority] -= 1
    return worst


def assert_borrow_limits(case: Case, policy: Policy = "htb") -> float:
    """A class with a borrow limit gets ≤ (1 + limit) × (rate × time + burst) + two items; so does a group.

    Two, for the bucket of its rate and that of its allowance may each be overdrawn by one. Returns got ÷ bound.
    """
    configs = {config.name: config for config in case.tree.walk()}
    _, nodes = running_nodes(case.tree)
    largest = max(job.cost for job in case.jobs)
    got = {node.name: 0 for node in nodes}
    worst = 0.0
    for dispatch in serve(case, policy).dispatched:
        for node in nodes:
            if not node.mask >> dispatch.job.priority & 1:
                continue
            got[node.name] += dispatch.job.cost
            limit = configs[node.name].borrow_limit if node.name else None
            if limit is None:
                continue
            # Those below may each overdraw their own rate by one item on top: guarantees go before the group's limit.
            slack = largest * (2 + len(node.children)) + sum(below.bucket.burst for below in nodes_of(node))
            bound = (1 + limit) * (node.rate * dispatch.at_s + node.bucket.burst) + slack
            assert got[node.name] <= bound, f"{node.name} got {got[node.name]}, more than {bound:.0f}"
            worst = max(worst, got[node.name] / bound)
    return worst


@pytest.mark.parametrize(
    ("promise", "limited"), [(assert_shares, False), (assert_nobody_starves, False), (assert_borrow_limits, True)]
)
def test_random_trees_keep_their_promises(promise: Callable[[Case], float], limited: bool) -> None:
    worst = 0.0
    for seed in range(TREES):
        try:
            worst = max(worst, promise(random_case(seed, limited=limited)))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    print(f"{promise.__name__}: worst measured ÷ bound over {TREES} trees: {worst:.2f}")
    assert worst > 0.3, "nobody comes near the bound: it says nothing"


@pytest.mark.parametrize("policy", ["fifo", "strict"])
@pytest.mark.parametrize(("promise", "limited"), [(assert_shares, False), (assert_nobody_starves, False)])
def test_the_promises_fail_without_a_tree(promise: Callable[[Case, Policy], float], limited: bool, policy: str) -> None:
    def breaks(seed: int) -> bool:
        case = random_case(seed, limited=limited)
        # Long queues, the most urgent class's longest.
        many = [replace(job, arrival_s=0.0) for job in case.jobs for _ in range(12 if job.priority < 2 else 6)]
        many.sort(key=lambda job: job.priority)
        try:
            promise(replace(case, jobs=many), policy)
        except AssertionError:
            return True
        return False

    assert any(breaks(seed) for seed in range(60))


def test_every_request_leaves_once_whatever_the_tree() -> None:
    for seed in range(TREES // 3):
        case = random_case(seed, limited=True)
        server = serve(case)
        assert sorted(map(repr, server.ended)) == sorted(map(repr, case.jobs)), f"seed {seed}"
        assert server.qdisc.ledger().settled == sum(job.cost for job in case.jobs)
        server.qdisc.check_integrity()


def test_a_limited_tree_is_checked_with_a_rate_too() -> None:
    """The drawn trees share by weight; this one has rates, a ceiling and a group."""
    burst_s = 8 * _LARGEST / CAPACITY
    tree = TreeConfig(
        classes=(
            ClassConfig(
                name="group",
                rate=Rate(share=0.6),
                children=(
                    ClassConfig(name="a", priority=PriorityClass.P0, rate=Rate(share=0.5), burst_s=burst_s),
                    ClassConfig(name="b", priority=PriorityClass.P1, rate=Rate(share=0.5), burst_s=burst_s),
                ),
            ),
            ClassConfig(name="c", priority=PriorityClass.P2, rate=Rate(share=0.4), burst_s=burst_s),
        ),
        capacity_units_s=CAPACITY,
        largest_item=100,
    )
    jobs = [Job(priority=priority, prompt=50, output=20) for priority in list(PriorityClass)[:3] for _ in range(80)]
    assert assert_shares(Case(tree, jobs, 8)) <= 1
    assert assert_nobody_starves(Case(tree, jobs, 8)) <= 1
