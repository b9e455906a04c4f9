import copy
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from kvcache.sizing import PoolSizeError
from workers.intake.sampling import GREEDY, SamplingParams
from workers.models.devices import Placement
from workers.runners import paged_runner
from workers.runners.errors import DeviceLost, NotFiniteLogits, OutOfMemory, UnsupportedModel
from workers.runners.packed_step import ForwardOutput, PackedStep
from workers.runners.runner import ModelLimits, SequenceInput
from workers.runners.split_forward import SplitForward
from workers.runners.transformers_runner import TransformersRunner

VOCABULARY = 97
CONTEXT = 128
CPU = Placement(torch.device("cpu"), torch.float32, threads=1)
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny(config: PreTrainedConfig) -> Any:
    """A randomly initialised model with its own attention, with weights large enough that attention matters."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    return model


def runner_of(model: Any, *, kv_bytes: int | None = 2**22, context: int = CONTEXT) -> TransformersRunner:
    limits = ModelLimits(context, VOCABULARY, frozenset({2}))
    return TransformersRunner(copy.deepcopy(model), limits, CPU, kv_bytes=kv_bytes)


def llama() -> Any:
    return tiny(LlamaConfig(**SMALL))


FAMILIES = {
    "llama": LlamaConfig(**SMALL),
    "llama, tied": LlamaConfig(**SMALL, tie_word_embeddings=True, head_dim=16),
    "llama3 rope": LlamaConfig(
        **SMALL,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=8),
    "mistral, sliding window": MistralConfig(**SMALL, sliding_window=9),
    "gemma3, every other layer sliding": Gemma3TextConfig(
        **SMALL,
        head_dim=8,
        sliding_window=7,
        query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "gpt2, learned positions": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT),
}


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_logits_and_hidden_states_equal_the_models_own_in_any_mix(config: PreTrainedConfig) -> None:
    model = tiny(config)
    runner = runner_of(model)
    draw = random.Random(1)
    texts = [[draw.randrange(VOCABULARY) for _ in range(length)] for length in (1, 2, 15, 16, 17, 40, 70, 33)]
    with torch.inference_mode():
        want = [model(torch.tensor([text]), use_cache=False).logits[0] for text in texts]
        hidden = [model.base_model(torch.tensor([text]), use_cache=False).last_hidden_state[0] for text in texts]
    free = [*range(runner.num_blocks)]
    draw.shuffle(free)
    tables = [[free.pop() for _ in range(-(-len(text) // runner.block_size))] for text in texts]
    done = [0] * len(texts)
    while unfinished := [s for s, text in enumerate(texts) if done[s] < len(text)]:
        members = draw.sample(unfinished, draw.randint(1, len(unfinished)))
        step = []
        for s in members:
            left = len(texts[s]) - done[s]
            tokens = 1 if draw.random() < 0.4 else draw.randint(1, left)
            sampling = GREEDY if draw.random() < 0.7 else None
            ids = texts[s][done[s] : done[s] + tokens]
            step.append(SequenceInput(ids, done[s], tables[s], sampling, embed=sampling is None))
            done[s] += tokens
        output = runner.forward(step)
        parts = list(zip(members, step, strict=True))
        compare(output.logits, [want[s][done[s] - 1] for s, part in parts if part.sampling])
        compare(output.hidden, [hidden[s][done[s] - 1] for s, part in parts if part.embed])


def compare(got: torch.Tensor | None, want: list[torch.Tensor]) -> None:
    """None: there is nothing to compare."""
    for row, expected in zip([] if got is None else got, want, strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(row / scale, expected / scale, atol=1e-4, rtol=0)


def test_bfloat16_stays_near_float32() -> None:
    model = llama()
    placement = Placement(torch.device("cpu"), torch.bfloat16, threads=1)
    limits = ModelLimits(CONTEXT, VOCABULARY, frozenset())
    runner = TransformersRunner(copy.deepcopy(model).bfloat16(), limits, placement, kv_bytes=2**22)
    text = [7 * i % VOCABULARY for i in range(40)]
    runner.logits([SequenceInput(text[:25], 0, [5, 2, 9], None)])
    (got,) = runner.logits([SequenceInput(text[25:], 25, [5, 2, 9], GREEDY)])
    with torch.inference_mode():
        want = model(torch.tensor([text]), use_cache=False).logits[0, -1]
    torch.testing.assert_close(got.float() / want.abs().max(), want / want.abs().max(), atol=0.05, rtol=0)


def complete(runner: TransformersRunner, prompts: list[list[int]], sampling: SamplingParams) -> list[list[int]]:
    """All prompts in one step, then eight tokens each, all together."""
    blocks = iter(range(runner.num_blocks))
    tables = [[next(blocks) for _ in range(-(-(len(prompt) + 8) // runner.block_size))] for prompt in prompts]
    texts = [[*prompt] for prompt in prompts]
    done = [0] * len(prompts)
    for position in range(8):
        step = [
            SequenceInput(text[start:], start, table, sampling, position)
            for text, start, table in zip(texts, done, tables, strict=True)
        ]
        done = [len(text) for text in texts]
        for text, token in zip(texts, runner.step(step), strict=True):
            assert token is not None
            text.append(token)
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def test_greedy_tokens_equal_generate() -> None:
    model = llama()
    prompts = [[5, 6, 7, 8], [9], [11, 12, 13]]
    got = complete(runner_of(model), prompts, GREEDY)
    for prompt, tokens in zip(prompts, got, strict=True):
        want = model.generate(
            torch.tensor([prompt]), max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0
        )
        assert tokens == want[0, len(prompt) :].tolist()


def test_sampled_tokens_are_the_same_alone_and_in_a_batch() -> None:
    runner = runner_of(llama())
    sampling = SamplingParams(temperature=0.8, top_p=0.9, seed=7)
    prompts = [[5, 6, 7, 8], [9], [11, 12, 13]]
    together = complete(runner, prompts, sampling)
    assert together == [complete(runner, [prompt], sampling)[0] for prompt in prompts]
    assert len({tuple(tokens) for tokens in together}) == 3


def test_a_step_answers_none_for_what_does_not_sample() -> None:
    runner = runner_of(llama())
    step = [
        SequenceInput([1, 2, 3], 0, [0], None),
        SequenceInput([4], 0, [1], GREEDY),
        SequenceInput([5], 0, [2], None),
    ]
    tokens = runner.step(step)
    assert [token is None for token in tokens] == [True, False, True]
    assert runner.step([SequenceInput([1, 2, 3], 0, [0], None)]) == [None]
    assert runner.step([]) == []


def test_statistics_count_steps_tokens_and_samples() -> None:
    runner = runner_of(llama())
    runner.step([SequenceInput([1, 2, 3], 0, [0], None), SequenceInput([4], 0, [1], GREEDY)])
    runner.step([SequenceInput([4], 3, [0], GREEDY)])
    statistics = runner.statistics()
    assert (statistics.steps, statistics.tokens, statistics.sampled) == (2, 5, 2)


def test_logits_that_are_not_numbers_name_their_sequences_and_spare_the_others() -> None:
    model = llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[50] = float("nan")
    runner = runner_of(model)
    good = SequenceInput([1, 2, 3], 0, [2], GREEDY)
    step = [SequenceInput([4, 5], 0, [0], None), SequenceInput([6, 50], 0, [1], GREEDY), good]
    with pytest.raises(NotFiniteLogits) as caught:
        runner.step(step)
    assert caught.value.sequences == (1,)
    again = runner.step([step[0], good])[1]
    assert again == runner.step([good])[0]
    # The faulty sequence's block goes to a shorter one: what is left behind its end must not reach it.
    assert runner.step([SequenceInput([1], 0, [1], GREEDY)]) == runner.step([SequenceInput([1], 0, [3], GREEDY)])


def test_what_is_begun_ahead_and_dropped_leaves_no_block_without_numbers() -> None:
    model = llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[50] = float("nan")
    runner = runner_of(model)
    runner.begin([SequenceInput([50], 0, [1], GREEDY), SequenceInput([4], 0, [2], GREEDY)])
    wanted = SequenceInput([4], 0, [2], GREEDY, begun=1)
    assert runner.step([wanted]) == runner.step([replace(wanted, begun=None)])
    assert runner.storage.blocks[[1, 2]].isfinite().all()


def test_a_step_that_memory_cannot_hold_is_a_named_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(llama())
    monkeypatch.setattr(runner, "_forward", lambda *_arguments: torch.empty(1 << 50))
    with pytest.raises(OutOfMemory):
        runner.step([SequenceInput([1], 0, [0], GREEDY)])


def test_a_driver_that_reports_no_memory_is_out_of_memory_and_any_other_error_a_lost_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = runner_of(llama())
    for says, fault in (("CUDA error: out of memory", OutOfMemory), ("CUDA error: unknown error", DeviceLost)):

        def raises(*_arguments: object, says: str = says) -> torch.Tensor:
            raise torch.AcceleratorError(says)

        monkeypatch.setattr(runner, "_forward", raises)
        with pytest.raises(fault, match=says):
            runner.step([SequenceInput([1], 0, [0], GREEDY)])


def test_a_step_in_pieces_gives_the_same_tokens_and_log_probabilities() -> None:
    runner = runner_of(llama())
    asked = SamplingParams(seed=3, logprobs=2)
    step = [SequenceInput([*range(20)], 0, [0, 1], asked), SequenceInput([7, 8, 9], 0, [2], asked)]
    whole = SplitForward(runner).step(step)
    forward = runner._forward

    def little_memory(packed: PackedStep) -> ForwardOutput:
        if len(packed.ids) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(packed)

    runner._forward = little_memory  # type: ignore[method-assign,assignment]
    pieces = SplitForward(runner)
    got = pieces.step(step)
    assert pieces.cuts > 0
    assert got.tokens == whole.tokens
    for place, logprobs in whole.logprobs.items():
        assert got.logprobs[place].logprob == pytest.approx(logprobs.logprob, abs=1e-5)


def test_a_pool_that_memory_cannot_hold_is_made_smaller_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage = paged_runner.KVStorage  # type: ignore[attr-defined]

    def little_memory(num_blocks: int, *arguments: Any) -> Any:
        if num_blocks > 20:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate a lot")
        return storage(num_blocks, *arguments)

    monkeypatch.setattr(paged_runner, "KVStorage", little_memory)
    monkeypatch.setattr(paged_runner, "free_memory_bytes", lambda _device: 4 * 2**20)
    limits = ModelLimits(CONTEXT, VOCABULARY, frozenset())
    assert CONTEXT // 16 <= TransformersRunner(llama(), limits, CPU).num_blocks <= 20
    assert "no memory for" in caplog.text
    with pytest.raises(PoolSizeError, match=r"lower engine\.kv_bytes"):
        TransformersRunner(llama(), limits, CPU, kv_bytes=2**21)


def test_log_probabilities_equal_transformers() -> None:
    model = llama()
    runner = runner_of(model)
    text = [7 * i % VOCABULARY for i in range(40)]
    asked = SamplingParams(temperature=0.7, top_p=0.8, seed=1, presence_penalty=1.0, logprobs=VOCABULARY)
    with torch.inference_mode():
        want = model(torch.tensor([text]), use_cache=False).logits[0].log_softmax(dim=-1)
    for end in (1, 16, 17, 40):
        (token,) = runner.step([SequenceInput(text[:end], 0, [0, 1, 2], asked, history=text[:end])])
        got = runner.take_logprobs()[0]
        assert got.token_id == token
        assert got.logprob == pytest.approx(float(want[end - 1, token]), abs=1e-4)
        assert dict(got.alternatives) == pytest.approx(dict(enumerate(want[end - 1].tolist())), abs=1e-4)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (Gemma2Config(**SMALL, head_dim=8), "softcap"),
        (GptOssConfig(**SMALL, head_dim=8, num_local_experts=2, num_experts_per_tok=1), "attention sinks"),
        (BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4), "attention interface"),
        (MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2), "attention"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model_type,
)
def test_a_model_that_asks_for_more_is_refused_in_one_line(config: PreTrainedConfig, says: str) -> None:
    with pytest.raises(UnsupportedModel, match=says) as caught:
        runner_of(tiny(config))
    assert "\n" not in str(caught.value)


def test_a_model_that_computes_something_else_with_its_own_attention_is_refused() -> None:
    model = llama()
    own = model.model.layers[1].self_attn
    forward = own.forward

    def louder(*arguments: Any, **keywords: Any) -> Any:
        factor = 1.0 if own.config._attn_implementation.startswith("headrace") else 1.5
        attended, weights = forward(*arguments, **keywords)
        return attended * factor, weights

    own.forward = louder
    with pytest.raises(UnsupportedModel, match="other logits on paged attention"):
        TransformersRunner(model, ModelLimits(CONTEXT, VOCABULARY, frozenset()), CPU, kv_bytes=2**22)


def test_positions_that_depend_on_the_batch_are_refused_beyond_their_first_length() -> None:
    config = LlamaConfig(
        **SMALL,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 500.0,
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
            "original_max_position_embeddings": 64,
            "factor": 2.0,
        },
    )
    with pytest.raises(UnsupportedModel, match=r"model\.max_context_tokens to 64 or less"):
        runner_of(tiny(config))
    assert runner_of(tiny(config), context=64).limits.context_tokens == 64


def test_a_pool_that_cannot_hold_the_longest_request_is_refused() -> None:
    with pytest.raises(PoolSizeError, match="at least"):
        runner_of(llama(), kv_bytes=10_000)
    bytes_a_token = 2 * 3 * 2 * 8 * 4
    assert runner_of(llama(), kv_bytes=CONTEXT * bytes_a_token).num_blocks == CONTEXT // 16
