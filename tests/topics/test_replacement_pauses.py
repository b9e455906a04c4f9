"""Pauses before replacements: they grow, to a limit, and begin anew after a time without a fault."""

from topics.replacement_pauses import ReplacementPauses


def test_the_pauses_grow_to_half_a_minute_whatever_works_in_between_for_a_moment() -> None:
    pauses = ReplacementPauses()
    found = [pauses.after(1.0) for _ in range(7)]
    assert found == sorted(found)
    assert 0 < found[0] < 1
    assert found[-2:] == [30.0, 30.0]


def test_after_a_steady_time_they_begin_anew() -> None:
    pauses = ReplacementPauses()
    first_s = pauses.after(0.0)
    assert pauses.after(0.0) > first_s
    assert pauses.after(600.0) == first_s
    assert pauses.after(0.0) > first_s
