"""SmolLM2's embeddings are its last hidden state, whatever shares the steps and whoever is suspended."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from scheduling.preemption_rules import PreemptionMode
from tests.golden.smollm2 import Golden
from tests.workers.engine.preemption_rig import check_embeddings
from tests.workers.runners.native_kernels import kernels_or_skip
from workers.intake.sampling import GREEDY
from workers.models.devices import choose_placement
from workers.models.model_config import read_config
from workers.models.model_source import ModelFiles
from workers.runners.decoder.family import DecoderShape, describe
from workers.runners.decoder.runner import DecoderRunner
from workers.runners.paged_runner import PagedRunner
from workers.runners.runner import SequenceInput

pytestmark = pytest.mark.model


SOME_LAYERS = 5


@pytest.fixture
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


def test_a_crowd_that_is_suspended_is_embedded_all_the_same(smollm2_files: ModelFiles, model: Any) -> None:
    """By the compiled kernels; the first layers of the model, for the whole takes long."""
    shape = describe(read_config(smollm2_files.folder))
    assert isinstance(shape, DecoderShape)
    runner = DecoderRunner(
        smollm2_files,
        replace(shape, layers=SOME_LAYERS),
        choose_placement("cpu", "float32"),
        library=kernels_or_skip(),
        kv_bytes=1 << 28,
    )
    model.model.layers = model.model.layers[:SOME_LAYERS]
    vocabulary = runner.limits.vocabulary
    check_embeddings(runner, runner.storage, model, vocabulary, PreemptionMode.AUTO, swap_places=8)
