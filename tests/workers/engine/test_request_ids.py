"""Rows by request id, against a dictionary."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from workers.engine.request_ids import RequestIds


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from("abcdefgh"))), st.sampled_from([1, 2, 64]))
def test_every_row_of_an_id_is_found_and_none_that_has_left(turns: list[tuple[int, str]], capacity: int) -> None:
    """A row enters if it is not in, else it leaves."""
    ids, model = RequestIds(capacity), dict[int, str]()
    for row, name in turns:
        if row in model:
            ids.leave(row, model.pop(row))
        else:
            ids.enter(row, name)
            model[row] = name
    rows_of = defaultdict(set)
    for row, name in model.items():
        rows_of[name].add(row)
    for name in "abcdefgh":
        found = list(ids.rows(name))
        assert len(found) == len(set(found))
        assert rows_of[name] <= set(found) <= model.keys()


def test_few_rows_of_other_ids_are_found() -> None:
    ids = RequestIds(4_096)
    for row in range(4_096):
        ids.enter(row, f"request-{row}")
    found = [len(list(ids.rows(f"request-{row}"))) for row in range(4_096)]
    assert sum(found) / len(found) < 4
