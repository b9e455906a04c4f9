"""A runner's memory does not grow with its steps: neither Python's objects nor the process. `make memory`."""

import gc
import random
import tracemalloc
from pathlib import Path

import psutil
import pytest
from transformers import LlamaConfig

from tests.integration.models.conftest import PLACEMENT
from tests.workers.models.tiny_models import CONTEXT, VOCABULARY, saved, tiny
from tests.workers.runners.native_kernels import kernels_or_skip
from workers.intake.sampling import GREEDY, SamplingParams
from workers.runners.decoder.family import DecoderShape, describe
from workers.runners.decoder.runner import DecoderRunner
from workers.runners.paged_runner import PagedRunner
from workers.runners.runner import SequenceInput

pytestmark = [pytest.mark.model, pytest.mark.long, pytest.mark.timeout(3600)]

_SEQUENCES = 8
_TRACED = 2_000
"""Steps under tracemalloc, which makes them slow."""
_OBJECTS_BYTES = 64 * 1024
_PROCESS_BYTES = 8 * 2**20
"""What an allocator may keep, whatever the number of steps: a leak of 100 bytes a step would be 10 MB."""


def test_a_hundred_thousand_steps_of_a_tiny_model(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=CONTEXT,
    )
    files = saved(tiny(config), tmp_path / "tiny")
    shape = describe(config)
    assert isinstance(shape, DecoderShape)
    runner = DecoderRunner(files, shape, PLACEMENT, library=kernels_or_skip(), kv_bytes=2**24)
    _assert_flat(runner, 100_000, longest_prompt=40)


def test_five_thousand_steps_of_smollm2(smollm2_runner: PagedRunner) -> None:
    _assert_flat(smollm2_runner, 5_000, longest_prompt=8)


def _assert_flat(runner: PagedRunner, steps: int, longest_prompt: int) -> None:
    draw = random.Random(7)
    process = psutil.Process()
    # Every size that will occur has occurred, and every block was written.
    runner.step(_step(runner, draw, [longest_prompt] * _SEQUENCES))
    _run(runner, draw, steps // 20, longest_prompt)
    tracemalloc.start()
    try:
        _run(runner, draw, min(_TRACED, steps // 5), longest_prompt)
        gc.collect()
        objects_before, _ = tracemalloc.get_traced_memory()
        _run(runner, draw, min(_TRACED, steps // 5), longest_prompt)
        gc.collect()
        objects_after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    process_before = process.memory_info().rss
    _run(runner, draw, steps, longest_prompt)
    process_grown = process.memory_info().rss - process_before
    print(f"{steps} steps: objects {objects_after - objects_before:+} bytes, process {process_grown:+} bytes")
    assert objects_after - objects_before < _OBJECTS_BYTES
    assert process_grown < _PROCESS_BYTES


def _run(runner: PagedRunner, draw: random.Random, steps: int, longest_prompt: int) -> None:
    for _ in range(steps):
        lengths = [draw.choice([1, 1, 1, draw.randint(1, longest_prompt)]) for _ in range(draw.randint(1, _SEQUENCES))]
        runner.step(_step(runner, draw, lengths))


def _step(runner: PagedRunner, draw: random.Random, lengths: list[int]) -> list[SequenceInput]:
    """Each sequence in three blocks of its own."""
    vocabulary = runner.limits.vocabulary
    sequences = []
    for number, length in enumerate(lengths):
        start = draw.randint(0, 2 * runner.block_size - length) if length < runner.block_size else 0
        blocks = range(3 * number, 3 * number + 3)
        sampling = draw.choice([None, GREEDY, SamplingParams(temperature=0.8, top_p=0.9, seed=number)])
        ids = [draw.randrange(vocabulary) for _ in range(length)]
        sequences.append(SequenceInput(ids, start, blocks, sampling))
    return sequences
