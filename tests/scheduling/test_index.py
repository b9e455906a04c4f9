from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from scheduling.index import Index, IndexFull
from scheduling.interner import Interner
from scheduling.priority import PriorityClass
from scheduling.state import TERMINAL_STATES, TRANSITIONS, RequestState


def add(index: Index, tenant: str = "acme", flow: str = "a", **changes: object) -> int:
    columns: dict[str, object] = {
        "origin": PriorityClass.P1,
        "prompt_tokens": 10,
        "output_tokens": 20,
        "arrival_s": 1.5,
        **changes,
    }
    return index.add(tenant=tenant, flow=flow, **columns)  # type: ignore[arg-type]


def end(index: Index, row: int) -> None:
    index.move(row, RequestState.CANCELLED)
    index.release(row)


def test_a_row_keeps_what_it_was_given() -> None:
    index = Index()
    row = add(index, "acme", "job-7", ttft_deadline_s=3.5, hard_deadline_s=9.0, service=PriorityClass.P3)
    assert index.state_of(row) is RequestState.WAITING
    assert (index.origin_of(row), index.service_of(row)) == (PriorityClass.P1, PriorityClass.P3)
    assert (index.tenant_name(row), index.flow_name(row)) == ("acme", "job-7")
    assert (index.prompt_tokens[row], index.output_tokens[row], index.cached_tokens[row]) == (10, 20, 0)
    assert (index.arrival_s[row], index.ttft_deadline_s[row], index.hard_deadline_s[row]) == (1.5, 3.5, 9.0)


def test_without_deadlines_a_row_is_due_never() -> None:
    index = Index()
    row = add(index)
    assert index.ttft_deadline_s[row] == index.hard_deadline_s[row] == inf


def test_equal_flow_names_of_two_tenants_are_two_flows() -> None:
    index = Index()
    assert index.flow[add(index, "acme", "a")] != index.flow[add(index, "bolt", "a")]
    assert index.flow[add(index, "acme", "a")] == index.flow[add(index, "acme", "a")]


def test_a_full_index_says_so_and_takes_rows_again_after_a_release() -> None:
    index = Index(capacity=3, initial_rows=1)
    rows = [add(index) for _ in range(3)]
    with pytest.raises(IndexFull, match="all 3 rows"):
        add(index)
    end(index, rows[1])
    assert add(index) == rows[1]
    assert len(index) == 3


def test_names_nobody_uses_are_forgotten() -> None:
    index = Index()
    for number in range(1000):
        end(index, add(index, f"tenant-{number}", f"flow-{number}"))
    assert index.statistics().tenants == index.statistics().flows == 0
    assert add(index, "new") == 0, "the row was recycled"
    assert index.tenant[0] == 0, "the number was recycled"


def test_a_number_that_is_held_is_not_recycled() -> None:
    index = Index()
    row = add(index, "acme")
    number = index.tenant[row]
    index.tenants.hold(number)
    end(index, row)
    other = add(index, "bolt")
    assert index.tenant[other] != number
    assert index.tenants.name(number) == "acme"
    index.tenants.drop(number)
    assert index.tenants.number("acme") is None


@pytest.mark.parametrize("before", RequestState)
@pytest.mark.parametrize("after", RequestState)
def test_a_state_moves_as_the_table_says_and_not_otherwise(before: RequestState, after: RequestState) -> None:
    ways = {
        RequestState.WAITING: [],
        RequestState.STAGED: [RequestState.STAGED],
        RequestState.CLAIMED: [RequestState.CLAIMED],
        RequestState.PREFILL: [RequestState.CLAIMED, RequestState.PREFILL],
        RequestState.DECODE: [RequestState.CLAIMED, RequestState.PREFILL, RequestState.DECODE],
        RequestState.FINISHED: [RequestState.CLAIMED, RequestState.PREFILL, RequestState.FINISHED],
        RequestState.FAILED: [RequestState.FAILED],
        RequestState.CANCELLED: [RequestState.CANCELLED],
        RequestState.EXPIRED: [RequestState.EXPIRED],
    }
    index = Index()
    row = add(index)
    for state in ways[before]:
        index.move(row, state)
    if after in TRANSITIONS[before]:
        index.move(row, after)
        assert index.state_of(row) is after
    else:
        with pytest.raises(AssertionError, match="is no move"):
            index.move(row, after)
        assert index.state_of(row) is before


def test_a_living_row_cannot_be_released() -> None:
    index = Index()
    row = add(index)
    with pytest.raises(AssertionError, match="is no end"):
        index.release(row)


def test_a_row_cannot_be_released_twice() -> None:
    index = Index()
    row = add(index)
    end(index, row)
    with pytest.raises(AssertionError, match="not in use"):
        index.release(row)


def test_service_class_is_lowered_and_never_raised() -> None:
    index = Index()
    row = add(index)
    index.demote(row, PriorityClass.P2)
    assert index.count(PriorityClass.P2, RequestState.WAITING) == 1
    with pytest.raises(AssertionError, match="no demotion"):
        index.demote(row, PriorityClass.P1)
    with pytest.raises(AssertionError, match="more urgent"):
        add(index, service=PriorityClass.P0)


def test_staging_replaces_predictions() -> None:
    index = Index()
    row = add(index)
    index.set_tokens(row, prompt_tokens=77, cached_tokens=64)
    assert (index.prompt_tokens[row], index.cached_tokens[row], index.output_tokens[row]) == (77, 64, 20)


def test_statistics_count_states() -> None:
    index = Index()
    staged, waiting = add(index), add(index)
    index.move(staged, RequestState.STAGED)
    end(index, waiting)
    statistics = index.statistics()
    assert statistics.by_state[RequestState.STAGED] == 1
    assert statistics.by_state[RequestState.WAITING] == 0
    assert (statistics.rows, statistics.rows_peak, statistics.added, statistics.released) == (1, 2, 2, 1)


def test_columns_stay_the_same_objects_when_they_grow() -> None:
    index = Index(initial_rows=1)
    state, arrival_s = index.state, index.arrival_s
    for _ in range(100):
        add(index)
    assert state is index.state
    assert arrival_s is index.arrival_s
    assert len(state) >= 100


def test_a_row_takes_at_most_200_bytes_with_its_names() -> None:
    import gc
    import tracemalloc

    index = Index(initial_rows=1 << 14)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    rows = 1 << 14
    for number in range(rows):
        add(index, f"tenant-{number % 50}", f"flow-{number // 4:08}")
    names = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert (names + index.statistics().column_bytes) / rows <= 200


def test_interner_check_finds_a_corruption() -> None:
    interner: Interner[str] = Interner()
    interner.intern("a")
    interner.check_integrity()
    interner._holders[0] = 0
    with pytest.raises(AssertionError, match="held by nobody"):
        interner.check_integrity()


class IndexMachine(RuleBasedStateMachine):
    """Any sequence of legal calls keeps the index consistent with a plain dictionary of rows."""

    rows = Bundle("rows")

    @initialize(capacity=st.integers(1, 6))
    def start(self, capacity: int) -> None:
        self.index = Index(capacity=capacity, initial_rows=1)
        self.model: dict[int, tuple[str, str, RequestState]] = {}

    @rule(target=rows, tenant=st.sampled_from("ab"), flow=st.sampled_from("xyz"))
    def add(self, tenant: str, flow: str) -> int | None:
        if len(self.model) == self.index.capacity:
            with pytest.raises(IndexFull):
                add(self.index, tenant, flow)
            return None
        row = add(self.index, tenant, flow)
        assert row not in self.model
        self.model[row] = (tenant, flow, RequestState.WAITING)
        return row

    @rule(row=rows, data=st.data())
    def move(self, row: int | None, data: st.DataObject) -> None:
        if row not in self.model:
            return
        tenant, flow, state = self.model[row]
        after = sorted(TRANSITIONS[state])
        if after:
            chosen = data.draw(st.sampled_from(after))
            self.index.move(row, chosen)
            self.model[row] = (tenant, flow, chosen)

    @rule(row=consumes(rows))
    def release(self, row: int | None) -> None:
        if row in self.model and self.model[row][2] in TERMINAL_STATES:
            self.index.release(row)
            del self.model[row]

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.index.check_integrity()
        assert len(self.index) == len(self.model)
        for row, (tenant, flow, state) in self.model.items():
            assert self.index.tenant_name(row) == tenant
            assert self.index.flow_name(row) == flow
            assert self.index.state_of(row) is state


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(stateful_step_count=40, deadline=None)
