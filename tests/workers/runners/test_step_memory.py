"""Measuring what a step takes before the pool is laid out, on a CPU with a meter of the test's own."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from kvcache.sizing import CPU_SHARE, PoolSizeError
from workers.models.devices import Placement
from workers.runners import paged_runner
from workers.runners.packed_step import ForwardOutput, PackedStep
from workers.runners.runner import ModelLimits
from workers.runners.step_memory import PoolProfile, WidestStep, pool_profile
from workers.runners.transformers_runner import TransformersRunner

CPU = Placement(torch.device("cpu"), torch.float32, threads=1)
LIMITS = ModelLimits(128, 97, frozenset({2}))
FREE_BYTES = 2**26
PEAK_BYTES = 2**23
WIDEST = WidestStep(tokens=48, sequences=5)


@dataclass
class Meter:
    """Says that a step takes so much."""

    peak: int = PEAK_BYTES
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """Tokens, rows and blocks of the forwards since the last restart, until the peak was read."""
    measuring: bool = False

    def restart(self) -> None:
        self.measuring = True

    def peak_bytes(self) -> int:
        self.measuring = False
        return self.peak


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=LIMITS.vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LIMITS.context_tokens,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()


@pytest.fixture(autouse=True)
def _little_is_free(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.setattr(paged_runner, "free_memory_bytes", lambda _device: FREE_BYTES)
    yield
    torch.set_num_threads(before)


def runner_of(model: Any, meter: Meter | None, *, kv_bytes: int | None = None) -> TransformersRunner:
    class Measured(TransformersRunner):
        def _forward(self, step: PackedStep) -> ForwardOutput:
            if meter is not None and meter.measuring:
                meter.steps.append((len(step.ids), len(step.rows), self.num_blocks))
            return super()._forward(step)

    profile = None if meter is None else PoolProfile(WIDEST, meter)
    return Measured(copy.deepcopy(model), LIMITS, CPU, kv_bytes=kv_bytes, profile=profile)


def test_the_pool_is_what_the_widest_step_leaves_twice_over(model: Any) -> None:
    meter = Meter()
    runner = runner_of(model, meter)
    block_bytes = runner.storage.statistics().block_bytes
    assert runner.num_blocks == int((FREE_BYTES - 2 * PEAK_BYTES) * CPU_SHARE.fraction) // block_bytes
    ((tokens, rows, blocks),) = meter.steps
    assert (tokens, rows) == (WIDEST.sequences * (WIDEST.tokens // WIDEST.sequences), WIDEST.sequences)
    assert blocks < runner.num_blocks, "measured on the pool itself"


def test_what_was_measured_is_no_step_that_was_served(model: Any) -> None:
    statistics = runner_of(model, Meter()).statistics()
    assert (statistics.steps, statistics.tokens, statistics.sampled) == (0, 0, 0)


def test_a_pool_whose_size_is_configured_is_not_measured_for(model: Any) -> None:
    meter = Meter()
    runner = runner_of(model, meter, kv_bytes=2**22)
    assert meter.steps == []
    assert runner.num_blocks == runner_of(model, None, kv_bytes=2**22).num_blocks


def test_a_step_that_finds_no_memory_is_refused_with_the_remedy(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory for 9 GiB")

    monkeypatch.setattr(TransformersRunner, "_forward", fails)
    with pytest.raises(PoolSizeError, match=r"48 tokens and 5 sequences .*no memory for 9 GiB.*engine\.step_tokens"):
        runner_of(model, Meter())


def test_prompts_of_the_widest_step_are_no_longer_than_the_context() -> None:
    sequences = WidestStep(tokens=4096, sequences=2).sequences_of(LIMITS, 16)
    assert [len(sequence.token_ids) for sequence in sequences] == [128, 128]
    assert [list(sequence.block_ids) for sequence in sequences] == [[*range(8)], [*range(8, 16)]]


def test_nothing_is_measured_on_a_cpu() -> None:
    assert pool_profile(CPU, WIDEST) is None
