"""What is left of a journal's notes while a partition's records are handed out."""

from hypothesis import given
from hypothesis import strategies as st

from topics.attempt_notes import AttemptNote, PriorAttempts
from topics.progress_journal import _Left


def prior(crashes: int) -> PriorAttempts:
    return PriorAttempts(AttemptNote(attempt=crashes + 1, begun_ms=0, crashes=crashes, running=False), ended=False)


@given(
    st.dictionaries(st.integers(0, 30), st.integers(0, 3), max_size=20),
    st.lists(st.integers(0, 30), max_size=20, unique=True).map(sorted),
)
def test_records_that_come_take_their_notes_and_all_before_them(crashes: dict[int, int], come: list[int]) -> None:
    left = _Left({offset: prior(count) for offset, count in crashes.items()})
    there = dict(crashes)
    for offset in come:
        found = left.take(offset)
        assert (None if found is None else found.crashes) == there.get(offset)
        there = {each: count for each, count in there.items() if each > offset}
        assert left.fewest_crashes == min(filter(None, there.values()), default=None)
