"""The real model, loaded once for all tests of this folder, and its golden outputs."""

import pytest

from tests.golden.smollm2 import Golden, read_golden
from workers.devices import choose_placement
from workers.model_source import ModelFiles, find_model, prepare_model
from workers.transformers_runner import TransformersRunner


@pytest.fixture(scope="session")
def golden() -> Golden:
    return read_golden()


@pytest.fixture(scope="session")
def smollm2_files() -> ModelFiles:
    return prepare_model(find_model("smollm2"))


@pytest.fixture(scope="session")
def smollm2_runner(smollm2_files: ModelFiles) -> TransformersRunner:
    """In float32, the format in which every right engine gives the same tokens."""
    return TransformersRunner.load(smollm2_files, choose_placement("cpu", "float32"), kv_bytes=1 << 30)
