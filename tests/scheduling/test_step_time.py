import random
from math import inf

import pytest

from scheduling.step_time import LinearStepTime, StepTimeTracker

MODEL = LinearStepTime(fixed_s=0.010, per_prefill_token_s=0.0005, per_decode_sequence_s=0.001, per_context_token_s=2e-6)


def test_predict_is_the_sum_of_its_terms() -> None:
    assert MODEL.predict(100, 10, 5000) == pytest.approx(0.010 + 0.050 + 0.010 + 0.010)


@pytest.mark.parametrize("seconds", [0.0116, 0.05, 0.3])
def test_the_tokens_that_fit_are_the_most_that_fit(seconds: float) -> None:
    tokens = MODEL.prefill_tokens_within(seconds, 3, 0, 40)
    # Each prompt token also moves the end of its chunk, so the context, by one.
    assert MODEL.predict(3 + tokens, 0, 40 + tokens) <= seconds
    assert MODEL.predict(3 + tokens + 1, 0, 40 + tokens + 1) > seconds


def test_nothing_fits_into_a_step_that_is_too_long_already() -> None:
    assert MODEL.prefill_tokens_within(0.05, 0, 64, 0) == 0


def test_no_cap_fits_anything() -> None:
    assert MODEL.prefill_tokens_within(inf, 0, 64, 0) >= 2**31


def test_free_prompt_tokens_fit_without_end() -> None:
    free = LinearStepTime(0.01, 0.0, 0.001, 0.0)
    assert free.prefill_tokens_within(0.02, 0, 1, 0) >= 2**31


@pytest.mark.parametrize("value", [-1e-9, float("nan"), inf])
def test_a_coefficient_that_is_no_time_is_named(value: float) -> None:
    with pytest.raises(ValueError, match="per_prefill_token_s"):
        LinearStepTime(per_prefill_token_s=value)


def test_a_step_that_takes_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="no time at all"):
        LinearStepTime(0.0, 0.0, 0.0, 1e-6)


def loads(seed: int, steps: int) -> list[tuple[int, int, int]]:
    """A mix as an engine sees it: long stretches of decodes, prompts now and then."""
    draw = random.Random(seed)
    mix: list[tuple[int, int, int]] = []
    while len(mix) < steps:
        decodes = draw.randrange(1, 65)
        mix += [(0, decodes, decodes * draw.randrange(50, 400)) for _ in range(draw.randrange(1, 20))]
        for _ in range(draw.randrange(1, 4)):
            prompt = draw.randrange(16, 448)
            mix.append((prompt, decodes, decodes * 200 + prompt))
    return mix[:steps]


@pytest.mark.parametrize("factors", [(3, 3, 3, 3), (1, 4, 0.5, 2), (0.1, 0.1, 0.2, 0.1), (20, 20, 20, 20)])
def test_the_tracker_finds_the_machine_s_true_times(factors: tuple[float, ...]) -> None:
    start = MODEL
    true = LinearStepTime(
        start.fixed_s * factors[0],
        start.per_prefill_token_s * factors[1],
        start.per_decode_sequence_s * factors[2],
        start.per_context_token_s * factors[3],
    )
    tracker = StepTimeTracker(start)
    noise = random.Random(1)
    for load in loads(seed=2, steps=1000):
        tracker.observe(*load, true.predict(*load) * noise.uniform(0.9, 1.1))
    errors = [abs(tracker.predict(*load) / true.predict(*load) - 1) for load in loads(seed=3, steps=200)]
    assert sum(errors) / len(errors) < 0.10
    assert max(errors) < 0.35


def test_a_start_value_that_is_far_off_is_corrected_within_a_few_steps() -> None:
    tracker = StepTimeTracker(MODEL)
    for _ in range(8):
        tracker.observe(0, 32, 6400, 40 * MODEL.predict(0, 32, 6400))
    assert tracker.predict(0, 32, 6400) == pytest.approx(40 * MODEL.predict(0, 32, 6400), rel=0.3)


def test_one_outlier_moves_the_prediction_by_a_few_per_cent() -> None:
    tracker = StepTimeTracker(MODEL)
    for load in loads(seed=4, steps=100):
        tracker.observe(*load, MODEL.predict(*load))
    tracker.observe(64, 32, 6400, 50 * MODEL.predict(64, 32, 6400))
    assert tracker.predict(64, 32, 6400) < 1.08 * MODEL.predict(64, 32, 6400)


def test_decodes_alone_teach_nothing_about_prompts() -> None:
    tracker = StepTimeTracker(MODEL)
    for _ in range(500):
        tracker.observe(0, 64, 12800, 2 * MODEL.predict(0, 64, 12800))
    assert tracker.model.per_prefill_token_s == MODEL.per_prefill_token_s


def test_a_drift_of_a_third_is_followed() -> None:
    tracker = StepTimeTracker(MODEL)
    for load in loads(seed=5, steps=200):
        tracker.observe(*load, MODEL.predict(*load))
    for load in loads(seed=6, steps=60):
        tracker.observe(*load, 1.33 * MODEL.predict(*load))
    assert tracker.predict(100, 32, 6400) == pytest.approx(1.33 * MODEL.predict(100, 32, 6400), rel=0.1)


def test_a_clock_that_did_not_move_teaches_nothing() -> None:
    tracker = StepTimeTracker(MODEL)
    tracker.observe(10, 1, 10, 0.0)
    assert tracker.model == MODEL
    assert tracker.statistics().observed_steps == 0


def test_the_error_is_reported() -> None:
    tracker = StepTimeTracker(MODEL)
    tracker.observe(10, 1, 10, 2 * MODEL.predict(10, 1, 10))
    assert tracker.statistics().error == pytest.approx(0.693, abs=0.001)
