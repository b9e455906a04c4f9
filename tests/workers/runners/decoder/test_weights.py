from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from tests.workers.models.tiny_models import saved, tiny
from tests.workers.runners.decoder.test_families import SMALL
from workers.runners.decoder.family import DecoderShape, describe
from workers.runners.decoder.weights import DecoderWeights
from workers.runners.errors import ModelNotFound

CONFIG = LlamaConfig(**SMALL)


def shape_of(config: LlamaConfig = CONFIG) -> DecoderShape:
    shape = describe(config)
    assert isinstance(shape, DecoderShape)
    return shape


def test_weights_in_several_files_are_those_of_one(tmp_path: Path) -> None:
    model = tiny(CONFIG)
    saved(model, tmp_path / "one")
    saved(model, tmp_path / "several", shard_size="20KB")
    assert len([*(tmp_path / "several").glob("*.safetensors")]) > 3
    one, several = (DecoderWeights(tmp_path / kind, shape_of(), torch.float32) for kind in ("one", "several"))
    assert torch.equal(one.layer(2).gate_up, several.layer(2).gate_up)
    assert torch.equal(one.embedding(), several.embedding())
    assert torch.equal(one.layer(0).qkv[-32:], model.model.layers[0].self_attn.v_proj.weight)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    saved(tiny(CONFIG), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file)
    with pytest.raises(ModelNotFound, match=r"lack 1 tensors .*model\.layers\.1\.mlp\.up_proj\.weight"):
        DecoderWeights(tmp_path, shape_of(), torch.float32)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    saved(tiny(CONFIG), tmp_path)
    other = shape_of(LlamaConfig(**SMALL | {"intermediate_size": 64}))
    with pytest.raises(ModelNotFound, match=r"gate_proj\.weight has the shape \[56, 40\] .* \[64, 40\] by config"):
        DecoderWeights(tmp_path, other, torch.float32)


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    saved(tiny(CONFIG), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all")
    with pytest.raises(ModelNotFound, match="damaged"):
        DecoderWeights(tmp_path, shape_of(), torch.float32)


def test_a_file_with_the_body_alone_is_read_by_its_own_names(tmp_path: Path) -> None:
    """As embedding models are published."""
    config = LlamaConfig(**SMALL, tie_word_embeddings=True)
    model = tiny(config)
    saved(model, tmp_path / "whole")
    model.model.save_pretrained(tmp_path / "body")
    assert "layers.0.mlp.up_proj.weight" in load_file(tmp_path / "body" / "model.safetensors")
    whole, body = (DecoderWeights(tmp_path / kind, shape_of(config), torch.float32) for kind in ("whole", "body"))
    assert torch.equal(whole.layer(2).gate_up, body.layer(2).gate_up)
    assert torch.equal(whole.head(), body.head())
    assert torch.equal(whole.final_norm(), body.final_norm())
