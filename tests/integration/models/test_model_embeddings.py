"""SmolLM2's embeddings are its last hidden state, whatever shares the steps and whoever is suspended."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from scheduling.preemption_rules import PreemptionMode
from tests.golden.smollm2 import Golden
from tests.workers.preemption_rig import check_embeddings
from workers.intake.sampling import GREEDY
from workers.models.model_source import ModelFiles
from workers.runners.paged_runner import PagedRunner
from workers.runners.runner import SequenceInput

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(smollm2_files: ModelFiles) -> Any:
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    return from_pretrained(str(smollm2_files.folder), dtype=torch.float32, local_files_only=True).eval()


def test_an_embedding_is_the_last_hidden_state_of_transformers(
    any_runner: PagedRunner, model: Any, golden: Golden
) -> None:
    """Behind the last norm, at the last token; the prompt in pieces, beside prompts that sample."""
    assert any_runner.limits.embedding_size == 576
    cases = [case for case in golden.cases if len(case.prompt) > 1]
    for case, beside in zip(cases[:12:3], cases[1:13:3], strict=True):
        text, other = case.prompt, beside.prompt
        cut, blocks = len(text) // 2, -(-len(text) // any_runner.block_size)
        own, others = range(blocks), range(blocks, blocks + -(-len(other) // any_runner.block_size))
        any_runner.step([SequenceInput(text[:cut], 0, own, None)])
        any_runner.step(
            [SequenceInput(other, 0, others, GREEDY), SequenceInput(text[cut:], cut, own, None, embed=True)]
        )
        got = any_runner.take_embeddings()[1]
        with torch.inference_mode():
            states = model(torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states
        want = states[-1][0, -1].numpy()
        np.testing.assert_allclose(got / np.linalg.norm(got), want / np.linalg.norm(want), atol=1e-4)
        np.testing.assert_allclose(got, want, atol=1e-4 * float(np.abs(want).max()))


def test_a_crowd_that_is_suspended_is_embedded_all_the_same(smollm2_runner: PagedRunner, model: Any) -> None:
    vocabulary = smollm2_runner.limits.vocabulary
    storage = smollm2_runner.storage
    check_embeddings(smollm2_runner, storage, model, vocabulary, PreemptionMode.AUTO, swap_places=8)
