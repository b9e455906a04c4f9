"""The forward as one call into the compiled kernels (`workers/runners/native/decoder.c`), for CPUs.

Knows the kernels' structures and who owns the memory behind them. Does not know sequences, blocks or sampling.

Weights are held once, packed into panels; the embedding stays a view of its file, of which only the rows of tokens
that occur are ever read. Activations are float32 whatever the weights' format is, in buffers that grow to the largest
step and are never given back.
"""

from dataclasses import dataclass

import numpy as np
import torch

from workers.runners.attention.cpu import CpuAttention, CpuStep, item_tokens
from workers.runners.decoder.family import DecoderShape
from workers.runners.decoder.rotary import RotaryTable
from workers.runners.decoder.weights import DecoderWeights, LayerWeights
from workers.runners.native.library import (
    STAGES,
    BufferPointers,
    DecoderPointers,
    LayerPointers,
    LinearPointers,
    NativeLibrary,
    StepPointers,
    pointer,
)

__all__ = ["ForwardSize", "NativeForward", "NativeForwardStatistics"]

_Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class NativeForwardStatistics:
    seconds: dict[str, float]
    """Spent in each of `STAGES` so far: products, attention, the rest of the layers, the output head."""
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class ForwardSize:
    weight_bytes: int
    """Read in a forward that samples, whatever its tokens."""
    layer_weights: int
    """Each is multiplied once a token."""
    head_weights: int
    """Each is multiplied once a sampled token."""


class NativeForward:
    def __init__(
        self,
        shape: DecoderShape,
        weights: DecoderWeights,
        rotary: RotaryTable,
        *,
        library: NativeLibrary,
        threads: int,
        bf16: bool,
    ) -> None:
        """`bf16`: the weights' and the pool's format; else it is float32."""
        self._shape = shape
        self._rotary = rotary
        self._library = library
        self._threads = threads
        self._held: list[torch.Tensor] = []
        """What the structures point to."""
        self._embedding = weights.embedding()
        self._layers = (LayerPointers * shape.layers)(*(self._layer(weights, number) for number in range(shape.layers)))
        self._decoder = DecoderPointers(
            layers=shape.layers,
            hidden=shape.hidden,
            intermediate=shape.intermediate,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            vocabulary=shape.vocabulary,
            bf16=bf16,
            gelu=shape.activation == "gelu_pytorch_tanh",
            norm_epsilon=shape.norm_epsilon,
            scaling=shape.scaling,
            layer=self._layers,
            final_norm=self._hold(weights.final_norm()),
            head=self._linear(weights.head(), None),
        )
        self._seconds = np.zeros(len(STAGES))
        self._buffers = _Buffers(shape)

    def __call__(
        self, ids: _Ids, positions: _Ids, rows: _Ids, embedded: _Ids, backend: CpuAttention, step: CpuStep
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [samples, vocabulary] of the packed rows `rows`; and the hidden states [embeddings, hidden] of the
        rows `embedded` behind the last norm, if there are any. Valid until the next call."""
        shape, buffers = self._shape, self._buffers
        tokens, samples = len(ids), len(rows)
        buffers.reach(tokens, samples)
        self._rotary.reach(int(positions.max()) + 1)
        self._embed(ids, buffers.hidden[:tokens])
        logits = buffers.logits[:samples]
        group = shape.heads // shape.kv_heads
        wanted = np.concatenate([rows, embedded]).astype(np.int32)
        self._library.decoder_forward(
            self._decoder,
            buffers.pointers(),
            StepPointers(
                spans=step.spans(group),
                cosine=pointer(self._rotary.cosine),
                sine=pointer(self._rotary.sine),
                blocks=pointer(backend.storage.blocks),
                block_stride=backend.block_stride,
                item_tokens=item_tokens(group),
                wanted=pointer(wanted),
                samples=samples,
                embeddings=len(embedded),
                logits=pointer(logits),
                seconds=pointer(self._seconds),
            ),
            self._threads,
        )
        return logits, buffers.normed[samples : len(wanted)] if len(embedded) else None

    def statistics(self) -> NativeForwardStatistics:
        seconds = dict(zip(STAGES, self._seconds.tolist(), strict=True))
        return NativeForwardStatistics(seconds, self._buffers.size_bytes)

    @property
    def size(self) -> ForwardSize:
        shape = self._shape
        layer = shape.hidden * (2 * (shape.query_rows + shape.kv_rows) + 3 * shape.intermediate)
        return ForwardSize(
            sum(tensor.nbytes for tensor in self._held), shape.layers * layer, shape.vocabulary * shape.hidden
        )

    def _embed(self, ids: _Ids, out: torch.Tensor) -> None:
        if self._embedding.dtype == torch.float32:
            torch.index_select(self._embedding, 0, torch.from_numpy(ids), out=out)
        else:
            out.copy_(self._embedding[torch.from_numpy(ids)])
        if self._shape.embedding_scale != 1.0:
            out *= self._shape.embedding_scale

    def _layer(self, weights: DecoderWeights, number: int) -> LayerPointers:
        read: LayerWeights = weights.layer(number)
        return LayerPointers(
            attention_norm=self._hold(read.attention_norm),
            mlp_norm=self._hold(read.mlp_norm),
            query_norm=self._hold(read.query_norm),
            key_norm=self._hold(read.key_norm),
            qkv=self._linear(read.qkv, read.qkv_bias),
            output=self._linear(read.output, read.output_bias),
            gate_up=self._gate_and_up(read),
            down=self._linear(read.down, read.down_bias),
            window=self._shape.windows[number] or 0,
            rotary=self._shape.rotary[number],
        )

    def _gate_and_up(self, read: LayerWeights) -> LinearPointers:
        """Panel by panel in turn, gate and up, so that one thread makes both of what it then multiplies."""
        inner, width = self._shape.intermediate, self._library.panel_width
        gate, up = read.gate_up.view(2, inner, -1)
        panels = self._library.pack(gate, up, threads=self._threads)
        bias = None
        if read.gate_up_bias is not None:
            padded = torch.zeros((2, -(-inner // width) * width))
            padded[:, :inner] = read.gate_up_bias.view(2, inner)
            bias = padded.view(2, -1, width).transpose(0, 1).flatten()
        return LinearPointers(len(panels) * width, self._shape.hidden, self._hold(panels), self._hold(bias))

    def _linear(self, products: torch.Tensor, bias: torch.Tensor | None) -> LinearPointers:
        outputs, inputs = products.shape
        panels = self._hold(self._library.pack(products, threads=self._threads))
        return LinearPointers(outputs, inputs, panels, self._hold(None if bias is None else bias.float()))

    def _hold(self, tensor: torch.Tensor | None) -> int | None:
        if tensor is not None:
            self._held.append(tensor)
        return pointer(tensor)


class _Buffers:
    """Activations of a step. Grow by doubling."""

    def __init__(self, shape: DecoderShape) -> None:
        self._widths = {
            "hidden": shape.hidden,
            "normed": shape.hidden,
            "qkv": shape.query_rows + 2 * shape.kv_rows,
            "attended": shape.query_rows,
            "activated": shape.intermediate,
        }
        self._rows = 0
        self._tensors: dict[str, torch.Tensor] = {}
        self.logits = torch.empty((0, shape.vocabulary))

    def reach(self, tokens: int, samples: int) -> None:
        if tokens > self._rows:
            self._rows = 1 << (tokens - 1).bit_length()
            self._tensors = {name: torch.empty((self._rows, width)) for name, width in self._widths.items()}
        if samples > len(self.logits):
            self.logits = torch.empty((1 << (samples - 1).bit_length(), self.logits.shape[1]))

    @property
    def hidden(self) -> torch.Tensor:
        return self._tensors["hidden"]

    @property
    def normed(self) -> torch.Tensor:
        """At the end of a forward: of the rows that it was wanted of."""
        return self._tensors["normed"]

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self._tensors.values(), self.logits))

    def pointers(self) -> BufferPointers:
        return BufferPointers(**{name: pointer(tensor) for name, tensor in self._tensors.items()})
