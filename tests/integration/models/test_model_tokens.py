"""Right tokens: SmolLM2 on our runner says what transformers' generate says, whatever shares the step."""

import random
import time
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.golden.smollm2 import Golden
from tests.integration.models.completion_loop import complete
from workers.intake.sampling import SamplingParams
from workers.models.model_source import ModelFiles, find_model, prepare_model
from workers.models.warm_up import measure_step_time
from workers.runners.paged_runner import PagedRunner

pytestmark = pytest.mark.model


def test_32_prompts_at_once_in_every_mix_give_the_golden_tokens(any_runner: PagedRunner, golden: Golden) -> None:
    """Pieces of prompts of any size, decodes beside them, sequences that sit a step out; up to 512 tokens a step."""
    draw = random.Random(20261129)
    mixes: set[tuple[bool, bool]] = set()

    def cut(left: list[int]) -> list[int]:
        takes, budget = [], 512
        for tokens in left:
            if tokens == 1:
                take = 1 if draw.random() < 0.95 else 0
            else:
                take = draw.choice([0, 1, draw.randint(1, tokens), draw.randint(1, tokens), tokens])
            takes.append(min(take, budget))
            budget -= takes[-1]
        if not any(takes):
            takes[0] = 1
        mixes.add((any(take == 1 for take in takes), any(take > 1 for take in takes)))
        return takes

    outputs = complete(
        any_runner,
        [case.prompt for case in golden.cases],
        golden.new_tokens,
        cut=cut,
        end_token_ids=any_runner.limits.eos_token_ids,
    )
    assert len(golden.cases) == 32
    assert outputs == [list(case.output) for case in golden.cases]
    assert (True, True) in mixes


def test_a_prompt_alone_gives_the_same_tokens_as_in_the_batch(smollm2_runner: PagedRunner, golden: Golden) -> None:
    for case in golden.cases[::4]:
        (output,) = complete(
            smollm2_runner, [case.prompt], golden.new_tokens, end_token_ids=smollm2_runner.limits.eos_token_ids
        )
        assert output == list(case.output)


def test_the_other_combinations_of_forward_and_attention_give_the_golden_tokens(
    mixed_runner: PagedRunner, golden: Golden
) -> None:
    cases = golden.cases[1::8]
    outputs = complete(
        mixed_runner,
        [case.prompt for case in cases],
        golden.new_tokens,
        end_token_ids=mixed_runner.limits.eos_token_ids,
    )
    assert outputs == [list(case.output) for case in cases]


def test_generate_itself_still_says_what_the_golden_file_holds(smollm2_files: ModelFiles, golden: Golden) -> None:
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    model: Any = from_pretrained(str(smollm2_files.folder), dtype=torch.float32, local_files_only=True).eval()
    for case in (golden.cases[2], golden.cases[16], golden.cases[25]):
        with torch.inference_mode():
            ids = model.generate(
                torch.tensor([case.prompt]), max_new_tokens=golden.new_tokens, do_sample=False, pad_token_id=0
            )
        assert ids[0, len(case.prompt) :].tolist() == list(case.output)


def test_seeded_draws_are_the_same_alone_and_in_a_batch(smollm2_runner: PagedRunner, golden: Golden) -> None:
    prompts = [case.prompt for case in golden.cases[2:14:3]]
    sampling = [
        SamplingParams(seed=1),
        SamplingParams(temperature=0.7, top_p=0.9, seed=2),
        SamplingParams(temperature=1.2, top_k=50, seed=3),
        SamplingParams(temperature=0.0),
    ]
    together = complete(smollm2_runner, prompts, 8, sampling=sampling)
    for prompt, wish, output in zip(prompts, sampling, together, strict=True):
        assert complete(smollm2_runner, [prompt], 8, sampling=[wish]) == [output]


def test_a_converted_model_is_found_again_within_a_second(smollm2_files: ModelFiles) -> None:
    lines: list[str] = []
    started_s = time.perf_counter()
    again = prepare_model(find_model("smollm2"), lines.append)
    assert time.perf_counter() - started_s < 1.0
    assert again == smollm2_files
    assert lines == [], "nothing was converted"


def test_the_warm_up_finds_a_decode_cheaper_than_a_prompt(smollm2_runner: PagedRunner) -> None:
    model = measure_step_time(smollm2_runner, budget_s=1.0)
    assert 0 < model.predict(0, 1, 32) < model.predict(160, 0, 160) < 60
