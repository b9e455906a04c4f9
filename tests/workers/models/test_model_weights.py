from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from workers.models.devices import Placement
from workers.models.model_source import ModelFiles, find_model, prepare_model
from workers.models.model_weights import load_weights
from workers.runners.errors import ModelNotFound
from workers.runners.transformers_runner import TransformersRunner

CPU = Placement(torch.device("cpu"), torch.float32, threads=torch.get_num_threads())


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    folder = tmp_path / "tiny-llama"
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return prepare_model(find_model(str(folder)))


def test_weights_come_in_the_asked_format_ready_to_run(files: ModelFiles) -> None:
    model = load_weights(files, Placement(torch.device("cpu"), torch.bfloat16, threads=1))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model.training


def test_a_missing_tensor_is_an_error_and_not_a_random_one(files: ModelFiles) -> None:
    file = files.folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelNotFound, match=r"lack 1 tensors .*model\.layers\.1\.mlp\.up_proj\.weight"):
        load_weights(files, CPU)


def test_a_tensor_of_another_shape_is_named(files: ModelFiles) -> None:
    file = files.folder / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = torch.zeros(11, 32)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelNotFound, match=r"tiny-llama: lm_head\.weight has the shape \[11, 32\] .* \[97, 32\]"):
        load_weights(files, CPU)


def test_damaged_weights_are_named(files: ModelFiles) -> None:
    file = files.folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelNotFound, match=r"tiny-llama: damaged weights .* download them again") as caught:
        load_weights(files, CPU)
    assert "\n" not in str(caught.value)


def test_a_runner_is_loaded_from_files_with_a_lower_context(files: ModelFiles) -> None:
    lines: list[str] = []
    runner = TransformersRunner.load(files, CPU, kv_bytes=2**20, max_context_tokens=50, on_progress=lines.append)
    assert runner.limits.context_tokens == 50
    assert lines == [f"Loading tiny-llama on cpu, float32, {CPU.threads} threads"]
    assert TransformersRunner.load(files, CPU, kv_bytes=2**20, max_context_tokens=5000).limits.context_tokens == 128
