"""Recorded decodes: padding and filling, with a recording that computes anew each time (CUDA's own needs a GPU)."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import GemmaConfig, LlamaConfig, PreTrainedConfig

from tests.workers.models.tiny_models import saved, texts, tiny
from tests.workers.runners.attention.plain_flash import PLAIN, plain_kernel
from tests.workers.runners.decoder.test_families import SMALL, random_steps
from workers.intake.sampling import GREEDY
from workers.models.devices import Placement
from workers.runners.attention.flash import FlashAttentionKind
from workers.runners.decoder.decode_graphs import bucket_for, decode_buckets
from workers.runners.decoder.family import DecoderShape, describe
from workers.runners.decoder.runner import DecoderRunner
from workers.runners.runner import SequenceInput

CPU = Placement(torch.device("cpu"), torch.float32, threads=1)


def runner_of(config: PreTrainedConfig, folder: Path) -> DecoderRunner:
    shape = describe(config)
    assert isinstance(shape, DecoderShape)
    flash = FlashAttentionKind(PLAIN, plain_kernel)
    return DecoderRunner(saved(tiny(config), folder), shape, CPU, library=None, flash=flash, kv_bytes=2**23)


@pytest.mark.parametrize(
    "config", [LlamaConfig(**SMALL), GemmaConfig(**SMALL, pad_token_id=0)], ids=lambda config: str(config.model_type)
)
def test_logits_on_flash_tables_are_those_of_transformers(config: PreTrainedConfig, tmp_path: Path) -> None:
    model, runner = tiny(config), runner_of(config, tmp_path)
    assert runner.attention_name == "flash (plain torch)"
    prompts = texts((1, 31, 32, 33, 70, 130))
    with torch.inference_mode():
        want = [model(torch.tensor([text]), use_cache=False).logits[0] for text in prompts]
    for (sequence, position), got in random_steps(runner, prompts, seed=2):
        scale = float(want[sequence][position].abs().max())
        torch.testing.assert_close(got / scale, want[sequence][position] / scale, atol=1e-4, rtol=0)


def test_recorded_decodes_give_the_same_logits_and_write_the_same_kv(tmp_path: Path) -> None:
    replays = 0

    def capture(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        def replay() -> torch.Tensor:
            nonlocal replays
            replays += 1
            return run()

        return replay

    plain, recorded = runner_of(LlamaConfig(**SMALL), tmp_path), runner_of(LlamaConfig(**SMALL), tmp_path)
    recorded.record_decodes(6, capture)
    prompts = texts((3, 40, 65, 9, 33, 1, 20))
    tables = [range(4 * s + 1, 4 * s + 5) for s in range(7)]
    prefill = [
        SequenceInput(text[:-1], 0, table, None) for text, table in zip(prompts, tables, strict=True) if text[:-1]
    ]
    for runner in (plain, recorded):
        runner.logits(prefill)
    assert replays == 0, "prompts are computed as they are"
    for count in (1, 3, 5, 6):
        step = [
            SequenceInput([text[-1]], len(text) - 1, table, GREEDY)
            for text, table in zip(prompts[:count], tables, strict=False)
        ]
        torch.testing.assert_close(recorded.logits(step), plain.logits(step), atol=1e-5, rtol=1e-5)
    assert replays == 4
    torch.testing.assert_close(recorded.storage.blocks[1:29], plain.storage.blocks[1:29], atol=1e-5, rtol=1e-5)
    step = [
        SequenceInput([text[-1]], len(text) - 1, table, GREEDY) for text, table in zip(prompts, tables, strict=True)
    ]
    torch.testing.assert_close(recorded.logits(step), plain.logits(step), atol=1e-5, rtol=1e-5)
    assert replays == 4, "seven are more than any bucket holds"
    step = [
        SequenceInput([text[-1]], len(text) - 1, table, None, embed=True)
        for text, table in zip(prompts[:3], tables[:3], strict=True)
    ]
    hidden = recorded.forward(step).hidden
    assert hidden is not None
    torch.testing.assert_close(hidden, plain.forward(step).hidden, atol=1e-5, rtol=1e-5)
    assert replays == 4, "a recorded step hands out no hidden states"


def test_buckets_reach_the_most_and_waste_little() -> None:
    assert decode_buckets(1) == (1,)
    assert decode_buckets(64) == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert decode_buckets(50) == (1, 2, 4, 8, 16, 24, 32, 48, 50)
    for count in range(1, 65):
        bucket = bucket_for(count, decode_buckets(64))
        assert bucket is not None
        assert count <= bucket < 2 * count + 1
    assert bucket_for(65, decode_buckets(64)) is None
