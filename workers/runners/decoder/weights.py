"""A decoder's weights out of safetensors, in the order in which the forward wants them.

Knows the names that the families' published weights have, and safetensors. Does not know how they are multiplied.

An embedding model's file may hold the body alone, whose names then lack the `model.` before them.

Read layer by layer: whoever repacks them holds one layer twice, not the model. On the CPU what is read in its own
format is a view of the file, not a copy.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from workers.runners.decoder.family import DecoderShape
from workers.runners.errors import ModelNotFound, first_line

__all__ = ["DecoderWeights", "LayerWeights"]

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_BODY, _FIRST = "model.", "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Of one layer. Products [outputs, inputs]; norms are float32 and hold the family's offset."""

    attention_norm: torch.Tensor
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    qkv: torch.Tensor
    """Queries, keys and values behind one another."""
    qkv_bias: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    """The gate's outputs, then the up projection's."""
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


class DecoderWeights:
    def __init__(self, folder: Path, shape: DecoderShape, dtype: torch.dtype) -> None:
        """Looks at names and shapes only. Raises `ModelNotFound` if some are missing or not as the shape says."""
        self._folder = folder
        self._shape = shape
        self._dtype = dtype
        self._files = self._find_files()
        self._body_alone = f"{_BODY}{_FIRST}" not in self._files and _FIRST in self._files
        self._check()

    def layer(self, number: int) -> LayerWeights:
        shape = self._shape
        with self._reading(f"model.layers.{number}.") as read:

            def together(names: Sequence[str], kind: str) -> torch.Tensor:
                return torch.cat([self._own(read(f"{name}.{kind}")) for name in names])

            qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
            gate_up = ("mlp.gate_proj", "mlp.up_proj")
            return LayerWeights(
                attention_norm=self._norm(read("input_layernorm.weight")),
                query_norm=self._norm(read("self_attn.q_norm.weight")) if shape.head_norm else None,
                key_norm=self._norm(read("self_attn.k_norm.weight")) if shape.head_norm else None,
                qkv=together(qkv, "weight"),
                qkv_bias=together(qkv, "bias") if shape.qkv_bias else None,
                output=self._own(read("self_attn.o_proj.weight")),
                output_bias=self._own(read("self_attn.o_proj.bias")) if shape.output_bias else None,
                mlp_norm=self._norm(read("post_attention_layernorm.weight")),
                gate_up=together(gate_up, "weight"),
                gate_up_bias=together(gate_up, "bias") if shape.mlp_bias else None,
                down=self._own(read("mlp.down_proj.weight")),
                down_bias=self._own(read("mlp.down_proj.bias")) if shape.mlp_bias else None,
            )

    def embedding(self) -> torch.Tensor:
        """[vocabulary, hidden] in the file's own format; on the CPU a view of the file."""
        with self._reading("model.") as read:
            embedding: torch.Tensor = read("embed_tokens.weight")
            return embedding

    def head(self) -> torch.Tensor:
        """[vocabulary, hidden]"""
        with self._reading("") as read:
            return self._own(read("model.embed_tokens.weight" if self._shape.tied else "lm_head.weight"))

    def final_norm(self) -> torch.Tensor:
        with self._reading("model.") as read:
            return self._norm(read("norm.weight"))

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype)

    def _norm(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() + self._shape.norm_offset

    @contextmanager
    def _reading(self, prefix: str) -> Iterator[Any]:
        """A function from the rest of a name to its tensor. Each file is opened once, and closed at the end."""
        opened: dict[Path, Any] = {}

        def read(name: str) -> torch.Tensor:
            stored = self._stored(prefix + name)
            file = self._files[stored]
            if file not in opened:
                opened[file] = safe_open(str(file), framework="pt")
            tensor: torch.Tensor = opened[file].get_tensor(stored)
            return tensor

        yield read

    def _stored(self, name: str) -> str:
        return name.removeprefix(_BODY) if self._body_alone else name

    def _find_files(self) -> dict[str, Path]:
        """The file of each tensor."""
        index = self._folder / _INDEX
        if index.is_file():
            return {name: self._folder / shard for name, shard in json.loads(index.read_bytes())["weight_map"].items()}
        file = self._folder / _ONE_FILE
        with _opened(file) as content:
            return dict.fromkeys(content.keys(), file)

    def _check(self) -> None:
        wanted = {self._stored(name): size for name, size in _shapes(self._shape).items()}
        if missing := sorted(wanted.keys() - self._files.keys()):
            raise ModelNotFound(
                f"{self._folder}: its safetensors lack {len(missing)} tensors of the model (the first: {missing[0]}): "
                "download them again"
            )
        for file in sorted({self._files[name] for name in wanted}):
            with _opened(file) as content:
                inside = set(content.keys())
                for name in (name for name in wanted if self._files[name] == file):
                    if name not in inside:
                        raise ModelNotFound(f"{file} lacks {name}, though the index lists it: download it again")
                    stored = tuple(content.get_slice(name).get_shape())
                    if stored != wanted[name]:
                        raise ModelNotFound(
                            f"{self._folder}: {name} has the shape {[*stored]} in the safetensors and "
                            f"{[*wanted[name]]} by config.json: download the model again"
                        )


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        content = safe_open(str(file), framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelNotFound(f"{file}: damaged weights ({first_line(error)}): download them again") from error
    with content as opened:
        yield opened


def _shapes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    """What the files must hold."""
    hidden, inner, queries, kv = shape.hidden, shape.intermediate, shape.query_rows, shape.kv_rows
    products = {
        "self_attn.q_proj": (queries, hidden, shape.qkv_bias),
        "self_attn.k_proj": (kv, hidden, shape.qkv_bias),
        "self_attn.v_proj": (kv, hidden, shape.qkv_bias),
        "self_attn.o_proj": (hidden, queries, shape.output_bias),
        "mlp.gate_proj": (inner, hidden, shape.mlp_bias),
        "mlp.up_proj": (inner, hidden, shape.mlp_bias),
        "mlp.down_proj": (hidden, inner, shape.mlp_bias),
    }
    wanted: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocabulary, hidden)}
    wanted["model.norm.weight"] = (hidden,)
    if not shape.tied:
        wanted["lm_head.weight"] = (shape.vocabulary, hidden)
    for number in range(shape.layers):
        layer = f"model.layers.{number}."
        for name, (outputs, inputs, bias) in products.items():
            wanted[f"{layer}{name}.weight"] = (outputs, inputs)
            if bias:
                wanted[f"{layer}{name}.bias"] = (outputs,)
        wanted[f"{layer}input_layernorm.weight"] = (hidden,)
        wanted[f"{layer}post_attention_layernorm.weight"] = (hidden,)
        if shape.head_norm:
            wanted[f"{layer}self_attn.q_norm.weight"] = (shape.head_dim,)
            wanted[f"{layer}self_attn.k_norm.weight"] = (shape.head_dim,)
    return wanted
