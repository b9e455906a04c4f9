"""Guessed tokens change nothing but the number of steps: those that would have been drawn are taken, others dropped."""

import random
from dataclasses import replace

import pytest
from transformers import LlamaConfig

from tests.workers.models.tiny_models import CONTEXT, VOCABULARY, saved, texts, tiny
from tests.workers.runners.native_kernels import kernels_or_skip
from workers.intake.sampling import GREEDY, SamplingParams
from workers.models.devices import Placement, choose_placement
from workers.runners.decoder.family import DecoderShape, describe
from workers.runners.decoder.runner import DecoderRunner
from workers.runners.runner import SequenceInput

NEW_TOKENS = 24
PLACEMENT: Placement = choose_placement("cpu", "float32", 2)
SAMPLING = [GREEDY, SamplingParams(seed=5), SamplingParams(temperature=0.7, top_p=0.9, seed=6), GREEDY]


@pytest.fixture(scope="module", params=["kernels", "torch"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DecoderRunner:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=40,
        intermediate_size=56,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
    )
    files = saved(tiny(config), tmp_path_factory.mktemp("tiny"))
    shape = describe(config)
    assert isinstance(shape, DecoderShape)
    library = kernels_or_skip() if request.param == "kernels" else None
    return DecoderRunner(files, shape, PLACEMENT, library=library, kv_bytes=2**22)


def answers(
    runner: DecoderRunner, known: list[list[int]], draw: random.Random | None, *, ahead: bool = False
) -> tuple[list[list[int]], int]:
    """All prompts at once, to `NEW_TOKENS` each. `known`: the answers to guess from, mostly right; the steps too.

    `ahead`: some sequences of each step are begun before it, others dropped again."""
    prompts = texts((5, 40, 17, 33))
    outputs: list[list[int]] = [[] for _ in prompts]
    computed, steps = [0] * len(prompts), 0
    while any(len(output) < NEW_TOKENS for output in outputs):
        places = [place for place, output in enumerate(outputs) if len(output) < NEW_TOKENS]
        inputs = []
        for place in places:
            tokens = prompts[place] + outputs[place]
            at = len(outputs[place])
            guess: list[int] = []
            if draw is not None and at:
                guess = known[place][at : min(at + draw.randint(0, 4), NEW_TOKENS - 1)]
                guess = [token if draw.random() < 0.8 else (token + 1) % VOCABULARY for token in guess]
            blocks = range(8 * place, 8 * place + 8)
            start = computed[place]
            inputs.append(SequenceInput(tokens[start:], start, blocks, SAMPLING[place], at, guess=guess))
        if ahead:
            inputs = begun_ahead(runner, inputs)
        sampled = runner.step(inputs)
        accepted = runner.take_accepted()
        steps += 1
        for number, (place, token) in enumerate(zip(places, sampled, strict=True)):
            assert token is not None
            new = [token, *accepted[number]]
            assert len(new) <= len(inputs[number].guess) + 1
            computed[place] = len(prompts[place]) + len(outputs[place]) + len(new) - 1
            outputs[place] += new
    return outputs, steps


def begun_ahead(runner: DecoderRunner, inputs: list[SequenceInput]) -> list[SequenceInput]:
    """Every other sequence is wanted, the first one is dropped, the last one is not begun at all."""
    if len(inputs) == 1:
        return inputs
    runner.begin(inputs[:-1])
    return [
        replace(sequence, begun=place) if place % 2 and place < len(inputs) - 1 else sequence
        for place, sequence in enumerate(inputs)
    ]


def test_answers_are_the_same_with_right_and_wrong_guesses_in_fewer_steps(runner: DecoderRunner) -> None:
    plain, plain_steps = answers(runner, [], None)
    for seed in range(3):
        guessed, guessed_steps = answers(runner, plain, random.Random(seed))
        assert guessed == plain
        assert guessed_steps < plain_steps


def test_nor_does_it_change_anything_to_begin_some_of_them_ahead(runner: DecoderRunner) -> None:
    plain, _ = answers(runner, [], None)
    assert answers(runner, [], None, ahead=True)[0] == plain
    assert answers(runner, plain, random.Random(4), ahead=True)[0] == plain
