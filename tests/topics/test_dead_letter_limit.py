"""When no more requests may be given up. The counting stands in tests/integration."""

import pytest

from topics.dead_letter_limit import DeadLetterRules

RULES = DeadLetterRules(window_s=600.0, max_count=10, max_ratio=0.2)


@pytest.mark.parametrize(("given_up", "answered"), [(1, 0), (4, 0), (5, 20), (10, 1_000)])
def test_a_few_bad_requests_among_many_are_given_up(given_up: int, answered: int) -> None:
    assert RULES.broken_by(given_up, answered) is None


@pytest.mark.parametrize(
    ("given_up", "answered", "why"),
    [(11, 100_000, "the limit is 10"), (5, 0, "the limit is 20% of all"), (5, 19, "the limit is 20% of all")],
)
def test_too_many_of_them_are_a_reason_to_stop(given_up: int, answered: int, why: str) -> None:
    reason = RULES.broken_by(given_up, answered)
    assert reason is not None
    assert why in reason
