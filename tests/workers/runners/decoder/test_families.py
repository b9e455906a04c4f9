"""Each family's logits are those of transformers' own code, in any mix of chunks and decodes."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from tests.workers.models.tiny_models import CONTEXT, VOCABULARY, saved, texts, tiny
from tests.workers.models.tiny_tokenizers import byte_level_tokenizer
from tests.workers.runners.native_kernels import kernels_or_skip
from workers.intake.grammar import GrammarCompiler
from workers.intake.sampling import GREEDY, SamplingParams
from workers.models.devices import Placement
from workers.runners.decoder.family import DecoderShape, NotDescribed, describe
from workers.runners.decoder.runner import DecoderRunner
from workers.runners.errors import GrammarBroken, NotFiniteLogits
from workers.runners.native.library import NativeLibrary
from workers.runners.packed_step import ForwardOutput
from workers.runners.paged_runner import PagedRunner
from workers.runners.runner import ModelLimits, SequenceInput

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "head_dim": 16,
}
ROPE = {"rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 160}

FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "llama, tied, biased": LlamaConfig(**SMALL, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama, as many KV heads": LlamaConfig(**SMALL | {"num_key_value_heads": 4}),
    "llama, linear rope": LlamaConfig(**SMALL, rope_parameters=ROPE | {"rope_type": "linear"}),
    "llama, dynamic rope": LlamaConfig(
        **SMALL, rope_parameters={"rope_theta": 500.0, "rope_type": "dynamic", "factor": 2.0}
    ),
    "llama, yarn": LlamaConfig(**SMALL, rope_parameters=ROPE | {"rope_type": "yarn"}),
    "llama, llama3 rope": LlamaConfig(
        **SMALL,
        rope_parameters=ROPE | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ),
    "mistral, sliding window": MistralConfig(**SMALL, sliding_window=9),
    "mistral, window beyond a tile": MistralConfig(**SMALL, sliding_window=290),
    "qwen2": Qwen2Config(**SMALL),
    "qwen2, upper layers sliding": Qwen2Config(
        **SMALL, use_sliding_window=True, sliding_window=20, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**SMALL),
    "smollm3, every other layer without positions": SmolLM3Config(
        **SMALL, no_rope_layers=[1, 0, 1], pad_token_id=0, bos_token_id=1, eos_token_id=2
    ),
    "gemma": GemmaConfig(**SMALL, hidden_activation="gelu_pytorch_tanh", pad_token_id=0),
}


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    return kernels_or_skip()


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def runner_of(
    config: PreTrainedConfig,
    folder: Path,
    library: NativeLibrary | None,
    dtype: torch.dtype = torch.float32,
    *,
    torch_products: bool = False,
    threads: int = 1,
) -> tuple[Any, DecoderRunner]:
    """One thread unless it matters: models this small only wait for a second one, long where the machine is busy."""
    model = tiny(config)
    files = saved(model, folder)
    shape = describe(config)
    assert isinstance(shape, DecoderShape)
    placement = Placement(torch.device("cpu"), dtype, threads)
    runner = DecoderRunner(files, shape, placement, library=library, torch_products=torch_products, kv_bytes=2**22)
    return model, runner


Places = list[tuple[int, int]]
"""(sequence, position)"""


def random_forwards(
    runner: PagedRunner, prompts: list[list[int]], seed: int
) -> Iterator[tuple[Places, Places, ForwardOutput]]:
    """All prompts through the runner in random pieces: places of the rows of logits, of the hidden states, and both."""
    draw = random.Random(seed)
    free = [*range(runner.num_blocks)]
    draw.shuffle(free)
    tables = [[free.pop() for _ in range(-(-len(text) // runner.block_size))] for text in prompts]
    done = [0] * len(prompts)
    while unfinished := [s for s, text in enumerate(prompts) if done[s] < len(text)]:
        members = draw.sample(unfinished, draw.randint(1, len(unfinished)))
        step = []
        for s in members:
            left = len(prompts[s]) - done[s]
            tokens = 1 if draw.random() < 0.2 else draw.randint(1, left)
            sampling = GREEDY if draw.random() < 0.8 else None
            embed = sampling is None and tokens > 1
            ids = prompts[s][done[s] : done[s] + tokens]
            step.append(SequenceInput(ids, done[s], tables[s], sampling, embed=embed))
            done[s] += tokens
        parts = list(zip(members, step, strict=True))
        sampled = [(s, done[s] - 1) for s, part in parts if part.sampling]
        embedded = [(s, done[s] - 1) for s, part in parts if part.embed]
        yield sampled, embedded, runner.forward(step)


def random_steps(
    runner: PagedRunner, prompts: list[list[int]], seed: int
) -> Iterator[tuple[tuple[int, int], torch.Tensor]]:
    """The same: (sequence, position) of each row of logits, and the logits."""
    for sampled, _, output in random_forwards(runner, prompts, seed):
        yield from zip(sampled, output.logits.clone(), strict=True)


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_logits_and_hidden_states_are_those_of_transformers_in_any_mix(
    config: PreTrainedConfig, kernels: bool, tmp_path: Path, library: NativeLibrary
) -> None:
    model, runner = runner_of(config, tmp_path, library if kernels else None)
    assert (runner.native is not None) == kernels
    prompts = texts((1, 2, 15, 16, 17, 40, 70, 33, 300, 530))
    with torch.inference_mode():
        ids = [torch.tensor([text]) for text in prompts]
        logits = [model(text, use_cache=False).logits[0] for text in ids]
        hidden = [model.base_model(text, use_cache=False).last_hidden_state[0] for text in ids]
    compared: Counter[str] = Counter()

    def compare(kind: str, places: Places, got: torch.Tensor | None, want: list[torch.Tensor]) -> None:
        assert (got is None) == (kind == "hidden" and not places)
        for (sequence, position), row in zip(places, () if got is None else got, strict=True):
            scale = float(want[sequence][position].abs().max())
            torch.testing.assert_close(row / scale, want[sequence][position] / scale, atol=1e-4, rtol=0)
            compared[kind] += 1

    for sampled, embedded, output in random_forwards(runner, prompts, seed=1):
        compare("logits", sampled, output.logits, logits)
        compare("hidden", embedded, output.hidden, hidden)
    assert compared["logits"] > 15
    assert compared["hidden"] > 2


def test_a_tokens_logits_are_the_same_to_the_bit_whatever_shares_the_step(
    tmp_path: Path, library: NativeLibrary
) -> None:
    """The kernels' promise: no batch, no chunking and no number of threads changes a request's text."""
    _model, one_thread = runner_of(FAMILIES["llama"], tmp_path, library)
    _model, two_threads = runner_of(FAMILIES["llama"], tmp_path, library, threads=2)
    prompts = texts((5, 300, 17, 540))
    alone = {}
    for s, text in enumerate(prompts):
        for end in range(1, len(text) + 1):
            step = [SequenceInput(text[end - 1 : end], end - 1, range(40 * s, 40 * s + 40), GREEDY)]
            alone[s, end - 1] = one_thread.logits(step)[0].clone()
    for seed, runner in enumerate((one_thread, one_thread, two_threads)):
        for (s, position), got in random_steps(runner, prompts, seed):
            assert torch.equal(got, alone[s, position])


def test_penalties_see_the_tokens_of_the_whole_sequence(tmp_path: Path, library: NativeLibrary) -> None:
    _model, runner = runner_of(FAMILIES["llama"], tmp_path, library)
    plain = SequenceInput([5, 6, 7], 0, [0], GREEDY)
    (favourite,) = runner.step([plain])
    assert favourite is not None
    shy = SamplingParams(temperature=0, frequency_penalty=2.0, presence_penalty=2.0)
    said = [5, 6, 7] + [favourite] * 50
    wary = SequenceInput([5, 6, 7], 0, [1], shy, output_position=50, history=said)
    got = runner.step([plain, wary])
    assert got[0] == favourite
    assert got[1] != favourite


def test_logits_that_are_not_numbers_name_their_sequences_and_spare_the_others(
    tmp_path: Path, library: NativeLibrary
) -> None:
    model = tiny(FAMILIES["llama"])
    with torch.no_grad():
        model.model.embed_tokens.weight[50] = float("nan")
    shape = describe(FAMILIES["llama"])
    assert isinstance(shape, DecoderShape)
    placement = Placement(torch.device("cpu"), torch.float32, threads=1)
    runner = DecoderRunner(saved(model, tmp_path), shape, placement, library=library, kv_bytes=2**22)
    good = SequenceInput([1, 2, 3], 0, [2], GREEDY)
    with pytest.raises(NotFiniteLogits) as caught:
        runner.step([SequenceInput([6, 50, 7], 0, [1], GREEDY), good])
    assert caught.value.sequences == (0,)
    # The faulty sequence's block goes to a shorter one: what is left behind its end must not reach it.
    assert runner.step([SequenceInput([1], 0, [1], GREEDY)]) == runner.step([SequenceInput([1], 0, [3], GREEDY)])
    assert runner.step([good])[0] is not None


def test_a_grammar_that_its_answer_has_left_names_its_sequence_and_spares_the_others(
    tmp_path: Path, library: NativeLibrary
) -> None:
    """As in a next attempt at an answer that another release began, under another grammar."""
    config = LlamaConfig(**SMALL | {"vocab_size": 270})
    _model, runner = runner_of(config, tmp_path, library)
    compiler = GrammarCompiler(byte_level_tokenizer(), ModelLimits(CONTEXT, 270, frozenset({263})))
    said = byte_level_tokenizer().encode("no json").ids
    left = SamplingParams(seed=1, grammar=compiler.json({"type": "integer"}))
    held = SamplingParams(seed=1, grammar=compiler.json({"enum": ["yes"]}))
    good = SequenceInput([1, 2], 0, [2], held, output_position=0, history=[1, 2])
    broken = SequenceInput(said, 0, [1], left, output_position=len(said), history=said)
    with pytest.raises(GrammarBroken) as caught:
        runner.step([SequenceInput([3], 0, [3], None), broken, good])
    assert caught.value.sequences == (1,)
    (token,) = runner.step([good])
    assert token is not None
    assert byte_level_tokenizer().decode([token]).startswith('"')


@pytest.mark.parametrize("torch_products", [False, True], ids=["kernels", "kernels for attention alone"])
def test_bfloat16_weights_and_pool_stay_near_float32(
    tmp_path: Path, library: NativeLibrary, torch_products: bool
) -> None:
    model, runner = runner_of(FAMILIES["qwen3"], tmp_path, library, torch.bfloat16, torch_products=torch_products)
    assert runner.attention_name == "cpu"
    assert (runner.native is None) == torch_products
    prompts = texts((40, 300))
    with torch.inference_mode():
        want = [model(torch.tensor([text]), use_cache=False).logits[0] for text in prompts]
    for (sequence, position), got in random_steps(runner, prompts, seed=3):
        expected = want[sequence][position]
        torch.testing.assert_close(
            got.float() / expected.abs().max(), expected / expected.abs().max(), atol=0.1, rtol=0
        )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (GPT2Config(), "gpt2 is not one of"),
        (LlamaConfig(hidden_act="relu"), "activation is relu"),
        (
            LlamaConfig(
                rope_parameters={
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 64,
                    "long_factor": [1.0] * 64,
                    "original_max_position_embeddings": 2048,
                }
            ),
            "longrope",
        ),
        (LlamaConfig(quantization_config={"quant_method": "fp8"}), "quantised"),
    ],
    ids=["family", "activation", "position embedding", "quantisation"],
)
def test_what_no_family_describes_is_left_to_transformers(config: PreTrainedConfig, says: str) -> None:
    described = describe(config)
    assert isinstance(described, NotDescribed)
    assert says in described.reason
