"""The fast HTB decides as the literal one does."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduling.accounting import AccountedQdisc
from scheduling.fifo import Fifo
from scheduling.htb import Htb
from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.qdisc import Room
from scheduling.tree import ClassConfig, Rate, TreeConfig, TreeError
from tests.properties.literal_htb import LiteralHtb
from tests.scheduling.queue_rig import Job, add

P0, P1, P2, P3 = PriorityClass
SHARES = (0.0, 0.0731, 0.1117, 0.2033, 0.3119)
# Of no common measure, so that no two classes change at the very same moment, where either order would be right.
ODD = (1.0, 1.0137, 0.9871, 1.0291)


@st.composite
def classes(draw: st.DrawFn, priority: PriorityClass, limits: bool) -> ClassConfig:
    rate = draw(st.sampled_from(SHARES))
    changes: dict[str, Any] = {}
    if draw(st.booleans()):
        changes["rate"] = Rate(share=rate * ODD[priority])
    if draw(st.integers(0, 3)) == 0:
        changes["strict_limit"] = Rate(share=draw(st.sampled_from((0.0517, 0.1213))))
    if limits:
        if draw(st.integers(0, 2)) == 0:
            changes["ceil"] = Rate(share=draw(st.sampled_from((0.3337, 0.5171, 1.0))))
        if draw(st.integers(0, 2)) == 0:
            changes["borrow_limit"] = draw(st.sampled_from((0.0, 0.517, 2.03)))
        if draw(st.integers(0, 2)) == 0:
            changes["lendable"] = draw(st.sampled_from((0.0, 0.433)))
    return ClassConfig(
        name=priority.label,
        priority=priority,
        weight=draw(st.sampled_from((1.0, 2.3, 7.1))) * ODD[priority],
        burst_s=draw(st.sampled_from((0.0, 0.713))),
        strict_burst_s=draw(st.sampled_from((0.0, 0.517))),
        prio=draw(st.sampled_from((1, 1, 1, 0, 5))),
        **changes,
    )


@st.composite
def trees(draw: st.DrawFn) -> TreeConfig:
    limits = draw(st.booleans())
    leaves = [draw(classes(priority, limits)) for priority in PriorityClass]
    shape = draw(st.sampled_from(["flat", "pairs", "deep"]))
    if shape == "flat":
        top = tuple(leaves)
    elif shape == "pairs":
        share = Rate(share=draw(st.sampled_from((0.417, 0.583))))
        top = (ClassConfig(name="g", rate=share, burst_s=0.31, children=tuple(leaves[:2])), *leaves[2:])
    else:
        inner = ClassConfig(name="inner", weight=1.7, burst_s=0.17, children=(leaves[0], leaves[2]))
        top = (ClassConfig(name="outer", weight=2.9, burst_s=0.13, children=(inner, leaves[1])), leaves[3])
    try:
        return TreeConfig(
            classes=top,
            capacity_units_s=draw(st.sampled_from((1.37, 103.7, 1013.9))),
            largest_item=draw(st.sampled_from((7, 61))),
            quantum=draw(st.sampled_from((5, 37))),
        )
    except TreeError:
        # Over-committed: that is tested elsewhere.
        return TreeConfig(classes=tuple(ClassConfig(name=p.label, priority=p) for p in PriorityClass), quantum=17)


jobs = st.builds(Job, priority=st.sampled_from(PriorityClass), prompt=st.integers(1, 97), output=st.integers(0, 40))
events = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), jobs),
        st.tuples(st.just("dequeue"), st.sampled_from((0, 0, 0, 0, 1, 2, 6, 9))),
        st.tuples(st.just("charge"), st.integers(0, 63), st.integers(1, 130)),
        st.tuples(st.just("settle"), st.integers(0, 63)),
        st.tuples(st.just("requeue"), st.integers(0, 63)),
        st.tuples(st.just("cancel"), st.integers(0, 63)),
        st.tuples(st.just("capacity"), st.sampled_from((0.713, 57.1, 2003.3))),
        st.tuples(st.just("wait"), st.floats(0.0, 3.0)),
    ),
    max_size=60,
)


def both(tree: TreeConfig) -> tuple[Index, AccountedQdisc, LiteralHtb, AccountedQdisc]:
    index = Index()
    fast = AccountedQdisc(index, Htb(index, tree, lambda tree, config, now: Fifo(index), 0.0))
    literal = LiteralHtb(index, tree, 0.0)
    return index, fast, literal, AccountedQdisc(index, literal)  # type: ignore[arg-type]


class Pair:
    """Both trees under the same events."""

    def __init__(self, tree: TreeConfig) -> None:
        self.index, self.fast, self.literal, self.slow = both(tree)
        self.now = 0.0
        self.queued: list[int] = []
        self.flying: list[int] = []
        self.ran: set[int] = set()

    def happen(self, what: str, *details: Any) -> None:
        # No two events at the same moment, and none at the moment of a change.
        self.now += 0.000137
        getattr(self, what)(*details)
        self.fast.check_integrity()

    def enqueue(self, job: Job) -> None:
        row = add(self.index, job)
        self.queued.append(row)
        self.fast.enqueue(row, self.now)
        self.slow.enqueue(row, self.now)

    def dequeue(self, blocked: int) -> None:
        row = self.fast.dequeue(self.now, Room(blocked))
        assert row == self.slow.dequeue(self.now, Room(blocked))
        if row is not None:
            self.queued.remove(row)
            self.flying.append(row)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def capacity(self, units_s: float) -> None:
        self.fast.set_capacity(units_s, self.now)
        self.literal.set_capacity(units_s, self.now)

    def cancel(self, number: int) -> None:
        if self.queued:
            row = self.queued.pop(number % len(self.queued))
            self.fast.cancel(row, self.now)
            self.slow.cancel(row, self.now)

    def charge(self, number: int, cost: int) -> None:
        if self.flying:
            row = self.flying[number % len(self.flying)]
            self.ran.add(row)
            self.fast.charge(row, cost, self.now)
            self.slow.charge(row, cost, self.now)

    def settle(self, number: int) -> None:
        if self.flying:
            row = self.flying.pop(number % len(self.flying))
            self.fast.settle(row, self.now)
            self.slow.settle(row, self.now)

    def requeue(self, number: int) -> None:
        fresh = [row for row in self.flying if row not in self.ran]
        if fresh:
            row = fresh[number % len(fresh)]
            self.flying.remove(row)
            self.queued.append(row)
            self.fast.requeue(row, self.now)
            self.slow.requeue(row, self.now)


@given(tree=trees(), happened=events)
def test_the_fast_tree_decides_as_the_literal_one(tree: TreeConfig, happened: list[tuple[Any, ...]]) -> None:
    pair = Pair(tree)
    for what, *details in happened:
        pair.happen(what, *details)


@given(
    tree=trees(),
    loads=st.lists(jobs, min_size=10, max_size=40),
    waits=st.lists(st.floats(0.0, 0.5), min_size=30, max_size=50),
)
def test_they_empty_a_full_tree_in_the_same_order(tree: TreeConfig, loads: list[Job], waits: list[float]) -> None:
    pair = Pair(tree)
    for job in loads:
        pair.happen("enqueue", job)
    for wait in waits:
        pair.happen("wait", wait)
        pair.happen("dequeue", 0)
        if len(pair.flying) > 8:
            pair.happen("charge", 3, 17)
            pair.happen("settle", 0)


def test_the_literal_tree_is_no_fifo() -> None:
    """The comparison would see a difference if there were one."""
    tree = TreeConfig(classes=tuple(ClassConfig(name=p.label, priority=p) for p in PriorityClass), quantum=5)
    index, _, _, slow = both(tree)
    rows = [add(index, Job(priority=priority)) for priority in (P3, P3, P3, P0, P1)]
    for row in rows:
        slow.enqueue(row, 0.0)
    assert [slow.dequeue(0.0) for _ in rows] != rows
