"""Gaps and Jain's index on hand-made ticks."""

import numpy as np
import pytest

from workers.runs.fairness import Party, fairness, jain_index
from workers.runs.run_record import Ticks


def ticks(service: list[list[int]], backlogged: list[list[bool]] | None = None) -> Ticks:
    """Rows are seconds, columns accounts; `service` is cumulated."""
    table = np.array(service, dtype=np.int64)
    flags = np.ones(table.shape, dtype=np.bool_) if backlogged is None else np.array(backlogged, dtype=np.bool_)
    length = len(table)
    return Ticks(
        interval_s=1.0,
        service=table,
        backlogged=flags,
        queued=np.zeros((length, 4), dtype=np.int64),
        running=np.zeros(length, dtype=np.int64),
        borrowed=np.zeros((length, 4), dtype=np.int64),
        queue_seconds=np.zeros(length),
        queue_squared_seconds=np.zeros(length),
    )


TWO = [Party("a", (0,)), Party("b", (1,))]


def test_jain_is_one_for_equals_and_one_nth_for_a_single_winner() -> None:
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1.0)
    assert jain_index(np.array([5.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)


def test_the_gap_is_the_range_of_the_difference() -> None:
    # b gets 4 ahead, then a catches up and gets 3 ahead: between the two extremes lie 7.
    result = fairness(ticks([[0, 2], [0, 4], [5, 4], [9, 6]]), TWO)
    assert result.gap_max == 7
    assert result.gap_mean == pytest.approx((2 + 4 + 1 + 3) / 4)


def test_a_gap_while_one_asks_for_nothing_does_not_count() -> None:
    served = [[10, 0], [20, 0], [30, 10], [40, 20]]
    asleep = [[True, False], [True, False], [True, True], [True, True]]
    result = fairness(ticks(served, asleep), TWO)
    assert result.gap_max == 0
    assert result.jain == pytest.approx(1.0)


def test_service_counts_by_weight() -> None:
    served = [[3, 1], [6, 2], [9, 3]]
    weighted = fairness(ticks(served), [Party("a", (0,), 3.0), Party("b", (1,))])
    assert weighted.gap_max == 0
    assert weighted.jain == pytest.approx(1.0)
    assert fairness(ticks(served), TWO).jain == pytest.approx(16 / 20)


def test_who_was_backlogged_briefly_is_not_called_starved() -> None:
    served = [[5, 5], [15, 5], [25, 5], [35, 5]]
    brief = [[True, True], [True, False], [True, False], [True, False]]
    assert fairness(ticks(served, brief), TWO).jain == pytest.approx(1.0)


def test_windows_compare_those_backlogged_throughout() -> None:
    served = [[4, 0], [4, 4], [8, 4], [8, 8]] * 5
    cumulated = [[s[0] + 8 * (n // 4), s[1] + 8 * (n // 4)] for n, s in enumerate(served)]
    one, ten, sixty = fairness(ticks(cumulated), TWO).windows
    assert (one.windows, ten.windows) == (20, 2)
    assert (one.jain_mean, one.gap_mean) == pytest.approx((0.5, 4))
    assert (ten.jain_mean, ten.gap_max) == pytest.approx((1.0, 0))
    assert (sixty.windows, sixty.jain_mean, sixty.gap_max) == (0, None, None)


def test_one_party_alone_has_no_fairness() -> None:
    result = fairness(ticks([[1], [2]]), [Party("a", (0,))])
    assert (result.gap_max, result.jain) == (None, None)


def test_accounts_of_one_party_count_together() -> None:
    result = fairness(ticks([[1, 2, 3], [2, 4, 6]]), [Party("a", (0, 1)), Party("b", (2,))])
    assert result.gap_max == 0


def test_a_run_shorter_than_a_second_has_no_ticks() -> None:
    empty = ticks([[0, 0]])
    none = Ticks(1.0, *(getattr(empty, name)[:0] for name in Ticks.__slots__ if name != "interval_s"))
    result = fairness(none, TWO)
    assert (result.gap_max, result.jain) == (None, None)
