from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.token_bucket import TokenBucket


def test_it_fills_at_its_rate_up_to_its_burst() -> None:
    bucket = TokenBucket(rate=10, burst=50, level=0, clock=0)
    assert bucket.level(2) == 20
    assert bucket.level(100) == 50


def test_a_debt_has_no_floor_and_is_paid_at_the_rate() -> None:
    bucket = TokenBucket(rate=10, burst=50, level=50, clock=0)
    assert not bucket.spend(1_000_050, 0)
    assert bucket.zero == pytest.approx(100_000)
    assert not bucket.solvent(99_999)
    assert bucket.solvent(100_001)


def test_what_is_put_back_is_clamped_to_the_burst() -> None:
    bucket = TokenBucket(rate=10, burst=50, level=40, clock=0)
    assert bucket.spend(-1000, 0)
    assert bucket.level(0) == pytest.approx(50)


def test_exactly_nothing_left_is_solvent() -> None:
    assert TokenBucket(rate=10, burst=50, level=30, clock=0).spend(30, 0)


def test_new_rates_keep_a_debt_and_forget_savings_above_the_new_burst() -> None:
    bucket = TokenBucket(rate=10, burst=50, level=-100, clock=0)
    bucket.configure(rate=50, burst=20, clock=0)
    assert bucket.level(0) == pytest.approx(-100)
    assert bucket.zero == pytest.approx(2)
    bucket = TokenBucket(rate=10, burst=50, level=50, clock=0)
    bucket.configure(rate=10, burst=20, clock=0)
    assert bucket.level(0) == pytest.approx(20)


def test_without_a_rate_a_debt_lasts() -> None:
    bucket = TokenBucket(rate=0, burst=10, level=10, clock=0)
    bucket.spend(11, 0)
    assert not bucket.solvent(1e8)


@given(
    rate=st.integers(1, 100),
    burst=st.integers(1, 1000),
    events=st.lists(st.tuples(st.integers(0, 20), st.integers(-300, 600)), max_size=40),
)
def test_it_is_the_bucket_that_refills_before_it_is_charged(
    rate: int, burst: int, events: list[tuple[int, int]]
) -> None:
    """Against the usual form: a level, and the time it was last looked at."""
    bucket = TokenBucket(rate, burst, burst, 0)
    level, now = float(burst), 0
    for later, units in events:
        now += later
        level = min(burst, min(burst, level + rate * later) - units)
        bucket.spend(units, now)
        assert isclose(bucket.level(now), level, abs_tol=1e-6)
