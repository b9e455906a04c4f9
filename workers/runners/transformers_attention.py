"""Our attention, behind transformers' attention interface; and what a model asks of attention, found by asking it.

Knows how transformers' model code calls attention. Does not know how attention is computed
(`workers.runners.attention`).

transformers looks the function up by name and hands all keyword arguments of the model's `forward` on to it; so the
step's `AttentionStep` travels as the argument `paged`, and nothing is global. No mask function is registered under
the name, on purpose: transformers then makes no mask at all, which would have been one of (tokens × tokens).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from workers.runners.attention.backend import AttentionStep
from workers.runners.errors import UnsupportedModel

__all__ = ["PAGED", "AttentionGeometry", "probe_attention"]

PAGED = "headrace_paged"
_PROBE = "headrace_probe"

_UNSUPPORTED_ARGUMENTS = {
    "softcap": "capped attention scores",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "position_bias": "a position bias",
    "attention_bias": "an attention bias",
    "alibi": "a position bias",
    "head_mask": "a head mask",
    "indices": "sparse attention",
}
"""What some models hand to attention and ours would leave out."""


@dataclass(frozen=True, slots=True)
class AttentionGeometry:
    """The same in all layers; a model where it is not is refused."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    """A layer each: its sliding window in tokens."""


def probe_attention(model: PreTrainedModel) -> AttentionGeometry:
    """Find out by one tiny forward what each layer hands to attention; leaves the model set to `PAGED`.

    A configuration file says the same in as many ways as there are families. Raises `UnsupportedModel`.
    """
    kind = f"{type(model).__name__}"
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedModel(f"{kind} doesn't use transformers' attention interface: use another model")
    model.set_attn_implementation(_PROBE)
    calls: list[_Call] = []
    ids = torch.arange(3, device=model.device)[None]
    with torch.inference_mode():
        model(input_ids=ids, position_ids=ids, use_cache=False, paged_probe=calls)
    model.set_attn_implementation(PAGED)
    return _geometry(kind, calls)


@dataclass(frozen=True, slots=True)
class _Call:
    layer: int | None
    causal: bool
    masked: bool
    shape: tuple[int, int, int, int]
    """heads, kv_heads, head_dim of the keys, of the values."""
    window: int | None
    extra: tuple[str, ...]
    """Names of the arguments that are given and that we don't know."""


def _geometry(kind: str, calls: Sequence[_Call]) -> AttentionGeometry:
    for call in calls:
        for name in call.extra:
            if name in _UNSUPPORTED_ARGUMENTS:
                raise UnsupportedModel(
                    f"{kind} wants {_UNSUPPORTED_ARGUMENTS[name]} ({name}), which this runner doesn't compute: use "
                    "another model"
                )
        if call.masked or not call.causal:
            raise UnsupportedModel(f"{kind} has attention that is not plainly causal: use another model")
    layers = [call.layer for call in calls]
    if not calls or layers != [*range(len(calls))]:
        raise UnsupportedModel(
            f"{kind} has layers without attention, or hands no arguments through to it (attention was called for "
            f"layers {layers}): use another model"
        )
    shapes = {call.shape for call in calls}
    heads, kv_heads, head_dim, value_dim = next(iter(shapes))
    if len(shapes) > 1 or head_dim != value_dim or heads % kv_heads:
        raise UnsupportedModel(
            f"{kind} has heads of several shapes (heads, KV heads, key and value size: {sorted(shapes)}): use another "
            "model"
        )
    return AttentionGeometry(len(calls), heads, kv_heads, head_dim, tuple(call.window for call in calls))


def _attend_paged(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    paged: AttentionStep,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_others: object,
) -> tuple[torch.Tensor, None]:
    """`query`, `key`, `value`: [1, heads, tokens, head_dim], position embedding applied."""
    layer: Any = module.layer_idx
    paged.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
    attended = paged.attend(
        layer,
        query[0].transpose(0, 1),
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
    )
    return attended[None], None


def _record_call(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged_probe: list[_Call] | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """In the place of attention: note what was asked, answer zeros. Not handed the list, it leaves it empty."""
    if paged_probe is not None:
        paged_probe.append(
            _Call(
                layer=getattr(module, "layer_idx", None),
                causal=bool(getattr(module, "is_causal", True) if is_causal is None else is_causal),
                masked=attention_mask is not None,
                shape=(query.shape[1], key.shape[1], key.shape[-1], value.shape[-1]),
                window=sliding_window,
                extra=tuple(sorted(name for name, value in others.items() if value is not None)),
            )
        )
    shape = (query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
    return torch.zeros(shape, dtype=query.dtype, device=query.device), None


AttentionInterface.register(PAGED, _attend_paged)
AttentionInterface.register(_PROBE, _record_call)
