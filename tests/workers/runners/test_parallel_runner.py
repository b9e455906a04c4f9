"""Two processes, one model: the same tokens as one process gives, and neither outlives the other."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedConfig

from kvcache.swap_plan import BlockCopy, Direction
from workers.intake.sampling import GREEDY, SamplingParams
from workers.models.devices import Placement
from workers.models.model_source import ModelFiles
from workers.models.model_weights import load_weights
from workers.runners.errors import DeviceLost, NotFiniteLogits, UnsupportedModel
from workers.runners.paged_runner import PagedRunner
from workers.runners.parallel_runner import ParallelRunner, load_parallel, parallel_swap, rank_placement
from workers.runners.rank_group import RankGroup
from workers.runners.runner import ModelLimits, SequenceInput
from workers.runners.swap_space import make_swap_pool
from workers.runners.transformers_runner import TransformersRunner

CPU = Placement(torch.device("cpu"), torch.float32, threads=2)
LIMITS = ModelLimits(128, 97, frozenset())
PATIENCE_S = 60.0
SPOILED = 50
"""A token whose embedding is no number."""


def saved(folder: Path, config: PreTrainedConfig) -> ModelFiles:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
        model.get_input_embeddings().weight[SPOILED] = float("nan")
    model.save_pretrained(folder)
    return ModelFiles("tiny", folder, LIMITS)


LLAMA = LlamaConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return saved(tmp_path_factory.mktemp("model"), LLAMA)


@pytest.fixture(scope="module")
def pair(files: ModelFiles) -> Iterator[ParallelRunner]:
    threads = torch.get_num_threads()
    runner = load_parallel(files, CPU, 2, kv_bytes=2**20)
    yield runner
    ranks(runner).close()
    torch.set_num_threads(threads)


def ranks(runner: PagedRunner) -> RankGroup:
    assert runner.group is not None
    return runner.group


def complete(runner: PagedRunner, sampling: SamplingParams) -> list[list[int]]:
    """Three prompts, each in two pieces, then nine tokens each."""
    texts = [[5, 6, 7, 8, 9], [9, 3], [*range(11, 45)]]
    lengths = [len(text) for text in texts]
    tables = [[7, 1], [4, 9], [0, 3, 8]]
    runner.step([SequenceInput(text[:1], 0, table, None) for text, table in zip(texts, tables, strict=True)])
    done = [1] * 3
    for position in range(9):
        step = [
            SequenceInput(text[start:], start, table, sampling, position, text)
            for text, start, table in zip(texts, done, tables, strict=True)
        ]
        done = [len(text) for text in texts]
        for text, token in zip(texts, runner.step(step), strict=True):
            assert token is not None
            text.append(token)
    return [text[length:] for text, length in zip(texts, lengths, strict=True)]


def logprobs_of(runner: PagedRunner, sequence: SequenceInput) -> list[float]:
    """Of the whole vocabulary."""
    runner.step([replace(sequence, sampling=SamplingParams(temperature=0.0, logprobs=97))])
    return [value for _, value in sorted(runner.take_logprobs()[0].alternatives)]


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(seed=3, top_p=0.9, presence_penalty=0.5)], ids=str)
def test_two_ranks_give_the_tokens_of_one(files: ModelFiles, pair: ParallelRunner, sampling: SamplingParams) -> None:
    alone = TransformersRunner(load_weights(files, CPU), LIMITS, CPU, kv_bytes=2**20)
    assert complete(pair, sampling) == complete(alone, sampling)
    # Each has half of the heads, so half of a block's bytes: the same budget holds twice as many.
    assert pair.num_blocks // 2 == alone.num_blocks


def test_blocks_swapped_out_and_in_elsewhere_are_the_same_on_every_rank(pair: ParallelRunner) -> None:
    pool = make_swap_pool(pair.storage, 2**19, lambda: 0.0)
    assert pool is not None
    swapper = parallel_swap(pool, ranks(pair)).swapper
    text = [3 * i % 40 for i in range(30)]
    pair.step([SequenceInput(text[:29], 0, [2, 5], None)])
    want = logprobs_of(pair, SequenceInput(text[29:], 29, [2, 5], GREEDY))
    swapper.copy([BlockCopy(Direction.OUT, (2, 5), (1, 0)), BlockCopy(Direction.IN, (11, 6), (1, 0))])
    got = logprobs_of(pair, SequenceInput(text[29:], 29, [11, 6], GREEDY))
    assert got == pytest.approx(want, abs=1e-6)
    assert len(swapper.take_timings()) == 2


def test_two_ranks_embed_as_one_does(files: ModelFiles, pair: ParallelRunner) -> None:
    """In two pieces, beside somebody who samples."""
    alone = TransformersRunner(load_weights(files, CPU), LIMITS, CPU, kv_bytes=2**20)
    text = [*range(11, 45)]
    got = []
    for runner in (alone, pair):
        runner.step([SequenceInput(text[:20], 0, [0, 3, 8], None)])
        runner.step([SequenceInput([1, 2], 0, [5], GREEDY), SequenceInput(text[20:], 20, [0, 3, 8], None, embed=True)])
        embeddings = runner.take_embeddings()
        assert list(embeddings) == [1]
        got.append(embeddings[1])
    assert got[1].shape == (32,)
    assert got[1] == pytest.approx(got[0], abs=1e-5)


def test_values_that_are_no_numbers_are_found_and_scrubbed_on_every_rank(pair: ParallelRunner) -> None:
    good = SequenceInput([1, 2, 3], 0, [2], GREEDY)
    want = pair.step([good])
    with pytest.raises(NotFiniteLogits) as caught:
        pair.step([good, SequenceInput([6, SPOILED], 0, [1], GREEDY)])
    assert (caught.value.sequences, caught.value.blocks) == ((1,), (1,))
    assert pair.step([SequenceInput([1, 2, 3], 0, [1], GREEDY)]) == want


def test_a_follower_that_dies_ends_the_group(files: ModelFiles, pair: ParallelRunner) -> None:
    """The last one of the pair."""
    assert not ranks(pair).wait_lost(0.0)
    (follower,) = ranks(pair).process_ids
    os.kill(follower, signal.SIGKILL)
    assert ranks(pair).wait_lost(PATIENCE_S)
    with pytest.raises(DeviceLost, match=r"rank 1 of 2 is gone|the ranks lost each other"):
        pair.step([SequenceInput([1, 2, 3], 0, [2], GREEDY)])


def test_no_follower_outlives_a_rank_0_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.workers.runners.idle_rank"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as rank_0:
        assert rank_0.stdout is not None
        follower = psutil.Process(int(rank_0.stdout.readline()))
        rank_0.kill()
        follower.wait(PATIENCE_S)


def test_what_cannot_be_divided_is_refused_before_anything_is_loaded(files: ModelFiles, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"2 KV heads can't be divided among 3 ranks.*among \[1, 2\]"):
        load_parallel(files, CPU, 3)
    other = saved(tmp_path, GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=128))
    with pytest.raises(UnsupportedModel, match="no tensor-parallel plan"):
        load_parallel(other, CPU, 2)


def test_gpus_in_a_row_and_a_cpus_threads_divided() -> None:
    gpu = Placement(torch.device("cuda", 4), torch.bfloat16, threads=8)
    assert [rank_placement(gpu, rank, 2).device.index for rank in range(2)] == [4, 5]
    assert rank_placement(CPU, 1, 2).threads == 1
