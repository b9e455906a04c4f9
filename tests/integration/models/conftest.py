"""The real model, loaded once for all tests of this folder, and its golden outputs."""

import pytest

from tests.golden.smollm2 import Golden, read_golden
from tests.workers.runners.native_kernels import kernels_or_skip
from workers.models.devices import choose_placement
from workers.models.model_config import read_config
from workers.models.model_source import ModelFiles, find_model, prepare_model
from workers.runners.attention.cpu import CpuAttentionKind
from workers.runners.decoder.family import DecoderShape, describe
from workers.runners.decoder.runner import DecoderRunner
from workers.runners.paged_runner import PagedRunner
from workers.runners.runner_choice import load_runner
from workers.runners.transformers_runner import TransformersRunner


@pytest.fixture(scope="session")
def golden() -> Golden:
    return read_golden()


@pytest.fixture(scope="session")
def smollm2_files() -> ModelFiles:
    return prepare_model(find_model("smollm2"))


PLACEMENT = choose_placement("cpu", "float32")
"""The format in which every right engine gives the same tokens."""


@pytest.fixture(scope="session")
def smollm2_runner(smollm2_files: ModelFiles) -> PagedRunner:
    """The one that `serve` takes."""
    return load_runner(smollm2_files, PLACEMENT, kv_bytes=1 << 30)


@pytest.fixture(scope="session", params=["decoder, kernels", "transformers, torch"])
def any_runner(request: pytest.FixtureRequest, smollm2_files: ModelFiles) -> PagedRunner:
    if request.param == "transformers, torch":
        return TransformersRunner.load(smollm2_files, PLACEMENT, kv_bytes=1 << 30)
    kernels_or_skip()
    runner: PagedRunner = request.getfixturevalue("smollm2_runner")
    assert isinstance(runner, DecoderRunner)
    assert runner.native is not None
    return runner


@pytest.fixture(scope="session", params=["decoder, torch", "transformers, kernels"])
def mixed_runner(request: pytest.FixtureRequest, smollm2_files: ModelFiles) -> PagedRunner:
    """The other combinations of a forward and an attention."""
    if request.param == "decoder, torch":
        shape = describe(read_config(smollm2_files.folder))
        assert isinstance(shape, DecoderShape)
        return DecoderRunner(smollm2_files, shape, PLACEMENT, library=None, kv_bytes=1 << 30)
    attention = CpuAttentionKind(kernels_or_skip(), PLACEMENT.threads)
    return TransformersRunner.load(smollm2_files, PLACEMENT, kv_bytes=1 << 30, attention=attention)
