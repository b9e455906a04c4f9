"""One leaf: flows, orders in a flow, debts, hashed queues. The fairness bound is in tests/properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.index import Index
from scheduling.sfq import FlowRows, Sfq
from scheduling.tree import FlowOrder, LeafConfig
from tests.scheduling.queue_rig import Job, add, release

ENOUGH = 10_000


class Leaf:
    """A leaf over rows named by their flow and number: `a0` is the first of flow a."""

    def __init__(self, **config: object) -> None:
        self.index = Index()
        leaf = LeafConfig(**{"quantum": 10, **config})  # type: ignore[arg-type]
        self.sfq = Sfq(self.index, leaf, FlowRows(self.index, leaf.order))
        self.names: dict[int, str] = {}
        self.counts: dict[str, int] = {}

    def push(self, flow: str, cost: int = 10, now: float = 0.0, **job: object) -> int:
        row = add(self.index, Job(flow=flow, prompt=cost, output=0, **job))  # type: ignore[arg-type]
        self.names[row] = f"{flow}{self.counts.setdefault(flow, 0)}"
        self.counts[flow] += 1
        self.sfq.push(row, now)
        self.sfq.check_integrity()
        return row

    def pop(self, count: int = ENOUGH, now: float = 0.0) -> str:
        """Names of the next rows."""
        return " ".join(self.names[row] for row, _ in self.pop_rows(count, now))

    def pop_rows(self, count: int = ENOUGH, now: float = 0.0) -> list[tuple[int, object]]:
        rows: list[tuple[int, object]] = []
        while len(rows) < count:
            foretold = self.sfq.pick(now, 0)
            popped = self.sfq.pop(now, 0)
            assert foretold == (None if popped is None else popped[0])
            if popped is None:
                break
            rows.append((popped[0], popped[2]))
        return rows


def test_flows_alternate_and_keep_their_order() -> None:
    leaf = Leaf()
    for flow in "aaabb":
        leaf.push(flow)
    assert leaf.pop() == "a0 b0 a1 b1 a2"


def test_a_newcomer_waits_for_one_turn_of_each_other_at_most() -> None:
    leaf = Leaf()
    for flow in "aaaabbbb":
        leaf.push(flow)
    leaf.pop(3)
    leaf.push("c")
    assert leaf.pop(3) in ("b1 a2 c0", "b1 c0 a2")


def test_a_row_taken_away_leaves_the_others_in_order() -> None:
    leaf = Leaf()
    rows = [leaf.push("a") for _ in range(4)]
    leaf.push("b")
    leaf.sfq.remove(rows[1], 0.0)
    leaf.sfq.check_integrity()
    assert leaf.pop() == "a0 b0 a2 a3"


def test_a_row_that_comes_back_has_its_place_again_and_owes_nothing() -> None:
    leaf = Leaf()
    for flow in "aabb":
        leaf.push(flow)
    first, second = leaf.pop_rows(2)
    for row, grant in (first, second):
        leaf.sfq.restore(row, grant, 10, 0.0)  # type: ignore[arg-type]
        leaf.sfq.check_integrity()
    assert leaf.pop() == "a0 b0 a1 b1"


def test_a_row_out_of_turn_pays_all_the_same() -> None:
    leaf = Leaf()
    for flow in "aabbb":
        leaf.push(flow)
    last = leaf.push("a")
    leaf.sfq.take(last, 40, 0.0)
    leaf.sfq.check_integrity()
    assert leaf.pop() == "b0 b1 b2 a0 a1"


def test_what_costs_more_than_predicted_is_paid_by_its_flow() -> None:
    leaf = Leaf()
    for flow in "aaabbbb":
        leaf.push(flow)
    ((_, grant),) = leaf.pop_rows(1)
    leaf.sfq.correct(grant, 30, 0.0)  # type: ignore[arg-type]
    assert leaf.pop() == "b0 b1 b2 b3 a1 a2"


def test_one_huge_request_at_a_time_does_not_escape_fairness() -> None:
    leaf = Leaf()
    for _ in range(30):
        leaf.push("b")
    leaf.push("a", cost=100)
    served = leaf.pop(2)
    assert "a0" in served
    leaf.push("a", cost=100)
    assert leaf.pop(12).split().index("a1") >= 8


def test_a_debt_is_halved_with_time() -> None:
    leaf = Leaf(debt_half_life_s=10.0)
    for _ in range(60):
        leaf.push("b")
    leaf.push("a", cost=400)
    assert "a0" in leaf.pop(2)
    leaf.push("a", now=20.0)
    assert 7 <= leaf.pop(40, now=20.0).split().index("a1") <= 11


def test_earliest_deadline_first_within_a_flow() -> None:
    leaf = Leaf(order=FlowOrder.EDF)
    for deadline in (5.0, 3.0, 9.0, 3.0):
        leaf.push("a", ttft_deadline_s=deadline)
    assert leaf.pop() == "a1 a3 a0 a2"


def test_shortest_first_within_a_flow_and_turns_between_flows() -> None:
    leaf = Leaf(order=FlowOrder.SJF)
    for cost in (10, 2, 5):
        leaf.push("a", cost=cost)
    leaf.push("b", cost=100)
    assert leaf.pop() == "a1 a2 a0 b0"


@pytest.mark.parametrize("order", FlowOrder)
def test_a_cancelled_rows_number_may_be_used_again_at_once(order: FlowOrder) -> None:
    leaf = Leaf(order=order)
    leaf.push("a", cost=3)
    cancelled = leaf.push("a", cost=1)
    leaf.sfq.remove(cancelled, 0.0)
    release(leaf.index, cancelled)
    assert leaf.push("b", cost=2) == cancelled
    assert sorted(leaf.pop().split()) == ["a0", "b0"]


def test_flows_are_forgotten_when_they_owe_nothing() -> None:
    leaf = Leaf()
    for number in range(200):
        leaf.push(f"flow-{number}")
        for row, grant in leaf.pop_rows(1):
            leaf.sfq.end(grant, 0, 0.0)  # type: ignore[arg-type]
            release(leaf.index, row)
    assert len(leaf.index.flows) <= 4


def test_closing_lets_go_of_all_names() -> None:
    leaf = Leaf()
    leaf.push("a", cost=500)
    for row, grant in leaf.pop_rows(1):
        leaf.sfq.end(grant, 0, 0.0)  # type: ignore[arg-type]
        release(leaf.index, row)
    leaf.sfq.close()
    assert len(leaf.index.flows) == 0


# --- the prefix look --------------------------------------------------------------------------------------------------


def cached(leaf: Leaf, row: int, tokens: int) -> None:
    """Staging found so much of the row's prompt in the prefix cache."""
    leaf.index.set_tokens(row, prompt_tokens=leaf.index.prompt_tokens[row], cached_tokens=tokens)


def test_of_the_flows_due_in_a_round_the_longest_prefix_hit_goes_first() -> None:
    leaf = Leaf(quantum=20)
    rows = [leaf.push(flow, cost=20) for flow in "abc"]
    cached(leaf, rows[1], 5)
    cached(leaf, rows[2], 15)
    assert leaf.pop() == "c0 b0 a0"


def test_a_prefix_hit_jumps_no_round() -> None:
    leaf = Leaf(quantum=20)
    for _ in range(4):
        cached(leaf, leaf.push("a", cost=40), 20)
        leaf.push("b", cost=20)
    assert leaf.pop() == "a0 b0 a1 b1 a2 b2 a3 b3"


def test_the_look_is_bounded_and_can_be_switched_off() -> None:
    for look, first in ((8, "c0 b0 a0"), (2, "a0 c0 b0"), (1, "a0 b0 c0")):
        leaf = Leaf(quantum=20, prefix_look=look)
        rows = [leaf.push(flow, cost=20) for flow in "abc"]
        cached(leaf, rows[2], 15)
        assert leaf.pop() == first


def test_urgent_requests_choose_among_themselves() -> None:
    leaf = Leaf(quantum=20, urgent_slack_s=0.5)
    rows = [leaf.push(flow, cost=20, ttft_deadline_s=due) for flow, due in (("a", 9.0), ("b", 1.2), ("c", 1.3))]
    cached(leaf, rows[0], 15)
    cached(leaf, rows[2], 5)
    assert leaf.pop(now=1.0) == "c0 b0 a0"


@given(
    sizes=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 60), st.floats(0, 1)), min_size=2, max_size=60),
    quantum=st.integers(1, 80),
)
def test_the_look_costs_fairness_one_quantum_at_most(sizes: list[tuple[str, int, float]], quantum: int) -> None:
    leaf = Leaf(quantum=quantum)
    cost: dict[int, int] = {}
    for flow, size, hit in sizes:
        row = leaf.push(flow, cost=size)
        cached(leaf, row, int(size * hit))
        cost[row] = leaf.index.prompt_cost[row]
    left = {flow: sum(1 for sent, _, _ in sizes if sent == flow) for flow in "ab"}
    served = {"a": 0, "b": 0}
    while all(left.values()):
        ((row, _),) = leaf.pop_rows(1)
        flow = leaf.names[row][0]
        left[flow] -= 1
        served[flow] += cost[row]
        assert abs(served["a"] - served["b"]) <= 2 * quantum + max(cost.values())


# --- hashed queues ----------------------------------------------------------------------------------------------------


def test_beyond_the_exact_flows_queues_are_shared_and_nothing_is_lost() -> None:
    leaf = Leaf(exact_flows=3, hashed_queues=4)
    for _ in range(3):
        for number in range(20):
            leaf.push(f"f{number:02}-")
    served = leaf.pop().split()
    assert len(served) == len(set(served)) == 60
    for number in range(20):
        of_flow = [name for name in served if name.startswith(f"f{number:02}-")]
        assert of_flow == sorted(of_flow), "a flow keeps its order"


def test_exact_flows_are_fair_to_each_other_beside_a_crowd() -> None:
    leaf = Leaf(exact_flows=2, hashed_queues=4)
    for flow in ["a", "b", *(f"f{number}-" for number in range(30))]:
        for _ in range(4):
            leaf.push(flow)
    served = leaf.pop(24).split()
    assert abs(sum(name[0] == "a" for name in served) - sum(name[0] == "b" for name in served)) <= 1


def test_a_perturbation_parts_flows_that_collide_and_keeps_their_order() -> None:
    leaf = Leaf(exact_flows=1, hashed_queues=64, perturb_s=10.0)
    leaf.push("own")
    for number in range(12):
        leaf.push("x" if number % 2 else "y")
    before = [row for row, _ in leaf.pop_rows(5)]
    assert len(before) == 5
    leaf.push("z", now=11.0)
    leaf.sfq.check_integrity()
    served = leaf.pop(now=11.0).split()
    for flow in "xy":
        of_flow = [int(name[1:]) for name in served if name[0] == flow]
        assert of_flow == sorted(of_flow)


def test_a_perturbation_keeps_debts() -> None:
    leaf = Leaf(exact_flows=1, hashed_queues=64, perturb_s=10.0)
    for _ in range(40):
        leaf.push("own")
    leaf.push("big", cost=300)
    leaf.push("big", cost=10)
    assert "big0" in leaf.pop(2)
    leaf.push("other", now=11.0)
    assert leaf.pop(40, now=11.0).split().index("big1") >= 20


@given(
    st.lists(st.tuples(st.sampled_from(["push", "pop", "remove", "restore", "later"]), st.integers(0, 9)), max_size=80),
    st.sampled_from(FlowOrder),
)
def test_any_sequence_with_few_exact_flows_keeps_its_books(events: list[tuple[str, int]], order: FlowOrder) -> None:
    leaf = Leaf(order=order, exact_flows=2, hashed_queues=3, perturb_s=2.0)
    queued: list[int] = []
    flying: list[tuple[int, object]] = []
    now = 0.0
    for what, number in events:
        if what == "push":
            queued.append(leaf.push(f"f{number}", cost=1 + number * 3, now=now))
        elif what == "pop":
            for row, grant in leaf.pop_rows(1, now):
                queued.remove(row)
                flying.append((row, grant))
        elif what == "remove" and queued:
            row = queued.pop(number % len(queued))
            leaf.sfq.remove(row, now)
            release(leaf.index, row)
        elif what == "restore" and flying:
            row, grant = flying.pop(number % len(flying))
            if number % 2:
                leaf.sfq.restore(row, grant, 1, now)  # type: ignore[arg-type]
                queued.append(row)
            else:
                leaf.sfq.end(grant, 0, now)  # type: ignore[arg-type]
                release(leaf.index, row)
        elif what == "later":
            now += 1.0
        leaf.sfq.check_integrity()
        assert sorted(leaf.sfq.rows()) == sorted(queued)
        assert list(leaf.sfq.order(0)) == [] or set(leaf.sfq.order(0)) == set(queued)
