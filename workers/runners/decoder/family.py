"""The families that the lean forward computes, each as what distinguishes it from plain Llama.

Knows transformers' configuration classes. Does not know weights or arithmetic.

All of them are: embedding; layers of RMS norm, attention with rotary position embedding and grouped KV heads, RMS
norm, gated MLP; RMS norm; output head. A family says in one line what it adds; a model's own numbers come from its
configuration. What asks for anything beyond this is not described, and runs on transformers' code instead.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedConfig

__all__ = ["FAMILIES", "DecoderFamily", "DecoderShape", "NotDescribed", "describe"]

Activation = Literal["silu", "gelu_pytorch_tanh"]


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """What a family adds. A text is the name of the configuration field that decides."""

    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    head_norm: bool = False
    """Query and key heads are normed before the rotation."""
    norm_offset: float = 0.0
    """Added to the stored norm weights."""
    scaled_embedding: bool = False
    """Embedded tokens are multiplied by √hidden."""
    activation_field: str = "hidden_act"


FAMILIES = {
    "llama": DecoderFamily(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"),
    "mistral": DecoderFamily(),
    "qwen2": DecoderFamily(qkv_bias=True),
    "qwen3": DecoderFamily(qkv_bias="attention_bias", output_bias="attention_bias", head_norm=True),
    "smollm3": DecoderFamily(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"),
    "gemma": DecoderFamily(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        norm_offset=1.0,
        scaled_embedding=True,
        activation_field="hidden_activation",
    ),
}
"""By transformers' `model_type`."""

_ROPE_TYPES = frozenset({"default", "linear", "dynamic", "llama3", "yarn"})


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A model of one of the families: all that decides its arithmetic but the weights and the rotation's angles."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    norm_epsilon: float
    norm_offset: float
    embedding_scale: float
    activation: Activation
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_norm: bool
    tied: bool
    """The output head is the embedding."""
    windows: tuple[int | None, ...]
    """A layer each: tokens that one sees, itself included; None: all."""
    rotary: tuple[bool, ...]
    """A layer each: whether it has a position embedding."""

    @property
    def scaling(self) -> float:
        """Of attention scores."""
        return 1 / math.sqrt(self.head_dim)

    @property
    def query_rows(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        """Of the keys, and of the values."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class NotDescribed:
    """An expected answer: this model is not of one of the families."""

    reason: str


def describe(config: PreTrainedConfig) -> DecoderShape | NotDescribed:
    """What the forward must compute for this configuration, or why it can't."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        return NotDescribed(f"{config.model_type} is not one of {', '.join(FAMILIES)}")
    own: Any = config
    if getattr(own, "quantization_config", None) is not None:
        return NotDescribed("its weights are quantised")
    activation = getattr(own, family.activation_field, None) or own.hidden_act
    if activation not in ("silu", "gelu_pytorch_tanh"):
        return NotDescribed(f"its activation is {activation}")
    rope = own.rope_parameters or {}
    if rope.get("rope_type", "default") not in _ROPE_TYPES or rope.get("partial_rotary_factor", 1.0) != 1.0:
        return NotDescribed(f"its position embedding is {rope}")

    def flag(stated: bool | str) -> bool:
        return bool(getattr(own, stated)) if isinstance(stated, str) else stated

    layers = own.num_hidden_layers
    head_dim = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
    return DecoderShape(
        layers=layers,
        hidden=own.hidden_size,
        intermediate=own.intermediate_size,
        heads=own.num_attention_heads,
        kv_heads=own.num_key_value_heads,
        head_dim=head_dim,
        vocabulary=own.vocab_size,
        norm_epsilon=own.rms_norm_eps,
        norm_offset=family.norm_offset,
        embedding_scale=own.hidden_size**0.5 if family.scaled_embedding else 1.0,
        activation=activation,
        qkv_bias=flag(family.qkv_bias),
        output_bias=flag(family.output_bias),
        mlp_bias=flag(family.mlp_bias),
        head_norm=family.head_norm,
        tied=bool(own.tie_word_embeddings),
        windows=_windows(own, layers),
        rotary=tuple(bool(rotary) for rotary in getattr(own, "no_rope_layers", None) or [True] * layers),
    )


def _windows(config: Any, layers: int) -> tuple[int | None, ...]:
    """`layer_types` says which layers slide; where it is absent, all do if there is a window."""
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
