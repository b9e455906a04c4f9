"""`fifo` and `strict`, the factory, and the accounting around any discipline."""

import gc
import tracemalloc
from dataclasses import replace

import pytest

from scheduling.accounting import OVERRUN_TOKENS, AccountedQdisc
from scheduling.cost import CostModel
from scheduling.default_tree import default_tree
from scheduling.index import Index
from scheduling.ledger import Cause
from scheduling.policies import POLICIES, PolicyError, make_qdisc
from scheduling.priority import PriorityClass
from scheduling.qdisc import EVERYTHING, Qdisc, Room
from scheduling.state import RequestState
from tests.scheduling.queue_rig import P0, P1, P2, P3, Job, Server, add, order, release

TREE = default_tree(1000.0, 100)


def queue(policy: str, *jobs: Job) -> tuple[Index, AccountedQdisc, list[int]]:
    index = Index()
    qdisc = make_qdisc(policy, index, TREE)
    rows = [add(index, job) for job in jobs]
    for row in rows:
        qdisc.enqueue(row, 0.0)
    return index, qdisc, rows


def drained(qdisc: AccountedQdisc, room: Room = EVERYTHING) -> list[int]:
    rows = []
    while (row := qdisc.dequeue(0.0, room)) is not None:
        rows.append(row)
    return rows


# --- fifo and strict --------------------------------------------------------------------------------------------------


def test_fifo_is_the_order_of_arrival_whatever_comes() -> None:
    jobs = [Job(priority=p, tenant=t) for p, t in ((P3, "a"), (P0, "b"), (P3, "a"), (P1, "c"))]
    _, qdisc, rows = queue("fifo", *jobs)
    assert drained(qdisc) == rows


def test_fifos_head_without_room_holds_everybody_up() -> None:
    _, qdisc, rows = queue("fifo", Job(priority=P3), Job(priority=P0))
    assert qdisc.dequeue(0.0, Room(1 << P3)) is None
    assert qdisc.dequeue(0.0) == rows[0]


def test_strict_is_by_class_and_then_by_arrival() -> None:
    jobs = [Job(priority=p) for p in (P3, P1, P0, P3, P0, P2)]
    _, qdisc, rows = queue("strict", *jobs)
    assert drained(qdisc) == [rows[number] for number in (2, 4, 1, 5, 0, 3)]


def test_strict_passes_over_a_class_without_room() -> None:
    _, qdisc, rows = queue("strict", Job(priority=P0), Job(priority=P2), Job(priority=P1))
    assert drained(qdisc, Room(1 << P0)) == [rows[2], rows[1]]


def test_a_demoted_request_queues_in_its_service_class() -> None:
    index = Index()
    qdisc = make_qdisc("strict", index, TREE)
    demoted, other = add(index, Job(priority=P0)), add(index, Job(priority=P1))
    index.demote(demoted, P3)
    for row in (demoted, other):
        qdisc.enqueue(row, 0.0)
    assert drained(qdisc) == [other, demoted]


def test_strict_starves_the_least_urgent_and_htb_does_not() -> None:
    jobs = [Job(priority=priority, prompt=20, output=40) for priority in (P0, P3) for _ in range(200)]
    first = {policy: order(Server(jobs, policy, TREE).run(15.0)) for policy in ("strict", "htb")}
    assert sum(job.priority is P3 for job in first["strict"]) == 0
    assert sum(job.priority is P3 for job in first["htb"]) > 5


# --- the factory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_a_qdisc(policy: str) -> None:
    index = Index()
    qdisc: Qdisc = make_qdisc(policy, index, TREE)
    row = add(index, Job())
    qdisc.enqueue(row, 0.0)
    assert len(qdisc) == 1
    assert qdisc.peek(0.0) == qdisc.dequeue(0.0) == row
    assert len(qdisc) == 0


def test_an_unknown_policy_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(PolicyError, match=r"'wqf'.*htb, fifo, strict"):
        make_qdisc("wqf", Index(), TREE)


def test_an_unknown_leaf_policy_is_refused_with_its_class() -> None:
    first, *others = TREE.classes
    wrong = replace(first, tenants=replace(first.tenants, leaf=replace(first.tenants.leaf, policy="cake")))
    with pytest.raises(PolicyError, match=r"class realtime: unknown leaf policy 'cake'.*sfq"):
        make_qdisc("htb", Index(), replace(TREE, classes=(wrong, *others)))


def test_any_policy_may_order_a_tenants_requests() -> None:
    classes = tuple(
        replace(child, tenants=replace(child.tenants, leaf=replace(child.tenants.leaf, policy="fifo")))
        for child in TREE.classes
    )
    jobs = [Job(flow=flow) for flow in "aaab"]
    in_order = order(Server(jobs, tree=replace(TREE, classes=classes)).run())
    assert [job.flow for job in in_order] == list("aaab")


def test_prices_of_index_and_discipline_must_agree() -> None:
    with pytest.raises(AssertionError, match="priced by"):
        make_qdisc("fifo", Index(), TREE, CostModel(prefill=7))


# --- accounting -------------------------------------------------------------------------------------------------------


class Recorder:
    """A discipline of one row that writes down what it is told."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.told: list[tuple[str, int]] = []
        self.queued: list[int] = []

    def push(self, row: int, now: float) -> None:
        self.queued.append(row)

    def pop(self, now: float, blocked: int) -> tuple[int, int, str] | None:
        row = self.queued.pop()
        return row, self.index.predicted_cost(row), "grant"

    def correct(self, grant: str, cost: int, now: float) -> None:
        self.told.append(("correct", cost))

    def end(self, grant: str, cost: int, now: float) -> None:
        self.told.append(("end", cost))

    def restore(self, row: int, grant: str, cost: int, now: float) -> None:
        self.told.append(("restore", cost))
        self.queued.append(row)

    def over_rate(self, priority: PriorityClass, now: float) -> bool:
        return False

    def borrowed_cost(self, priority: PriorityClass) -> int:
        return 0

    def reason(self, grant: str) -> str:
        return grant

    def tree(self, now: float) -> None:
        return None


def recorded(job: Job) -> tuple[AccountedQdisc, Recorder, int]:
    index = Index()
    recorder = Recorder(index)
    qdisc = AccountedQdisc(index, recorder)  # type: ignore[arg-type]
    row = add(index, job)
    qdisc.enqueue(row, 0.0)
    assert qdisc.dequeue(0.0) == row
    return qdisc, recorder, row


def test_what_was_predicted_is_drawn_from_and_the_rest_given_back() -> None:
    qdisc, recorder, row = recorded(Job(prompt=100, output=50))
    for _ in range(30):
        qdisc.charge(row, 2, 0.0)
    assert recorder.told == [], "within the prediction a step costs the discipline nothing"
    qdisc.settle(row, 0.0)
    assert recorder.told == [("end", -40)]
    assert qdisc.ledger().settled == 160


def test_past_the_prediction_a_slice_is_counted_at_a_time() -> None:
    qdisc, recorder, row = recorded(Job(prompt=10, output=1))
    for _ in range(10):
        qdisc.charge(row, 2, 0.0)
    assert recorder.told == [("correct", 2 * OVERRUN_TOKENS)]
    qdisc.settle(row, 0.0)
    assert recorder.told[-1] == ("end", 30 - (12 + 2 * OVERRUN_TOKENS))


def test_a_charge_beyond_a_slice_is_counted_whole() -> None:
    qdisc, recorder, row = recorded(Job(prompt=10, output=1))
    qdisc.charge(row, 500, 0.0)
    assert recorder.told == [("correct", 498)]


def test_an_uncomputed_prompt_is_refunded_and_a_preemption_comes_on_top() -> None:
    qdisc, recorder, row = recorded(Job(prompt=100, output=50))
    qdisc.charge(row, 30, 0.0, Cause.PREEMPTION)
    assert recorder.told == [("correct", 30)]
    qdisc.settle(row, 0.0, refund=60)
    assert recorder.told[-1] == ("end", 70 - 230)
    (account,) = qdisc.ledger().accounts
    assert (account.cost, account.preemption_cost, account.refunded_cost) == (70, 30, 60)


def test_a_prompt_that_turns_out_different_is_corrected_either_way() -> None:
    qdisc, recorder, row = recorded(Job(prompt=100, output=0))
    qdisc.charge(row, -40, 0.0, Cause.PROMPT)
    assert recorder.told == [("correct", -40)]
    qdisc.settle(row, 0.0)
    assert qdisc.ledger().settled == 60


def test_a_requeued_row_costs_nothing_and_counts_as_queued() -> None:
    qdisc, recorder, row = recorded(Job(prompt=100, output=50))
    qdisc.requeue(row, 0.0)
    assert recorder.told == [("restore", 200)]
    statistics = qdisc.statistics().by_class[P1]
    assert (statistics.queued, statistics.queued_cost, statistics.in_flight) == (1, 200, 0)
    assert (statistics.dispatched, statistics.dispatched_cost) == (0, 0)


def test_a_row_that_is_priced_anew_while_it_waits_keeps_the_sums_right() -> None:
    index, qdisc, rows = queue("fifo", Job(prompt=100, output=50), Job(prompt=1, output=1))
    index.set_tokens(rows[0], prompt_tokens=7)
    assert qdisc.dequeue(0.0) == rows[0]
    statistics = qdisc.statistics().by_class[P1]
    assert (statistics.queued_cost, statistics.dispatched_cost) == (3, 107)


def test_dispatched_cost_is_what_was_charged_once_all_is_settled() -> None:
    _, qdisc, _ = queue("htb", Job(prompt=100, output=50), Job(priority=P2, prompt=30, output=1))
    for row in (qdisc.dequeue(0.0), qdisc.dequeue(0.0)):
        assert row is not None
        qdisc.charge(row, 88, 1.0)
        qdisc.settle(row, 1.0)
    by_class = qdisc.statistics().by_class
    assert (by_class[P1].dispatched_cost, by_class[P2].dispatched_cost) == (188, 118)
    assert by_class[P1].dispatched_cost + by_class[P2].dispatched_cost == qdisc.ledger().settled


def test_a_cancelled_row_leaves_no_trace() -> None:
    index, qdisc, rows = queue("htb", Job(), Job())
    qdisc.cancel(rows[0], 0.0)
    release(index, rows[0])
    assert qdisc.statistics().by_class[P1].queued_cost == 30
    assert drained(qdisc) == rows[1:]


# --- staging ahead ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_upcoming_foretells_the_order_on_a_quiet_machine(policy: str) -> None:
    jobs = [Job(priority=P1, tenant="a", flow=flow) for flow in "aabbc"]
    _, qdisc, _ = queue(policy, *jobs)
    foretold = qdisc.upcoming(10)
    assert foretold == drained(qdisc)


@pytest.mark.parametrize("policy", POLICIES)
def test_upcoming_leaves_out_what_is_staged_and_skipped_classes(policy: str) -> None:
    index, qdisc, rows = queue(policy, Job(priority=P1), Job(priority=P2), Job(priority=P1))
    index.move(rows[0], RequestState.STAGED)
    assert set(qdisc.upcoming(10)) == {rows[1], rows[2]}
    assert qdisc.upcoming(10, frozenset({P1})) == [rows[1]]
    assert len(qdisc.upcoming(1)) == 1
    assert qdisc.upcoming(0) == []


def test_upcoming_looks_past_a_flood_for_other_classes() -> None:
    index, qdisc, _ = queue("htb", *(Job(priority=P1) for _ in range(3000)))
    late = add(index, Job(priority=P3))
    qdisc.enqueue(late, 0.0)
    assert late in qdisc.upcoming(20)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_waiting_request_takes_less_than_a_kilobyte(policy: str) -> None:
    """Index row, names, and its place in the discipline, with ten requests a flow."""
    rows, flows = 20_000, 2_000
    gc.collect()
    tracemalloc.start()
    index = Index(initial_rows=rows)
    qdisc = make_qdisc(policy, index, TREE)
    for number in range(rows):
        flow = number % flows
        job = Job(priority=PriorityClass(flow % 4), tenant=f"tenant-{flow % 50}", flow=f"user-{flow}")
        qdisc.enqueue(add(index, job), 0.0)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken / rows < 500
