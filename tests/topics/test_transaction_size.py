"""How large a transaction may be after others took too long."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.transaction_size import TransactionSize

TIMEOUT_S = 10.0


def attempt(size: TransactionSize, waiting: int, reply_s: float) -> int | None:
    """How many of those that wait one transaction brought; None: it failed at its time-out."""
    replies = waiting if size.most is None else min(waiting, size.most)
    if replies * reply_s >= TIMEOUT_S:
        size.failed(replies, TIMEOUT_S)
        return None
    size.ended(replies, replies * reply_s)
    return replies


def test_nothing_is_bounded_until_a_transaction_took_too_long() -> None:
    size = TransactionSize(TIMEOUT_S)
    size.ended(5_000, 9.0)
    size.failed(5_000, 4.9)  # for another reason
    assert size.most is None


def test_what_fails_at_any_size_is_tried_one_by_one() -> None:
    size = TransactionSize(TIMEOUT_S)
    tried = []
    for _ in range(8):
        assert attempt(size, 20, reply_s=10.0) is None
        tried.append(size.most)
    assert tried == [10, 5, 2, 1, 1, 1, 1, 1]


@given(waiting=st.integers(1, 20_000), reply_s=st.floats(1e-5, 9.0))
def test_whatever_waits_is_delivered_and_the_size_settles_where_none_fails(waiting: int, reply_s: float) -> None:
    size, left, failures = TransactionSize(TIMEOUT_S), waiting, 0
    while left:
        brought = attempt(size, left, reply_s)
        failures += brought is None
        left -= brought or 0
    # Each halves; and what ended within half of its time grows to its double at most.
    assert failures <= waiting.bit_length()


def test_a_bound_that_an_outage_left_behind_is_gone_soon() -> None:
    size = TransactionSize(TIMEOUT_S)
    size.failed(1, TIMEOUT_S)
    bounds = []
    while (size.most or 0) < 5_000:
        bounds.append(size.most or 0)
        attempt(size, 10_000, reply_s=1e-4)
    assert len(bounds) < 40
    assert all(before < after for before, after in pairwise(bounds))


@pytest.mark.parametrize("replies", [1, 3])
def test_a_small_batch_says_nothing_about_a_larger_one(replies: int) -> None:
    size = TransactionSize(TIMEOUT_S)
    size.failed(100, TIMEOUT_S)
    size.ended(replies, 0.1)
    assert size.most == 50
