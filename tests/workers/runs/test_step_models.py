"""Step-time models as the command line writes them, and the published table."""

from pathlib import Path

import pytest

from scheduling.step_time import LinearStepTime
from workers.runs.step_models import PRESETS, StepModelError, linear_guess, parse_step_model

TABLE = Path(__file__).parents[2] / "data" / "splitwise_perf_model.csv"
H100_8 = f"table:{TABLE}@hardware=h100-80gb,tensor_parallel=8"


def test_a_preset_and_its_guess_are_the_same_line() -> None:
    model = parse_step_model("llama2-70b-h100x8")
    assert model == PRESETS["llama2-70b-h100x8"] == linear_guess(model)


def test_linear_terms_in_place() -> None:
    assert parse_step_model("linear:fixed_s=0.01,per_prefill_token_s=0.001") == LinearStepTime(0.01, 0.001, 0.0, 0.0)


@pytest.mark.parametrize("wrap", ["{}", '{{"figures": {{"step_time": {}}}}}'])
def test_linear_terms_out_of_a_file(tmp_path: Path, wrap: str) -> None:
    terms = (
        '{"fixed_s": 0.01, "per_prefill_token_s": 0.001, "per_decode_sequence_s": 0.002, "per_context_token_s": 1e-6}'
    )
    path = tmp_path / "fit.json"
    path.write_text(wrap.format(terms))
    assert parse_step_model(f"linear:{path}") == LinearStepTime(0.01, 0.001, 0.002, 1e-6)


def test_the_table_gives_its_own_points_and_what_lies_between() -> None:
    model = parse_step_model(H100_8)
    assert model.predict(0, 1, 512) == pytest.approx(0.0305, rel=0.03)
    assert model.predict(1024, 0, 1024) == pytest.approx(0.078, rel=0.03)
    assert model.predict(2048, 0, 2048) == pytest.approx(0.135, rel=0.03)
    assert model.predict(1024, 0, 1024) < model.predict(1500, 0, 1500) < model.predict(2048, 0, 2048)
    assert model.predict(0, 32, 32 * 512) < model.predict(0, 48, 48 * 512) < model.predict(0, 64, 64 * 512)


def test_the_table_goes_on_beyond_its_last_point() -> None:
    model = parse_step_model(H100_8)
    assert model.predict(0, 128, 128 * 512) > model.predict(0, 64, 64 * 512) * 1.2


def test_prompts_and_decodes_share_the_reading_of_the_weights() -> None:
    model = parse_step_model(H100_8)
    together = model.predict(1024, 32, 1024 + 32 * 512)
    assert together < model.predict(1024, 0, 1024) + model.predict(0, 32, 32 * 512)
    assert together > model.predict(1024, 0, 1024)


def test_rows_that_ran_out_of_memory_are_left_out() -> None:
    # On two cards 64 prompts of 512 tokens are said to take less time than 32 of them.
    model = parse_step_model(f"table:{TABLE}@hardware=h100-80gb,tensor_parallel=2")
    assert model.predict(32768, 0, 32768) > model.predict(16384, 0, 16384)
    assert model.predict(0, 64, 64 * 512) > model.predict(0, 32, 32 * 512)


def test_the_guess_for_a_table_is_near_it() -> None:
    model = parse_step_model(H100_8)
    guess = linear_guess(model)
    for load in ((0, 1, 512), (0, 64, 64 * 512), (1024, 32, 32 * 800), (2048, 0, 2048)):
        assert guess.predict(*load) == pytest.approx(model.predict(*load), rel=0.1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("warp", r"a preset \(.*\), linear:… or table:FILE is expected"),
        ("cubic:1", "'cubic' is neither linear nor table"),
        ("linear:speed=1", "no term speed; a linear model has fixed_s"),
        ("linear:fixed_s=fast", "could not convert"),
        ("linear:fixed_s=-1", "fixed_s = -1.0"),
        ("linear:nowhere.json", "nowhere.json: can't be read"),
        ("table:nowhere.csv", "nowhere.csv: can't be read"),
        (f"table:{TABLE}", "holds several values of tensor_parallel; choose one: 2, 8"),
        (f"table:{TABLE}@colour=red", "no key 'colour'"),
        (f"table:{TABLE}@model=gpt", "no row has"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(text: str, says: str) -> None:
    with pytest.raises(StepModelError, match=says):
        parse_step_model(text)
