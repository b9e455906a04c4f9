"""The forward in plain torch: any device, any attention backend, and the oracle for the compiled one.

Knows torch's operations. Does not know sequences, blocks or sampling.
"""

from dataclasses import fields
from typing import Any

import torch
from torch.nn import functional

from workers.models.devices import Placement
from workers.runners.attention.backend import AttentionStep
from workers.runners.decoder.family import DecoderShape
from workers.runners.decoder.rotary import RotaryTable
from workers.runners.decoder.weights import DecoderWeights, LayerWeights

__all__ = ["TorchForward"]


class TorchForward:
    def __init__(self, shape: DecoderShape, weights: DecoderWeights, rotary: RotaryTable, placement: Placement) -> None:
        self._shape = shape
        self._rotary = rotary
        self._device = placement.device
        self._dtype = placement.dtype
        # transformers keeps the factor in the model's own format, rounding included.
        self._embedding_scale = torch.tensor(shape.embedding_scale, dtype=self._dtype, device=self._device)
        self._embedding = self._placed(weights.embedding())
        self._head = self._embedding if shape.tied else self._placed(weights.head())
        self._final_norm = self._placed(weights.final_norm())
        self._layers = [self._layer(weights.layer(number)) for number in range(shape.layers)]

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, attention: AttentionStep
    ) -> torch.Tensor:
        """`ids`, `positions` [tokens], `rows` [samples] on the device. Returns logits [samples, vocabulary]."""
        return self.head(self.hidden(ids, positions, rows, attention))

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """[samples, hidden] → logits [samples, vocabulary]"""
        return functional.linear(hidden, self._head)

    def hidden(
        self, ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, attention: AttentionStep
    ) -> torch.Tensor:
        """As above, but what the output head multiplies: [rows, hidden] behind the last norm."""
        x = functional.embedding(ids, self._embedding)
        if self._shape.embedding_scale != 1.0:
            x = x * self._embedding_scale
        cosine, sine = (table[positions][:, None].to(self._dtype) for table in (self._rotary.cosine, self._rotary.sine))
        for number, weights in enumerate(self._layers):
            x = x + self._attend(number, weights, x, cosine, sine, attention)
            x = x + self._feed_forward(weights, x)
        return self._norm(x[rows], self._final_norm)

    def _attend(
        self,
        number: int,
        weights: LayerWeights,
        x: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        attention: AttentionStep,
    ) -> torch.Tensor:
        shape = self._shape
        qkv = functional.linear(self._norm(x, weights.attention_norm), weights.qkv, weights.qkv_bias)
        heads = qkv.view(len(x), shape.heads + 2 * shape.kv_heads, shape.head_dim)
        query, key, value = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        if weights.query_norm is not None and weights.key_norm is not None:
            query, key = self._norm(query, weights.query_norm), self._norm(key, weights.key_norm)
        if shape.rotary[number]:
            query, key = _rotate(query, cosine, sine), _rotate(key, cosine, sine)
        attention.write(number, key, value)
        attended = attention.attend(number, query, scaling=shape.scaling, window=shape.windows[number])
        return functional.linear(attended.view(len(x), shape.query_rows), weights.output, weights.output_bias)

    def _feed_forward(self, weights: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        gate_up = functional.linear(self._norm(x, weights.mlp_norm), weights.gate_up, weights.gate_up_bias)
        gate, up = gate_up.chunk(2, dim=-1)
        if self._shape.activation == "silu":
            activated = functional.silu(gate)
        else:
            activated = functional.gelu(gate, approximate="tanh")
        return functional.linear(activated * up, weights.down, weights.down_bias)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self._shape.norm_epsilon)

    def _layer(self, read: LayerWeights) -> LayerWeights:
        tensors = {field.name: getattr(read, field.name) for field in fields(read)}
        placed: dict[str, Any] = {name: None if own is None else self._placed(own) for name, own in tensors.items()}
        return LayerWeights(**placed)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, self._dtype)


def _rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """`heads` [tokens, heads, head_dim]; pairs are (i, i + head_dim ÷ 2)."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
