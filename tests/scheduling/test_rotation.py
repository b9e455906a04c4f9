import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.rotation import Rotation, Turn, interleave


class Named(Turn[str]):
    """A turn that is hashed and named by its owner."""

    @property
    def name(self) -> str:
        return self.owner


def rotation_of(*turns: Named) -> Rotation[str]:
    rotation: Rotation[str] = Rotation()
    for turn in turns:
        rotation.join(turn)
    return rotation


def served(rotation: Rotation[str], count: int, cost: int) -> str:
    names = ""
    for _ in range(count):
        turn = rotation.front()
        assert turn is not None
        rotation.serve(turn, cost)
        names += turn.owner
    return names


def test_equal_quanta_alternate() -> None:
    assert served(rotation_of(Named("a", 10), Named("b", 10)), 6, 10) == "ababab"


def test_a_quantum_of_several_items_is_served_in_one_turn() -> None:
    assert served(rotation_of(Named("a", 30), Named("b", 10)), 8, 10) == "aaabaaab"


def test_an_overdrawn_turn_waits_as_many_rounds_as_it_takes_to_pay() -> None:
    a, b = Named("a", 10), Named("b", 10)
    rotation = rotation_of(a, b)
    rotation.serve(a, 45)
    assert served(rotation, 5, 10) == "bbbba"


def test_who_leaves_and_returns_waits_for_its_round_all_the_same() -> None:
    a, b = Named("a", 10), Named("b", 10)
    rotation = rotation_of(a, b)
    rotation.serve(a, 45)
    rotation.leave(a)
    assert served(rotation, 2, 10) == "bb"
    rotation.join(a)
    assert served(rotation, 3, 10) == "bba"


def test_a_round_that_has_passed_is_no_credit() -> None:
    a, b = Named("a", 10), Named("b", 10)
    rotation = rotation_of(a, b)
    rotation.leave(a)
    served(rotation, 100, 10)
    rotation.join(a)
    assert served(rotation, 4, 10) in ("baba", "abab")


def test_more_cost_later_moves_a_turn_back_and_less_moves_it_forward() -> None:
    a, b = Named("a", 10), Named("b", 10)
    rotation = rotation_of(a, b)
    rotation.serve(a, 10)
    rotation.adjust(a, 30)
    assert served(rotation, 4, 10) == "bbbb"
    rotation.adjust(b, -20)
    assert served(rotation, 3, 10) == "bba"


def test_a_turn_that_owed_nothing_owes_after_a_correction() -> None:
    a, b = Named("a", 10), Named("b", 10)
    rotation = rotation_of(a, b)
    rotation.leave(a)
    served(rotation, 10, 10)
    rotation.adjust(a, 40)
    rotation.join(a)
    assert served(rotation, 6, 10).index("a") >= 4


def test_who_is_passed_over_hoards_no_credit() -> None:
    a, b = Named("a", 10), Named("b", 10)
    rotation = rotation_of(a, b)
    for _ in range(50):
        rotation.serve_past(b, 10)
    assert served(rotation, 4, 10) in ("abab", "aaba")


def test_forgiving_halves_the_wait() -> None:
    a, b = Named("a", 10), Named("b", 10)
    rotation = rotation_of(a, b)
    rotation.serve(a, 100)
    rotation.leave(a)
    rotation.forgive(a, 0.5)
    rotation.join(a)
    assert served(rotation, 6, 10).index("a") == 5


def test_nobody_is_nobody() -> None:
    rotation = rotation_of(Named("a", 10))
    rotation.leave(rotation.front())  # type: ignore[arg-type]
    assert rotation.front() is None


@pytest.mark.parametrize("quantum", [0, -1])
def test_a_quantum_is_at_least_one(quantum: int) -> None:
    with pytest.raises(AssertionError):
        Turn("a", quantum)


@given(
    quanta=st.lists(st.integers(1, 50), min_size=2, max_size=6),
    costs=st.lists(st.integers(1, 200), min_size=1, max_size=120),
)
def test_normalised_service_differs_by_no_more_than_a_round_and_an_item(quanta: list[int], costs: list[int]) -> None:
    turns = [Named(str(number), quantum) for number, quantum in enumerate(quanta)]
    rotation = rotation_of(*turns)
    total: dict[Turn[str], int] = dict.fromkeys(turns, 0)
    for cost in costs:
        turn = rotation.front()
        assert turn is not None
        rotation.serve(turn, cost)
        total[turn] += cost
        rotation.check_integrity()
    largest = max(costs)
    for one in turns:
        for other in turns:
            assert total[one] / one.quantum - total[other] / other.quantum <= 1 + largest / one.quantum


@given(st.lists(st.tuples(st.sampled_from("jlsafp"), st.integers(0, 4), st.integers(1, 60)), max_size=80))
def test_the_heap_serves_as_a_sorted_list_would(events: list[tuple[str, int, int]]) -> None:
    turns = [Named(str(number), 7 + number) for number in range(5)]
    rotation: Rotation[str] = Rotation()
    for event, number, cost in events:
        turn = turns[number]
        if event == "j" and not turn.active:
            rotation.join(turn)
        elif event == "l" and turn.active:
            rotation.leave(turn)
        elif event == "a":
            rotation.adjust(turn, cost - 30)
        elif event == "p" and turn.active:
            rotation.serve_past(turn, cost)
        elif event in "sf" and rotation.active:
            first = rotation.front()
            assert first is not None
            if event == "s":
                rotation.serve(first, cost)
            else:
                rotation.serve_last(first, cost)
        rotation.check_integrity()
        active = sorted((turn.round, turn.place, turn.name) for turn in turns if turn.active)
        first = rotation.front()
        assert (first.owner if first else None) == (active[0][2] if active else None)
        assert [turn.owner for turn in rotation.in_order()] == [name for _, _, name in active]


@given(
    quanta=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    queues=st.lists(st.lists(st.integers(1, 90), max_size=12), min_size=4, max_size=4),
    before=st.lists(st.integers(1, 90), max_size=10),
)
def test_interleave_foretells_the_service(quanta: list[int], queues: list[list[int]], before: list[int]) -> None:
    turns = [Named(str(number), quantum) for number, quantum in enumerate(quanta)]
    rotation = rotation_of(*turns)
    for cost in before:
        turn = rotation.front()
        assert turn is not None
        rotation.serve(turn, cost)
    costs = [cost for queue in queues for cost in queue]
    rows_of: dict[str, list[int]] = {}
    row = 0
    for turn, queue in zip(turns, queues, strict=False):
        rows_of[turn.owner] = list(range(row, row + len(queue)))
        row += len(queue)
        if not queue:
            rotation.leave(turn)
    foretold = list(interleave(rotation, lambda name: rows_of[name], lambda row: costs[row]))
    happened = []
    while rotation.active:
        turn = rotation.front()
        assert turn is not None
        happened.append(rows_of[turn.owner].pop(0))
        cost = costs[happened[-1]]
        if rows_of[turn.owner]:
            rotation.serve(turn, cost)
        else:
            rotation.serve_last(turn, cost)
    assert foretold == happened
