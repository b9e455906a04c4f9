"""The runner of the Llama family: our own forward, in torch or in compiled kernels.

Knows which of the two serves a placement. Does not know how either computes.

On a CPU it is the kernels, where there are some and the model's heads suit them. On a CPU that multiplies bfloat16
natively and a model in that format, attention is theirs and the products are torch's, which use those instructions. On
any other device, and where there is no compiler, it is torch. All compute the same: the tests compare them with each
other and with transformers.
"""

from collections.abc import Callable

import torch

from workers.models.devices import Placement
from workers.models.model_config import read_config
from workers.models.model_source import ModelFiles
from workers.runners.attention.cpu import CpuAttention, CpuAttentionKind, CpuStep
from workers.runners.attention.flash import FlashAttention, FlashAttentionKind, FlashStep
from workers.runners.attention.reference import ReferenceAttention
from workers.runners.decoder.decode_graphs import Capture, DecodeGraphs, capture_cuda
from workers.runners.decoder.family import DecoderShape
from workers.runners.decoder.native_forward import NativeForward
from workers.runners.decoder.rotary import RotaryTable, inverse_frequencies
from workers.runners.decoder.torch_forward import TorchForward
from workers.runners.decoder.weights import DecoderWeights
from workers.runners.errors import ModelError
from workers.runners.native.library import NativeLibrary
from workers.runners.packed_step import ForwardOutput, PackedStep
from workers.runners.paged_runner import AttentionHeads, PagedRunner, serving_attention
from workers.runners.position_limits import refuse_batch_dependent_positions
from workers.runners.step_memory import PoolProfile

__all__ = ["DecoderRunner"]


class DecoderRunner(PagedRunner):
    def __init__(
        self,
        files: ModelFiles,
        shape: DecoderShape,
        placement: Placement,
        *,
        library: NativeLibrary | None,
        torch_products: bool = False,
        flash: FlashAttentionKind | None = None,
        kv_bytes: int | None = None,
        max_context_tokens: int | None = None,
        profile: PoolProfile | None = None,
        on_progress: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """`library`: the compiled kernels, for a CPU; None: torch. `torch_products`: of the kernels use attention only.
        `flash`: attention for a GPU, where it can serve the model's heads.
        `max_context_tokens` lowers the model's own limit. `profile`: see `PagedRunner`.

        Raises `ModelError` and `kvcache.sizing.PoolSizeError`.
        """
        on_progress(f"Loading {files.name} on {placement}")
        limits = files.limits.at_most(max_context_tokens)
        config = read_config(files.folder)
        refuse_batch_dependent_positions(config, limits.context_tokens)
        heads = AttentionHeads(shape.layers, shape.heads, shape.kv_heads, shape.head_dim)
        native = None if library is None else CpuAttentionKind(library, placement.threads)
        preferred = native or flash
        attention = ReferenceAttention if preferred is None else serving_attention(heads, preferred)
        weights = DecoderWeights(files.folder, shape, placement.dtype)
        rotary = RotaryTable(*inverse_frequencies(config, shape.head_dim), placement.device)
        self._rotary = rotary
        try:
            if library is not None and attention is native and not torch_products:
                bf16 = placement.dtype == torch.bfloat16
                self._computes: NativeForward | TorchForward = NativeForward(
                    shape, weights, rotary, library=library, threads=placement.threads, bf16=bf16
                )
            else:
                self._computes = TorchForward(shape, weights, rotary, placement)
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"{files.folder} doesn't fit into the memory of {placement.device}: use a smaller model or dtype "
                f"(it is {placement.dtype} now), or another device"
            ) from error
        self._graphs: DecodeGraphs | None = None
        # After the weights: the pool takes a share of what they leave.
        super().__init__(heads, limits, placement, attention, kv_bytes, profile=profile)

    @property
    def native(self) -> NativeForward | None:
        """The compiled forward, where it is what computes."""
        return self._computes if isinstance(self._computes, NativeForward) else None

    def prepare(self, most_sequences: int) -> None:
        """Record decode steps, where the device has graphs."""
        if self._device.type == "cuda" and isinstance(self._attention, FlashAttention):
            self.record_decodes(most_sequences, capture_cuda(torch.cuda.graph_pool_handle()))

    def record_decodes(self, most_sequences: int, capture: Capture) -> None:
        assert isinstance(self._computes, TorchForward)
        assert isinstance(self._attention, FlashAttention)
        # What a graph reads must stay where it is: all positions there are, at once.
        self._rotary.reach(self.limits.context_tokens)
        with torch.inference_mode():
            self._graphs = DecodeGraphs(
                self._computes,
                self._attention,
                most_sequences=most_sequences,
                context_tokens=self.limits.context_tokens,
                capture=capture,
            )

    def _forward(self, step: PackedStep) -> ForwardOutput:
        if isinstance(self._computes, NativeForward):
            assert isinstance(self._attention, CpuAttention)
            assert isinstance(step.attention, CpuStep)
            return ForwardOutput(
                *self._computes(step.ids, step.positions, step.rows, step.embedded, self._attention, step.attention)
            )
        self._rotary.reach(int(step.positions.max()) + 1)
        ids, positions, rows = (self._to_device(values) for values in (step.ids, step.positions, step.rows))
        if len(step.embedded):
            wanted = torch.cat([rows, self._to_device(step.embedded)])
            hidden = self._computes.hidden(ids, positions, wanted, step.attention)
            return ForwardOutput(self._computes.head(hidden[: len(rows)]), hidden[len(rows) :])
        if (
            self._graphs is not None
            and isinstance(step.attention, FlashStep)
            and step.attention.only_decodes
            and len(rows) == len(ids)
            and (logits := self._graphs.logits(ids, positions, step.attention)) is not None
        ):
            return ForwardOutput(logits)
        return ForwardOutput(self._computes(ids, positions, rows, step.attention))
