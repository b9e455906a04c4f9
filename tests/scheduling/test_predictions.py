"""Cost, and the two predictions it rests on: prompt tokens of a waiting row, output tokens of any."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost import CostModel
from scheduling.index import Index
from scheduling.length import QuantilePredictor
from scheduling.priority import PriorityClass
from scheduling.prompt_ratio import PromptRatio

P0, P1, P2, P3 = PriorityClass


def test_cost_is_one_for_a_prompt_token_and_two_for_an_output_token() -> None:
    cost = CostModel()
    assert (cost.prompt(100), cost.prompt(100, 64), cost.output(100)) == (100, 36, 200)


def test_an_index_prices_rows_and_prices_them_again_when_more_is_known() -> None:
    index = Index(cost=CostModel(prefill=3, decode=5))
    row = index.add(origin=P1, tenant="a", flow="a", prompt_tokens=10, output_tokens=7, arrival_s=0.0)
    assert (index.prompt_cost[row], index.output_cost[row], index.predicted_cost(row)) == (30, 35, 65)
    index.set_tokens(row, prompt_tokens=20, output_tokens=1, cached_tokens=16)
    assert (index.prompt_cost[row], index.output_cost[row]) == (12, 5)
    assert index.cost.prompt_of(index, row) == 12


@given(prefill_ms=st.floats(0.01, 100), output_ms=st.floats(0.01, 100))
def test_measured_prices_are_in_the_ratio_of_the_times(prefill_ms: float, output_ms: float) -> None:
    cost = CostModel.measured(prefill_ms / 1000, output_ms / 1000)
    assert cost.decode / cost.prefill == pytest.approx(output_ms / prefill_ms, rel=0.15)


@given(tokens=st.integers(1, 3000), logarithmic=st.booleans())
def test_an_answers_tokens_add_up_to_the_answer(tokens: int, logarithmic: bool) -> None:
    cost = CostModel(logarithmic=logarithmic)
    assert sum(cost.next_output(number) for number in range(1, tokens + 1)) == cost.output(tokens)


def test_in_the_logarithm_ten_times_the_tokens_cost_hardly_more() -> None:
    cost = CostModel(logarithmic=True)
    assert cost.output(1000) < 1.6 * cost.output(100)
    assert cost.prompt(100) + cost.output(100) == pytest.approx(300, rel=0.1)


@pytest.mark.parametrize("wrong", [{"prefill": 0}, {"decode": -1}])
def test_a_price_is_at_least_one(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="from 1 up"):
        CostModel(**wrong)


# --- output length ----------------------------------------------------------------------------------------------------


def test_before_anything_is_known_the_limit_is_the_prediction() -> None:
    assert QuantilePredictor().predict(P1, "acme", 512) == 512


def test_a_tenants_own_answers_count_once_there_are_enough() -> None:
    predictor = QuantilePredictor()
    for _ in range(100):
        predictor.observe(P1, "short", 512, 20)
        predictor.observe(P1, "long", 512, 400)
    assert 20 <= predictor.predict(P1, "short", 512) <= 25
    assert 400 <= predictor.predict(P1, "long", 512) <= 480


def test_a_new_tenant_is_predicted_by_its_class_and_classes_are_apart() -> None:
    predictor = QuantilePredictor()
    for _ in range(50):
        predictor.observe(P1, "acme", 512, 20)
    assert predictor.predict(P1, "new", 512) <= 25
    assert predictor.predict(P2, "new", 512) == 512


def test_a_prediction_never_exceeds_the_limit() -> None:
    predictor = QuantilePredictor()
    for _ in range(50):
        predictor.observe(P1, "acme", 512, 400)
    assert predictor.predict(P1, "acme", 16) == 16


def test_old_answers_are_forgotten() -> None:
    predictor = QuantilePredictor()
    for _ in range(2000):
        predictor.observe(P1, "acme", 512, 400)
    for _ in range(2000):
        predictor.observe(P1, "acme", 512, 20)
    assert predictor.predict(P1, "acme", 512) <= 25


def test_the_window_outlives_its_own_scaling() -> None:
    predictor = QuantilePredictor()
    for _ in range(20_000):
        predictor.observe(P1, "acme", 512, 100)
    assert 100 <= predictor.predict(P1, "acme", 512) <= 120


def test_the_error_is_measured() -> None:
    predictor = QuantilePredictor()
    predictor.observe(P1, "acme", 100, 150)
    predictor.observe(P1, "acme", 100, 80)
    statistics = predictor.statistics()
    assert (statistics.observed, statistics.predicted_tokens, statistics.actual_tokens) == (2, 200, 230)
    assert (statistics.mean_error_tokens, statistics.mean_absolute_error_tokens) == (15.0, 35.0)
    assert statistics.exceeded == 1


def test_the_least_recently_seen_tenant_makes_room() -> None:
    predictor = QuantilePredictor(max_tenants=2)
    for tenant in ("a", "b", "a", "c"):
        predictor.observe(P1, tenant, 10, 10)
    assert predictor.statistics().tenants == 2


@given(st.lists(st.integers(1, 4000), min_size=60, max_size=120), st.sampled_from([0.25, 0.5, 0.9]))
def test_the_prediction_is_the_quantile_up_to_a_bucket(lengths: list[int], quantile: float) -> None:
    predictor = QuantilePredictor(quantile)
    for length in lengths:
        predictor.observe(P1, "acme", length, length)
    predicted = predictor.predict(P1, "acme", 10_000)
    # The window forgets, so the ranks are blurred by a fraction of the samples.
    ordered = sorted(lengths)
    low = ordered[max(0, int((quantile - 0.15) * len(ordered)) - 1)]
    high = ordered[min(len(ordered) - 1, int((quantile + 0.15) * len(ordered)) + 1)]
    assert low / 1.2 <= predicted <= high * 1.2 + 1


@pytest.mark.parametrize("quantile", [0.0, 1.0, -1.0])
def test_a_quantile_lies_between_nought_and_one(quantile: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        QuantilePredictor(quantile)


# --- prompt length ----------------------------------------------------------------------------------------------------


def test_four_bytes_a_token_until_something_is_known() -> None:
    assert PromptRatio().tokens(4000) == 1000
    assert PromptRatio().tokens(0) == 1


def test_the_ratio_follows_what_is_tokenised() -> None:
    ratio = PromptRatio()
    for _ in range(2000):
        ratio.observe(1000, ratio.tokens(1000), 500)
    assert ratio.tokens(1000) == pytest.approx(500, rel=0.02)


def test_the_error_of_the_estimates_is_exported() -> None:
    ratio = PromptRatio()
    ratio.observe(400, 100, 150)
    ratio.observe(400, 100, 50)
    statistics = ratio.statistics()
    assert (statistics.observed, statistics.mean_error_tokens) == (2, 0.0)
    assert (statistics.mean_absolute_error_tokens, statistics.relative_error) == (50.0, 0.5)
