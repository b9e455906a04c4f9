import pytest

from kvcache.swap_plan import Direction
from scheduling.preemption_budget import PreemptionBudget
from scheduling.swap_rule import SwapRates, SwapRule


def test_both_ways_count() -> None:
    rule = SwapRule(SwapRates(block_bytes=1000, out_bytes_s=1000.0, in_bytes_s=500.0), theta=1.0)
    assert rule.swap_s(2) == pytest.approx(2 + 4)
    assert rule.prefers_swap(2, prefill_s=6.1)
    assert not rule.prefers_swap(2, prefill_s=5.9)


def test_theta_scales_the_rule() -> None:
    rule = SwapRule(SwapRates(1000, 1000.0, 1000.0), theta=0.5)
    assert not rule.prefers_swap(1, prefill_s=3.9)
    assert rule.prefers_swap(1, prefill_s=4.1)


def test_rates_follow_what_copies_take() -> None:
    rule = SwapRule(SwapRates(1000, 1000.0, 1000.0), theta=1.0)
    for _ in range(100):
        rule.copied(Direction.OUT, 10, 5.0)
    assert rule.statistics().out_bytes_s == pytest.approx(2000, rel=0.01)
    assert rule.statistics().in_bytes_s == pytest.approx(1000)
    assert rule.swap_s(2) == pytest.approx(1 + 2, rel=0.01)


def test_what_is_found_again_is_not_recomputed() -> None:
    rule = SwapRule(SwapRates(1000, 1000.0, 1000.0), theta=1.0)
    assert rule.recompute_s(4.0) == 4.0
    for _ in range(100):
        rule.came_back(lost_tokens=100, found_tokens=75)
    assert rule.recompute_s(4.0) == pytest.approx(1.0, rel=0.01)


def test_a_budget_holds_in_any_window() -> None:
    budget = PreemptionBudget(2, 10.0)
    for now in (0.0, 6.0):
        assert budget.left("a", now) > 0
        budget.spend("a", now)
    assert budget.left("a", 9.9) == 0
    assert budget.left("b", 9.9) == 2
    assert budget.left("a", 10.0) == 1
    assert budget.left("a", 16.0) == 2


def test_only_tenants_of_the_last_window_are_remembered() -> None:
    budget = PreemptionBudget(2, 10.0)
    for number in range(100):
        budget.spend(f"t{number}", float(number))
    assert len(budget) <= 11
