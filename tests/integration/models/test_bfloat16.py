"""bfloat16 against float32 on the real model: teacher-forced, for strings diverge in bfloat16 everywhere.

On the configuration that `serve` takes for bfloat16 on this machine, and so `bench engine` with it.
"""

from dataclasses import replace

import pytest
import torch

from tests.golden.smollm2 import Golden
from tests.integration.models.conftest import PLACEMENT
from workers.intake.sampling import GREEDY
from workers.models.model_source import ModelFiles
from workers.runners.paged_runner import PagedRunner
from workers.runners.runner import SequenceInput
from workers.runners.runner_choice import load_runner

pytestmark = pytest.mark.model

CASES = 12
POSITIONS = 24


@pytest.fixture(scope="module")
def bfloat16_runner(smollm2_files: ModelFiles) -> PagedRunner:
    return load_runner(smollm2_files, replace(PLACEMENT, dtype=torch.bfloat16), kv_bytes=1 << 28)


def forced(runner: PagedRunner, golden: Golden) -> torch.Tensor:
    """Log probabilities [cases × positions, vocabulary] of what follows each part of the golden texts."""
    texts = [[*case.prompt, *case.output[:POSITIONS]] for case in golden.cases if len(case.output) >= POSITIONS][:CASES]
    assert len(texts) == CASES
    blocks = iter(range(runner.num_blocks))
    tables = [[next(blocks) for _ in range(-(-len(text) // runner.block_size))] for text in texts]
    done = [0] * CASES
    found = []
    for left in range(POSITIONS, 0, -1):
        ends = [len(text) - left for text in texts]
        step = [
            SequenceInput(text[start:end], start, table, GREEDY)
            for text, start, end, table in zip(texts, done, ends, tables, strict=True)
        ]
        found.append(runner.logits(step).float().log_softmax(dim=-1))
        done = ends
    return torch.cat(found)


def test_bfloat16_says_nearly_what_float32_says(
    smollm2_runner: PagedRunner, bfloat16_runner: PagedRunner, golden: Golden
) -> None:
    want, got = forced(smollm2_runner, golden), forced(bfloat16_runner, golden)
    divergence = (want.exp() * (want - got)).sum(dim=-1)
    agreeing = (want.argmax(dim=-1) == got.argmax(dim=-1)).float().mean()
    print(f"mean KL {divergence.mean():.5f}, top-1 {agreeing:.1%} of {len(want)} positions")
    assert divergence.mean() <= 0.005
    assert agreeing >= 0.95
