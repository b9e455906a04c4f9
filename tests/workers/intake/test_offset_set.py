"""A set of offsets is what a set of Python's is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.intake.offset_set import OffsetSet

OFFSETS = st.one_of(st.integers(0, 5), st.sampled_from([1_023, 1_024, 1_025, 2**40, 2**40 + 1, 2**63 - 1]))


@given(st.lists(OFFSETS))
def test_it_has_what_was_added_and_not_discarded(offsets: list[int]) -> None:
    """An offset is added if it is not in, else it is discarded."""
    ours, model = OffsetSet(), set[int]()
    for offset in offsets:
        assert (offset in ours) == (offset in model)
        if offset in model:
            assert ours.discard(offset)
        else:
            ours.add(offset)
        model ^= {offset}
        assert not ours.discard(2**50), "nobody added that"
        assert len(ours) == len(model)
        assert sorted(ours) == sorted(model)


def test_what_is_in_it_is_not_added_again() -> None:
    ours = OffsetSet()
    ours.add(7)
    with pytest.raises(AssertionError, match="7 is in it already"):
        ours.add(7)
