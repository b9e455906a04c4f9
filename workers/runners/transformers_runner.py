"""Any causal language model that transformers knows, run on KV in blocks.

Knows transformers' model code. Does not know requests; packing, the pool and sampling are
`workers.runners.paged_runner`'s.

The packed step is one row to transformers, [1, tokens], with explicit positions. transformers computes everything but
attention, without a cache of its own; attention is ours (`workers.runners.transformers_attention`), on the pool.

**Trust is checked at load**, not assumed: two short sequences are run through the model's own attention, each alone,
and through ours, packed and in pieces. A family that needs something that is left out here (a position bias,
positions that it counts itself) gives other logits, and is refused.

Drawback: transformers calls some twenty small operations a layer from Python, unfused. The common families have a lean
forward of their own beside this one (`workers.runners.decoder`).
"""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from workers.intake.sampling import GREEDY
from workers.models.devices import Placement
from workers.models.model_source import ModelFiles
from workers.models.model_weights import load_weights
from workers.runners.attention.backend import AttentionKind
from workers.runners.attention.reference import ReferenceAttention
from workers.runners.errors import UnsupportedModel, first_line
from workers.runners.hidden_states import LastHiddenStates
from workers.runners.packed_step import ForwardOutput, PackedStep
from workers.runners.paged_runner import AttentionHeads, PagedRunner, serving_attention
from workers.runners.position_limits import refuse_batch_dependent_positions
from workers.runners.runner import ModelLimits, NoEmbeddings, SequenceInput
from workers.runners.step_memory import PoolProfile
from workers.runners.transformers_attention import AttentionGeometry, probe_attention

__all__ = ["TransformersRunner"]

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""Largest difference between our logits and the model's own, as a part of its largest logit."""


class TransformersRunner(PagedRunner):
    def __init__(
        self,
        model: PreTrainedModel,
        limits: ModelLimits,
        placement: Placement,
        *,
        kv_bytes: int | None = None,
        attention: AttentionKind = ReferenceAttention,
        ranks: int = 1,
        profile: PoolProfile | None = None,
    ) -> None:
        """`kv_bytes`: memory of the pool; a share of what is free where None. `attention`: used if it can serve the
        model's heads, else the reference is. `ranks`: over which `model` is divided. `profile`: see `PagedRunner`.

        Raises `UnsupportedModel`, or `kvcache.sizing.PoolSizeError`.
        """
        self._model = model
        self._takes_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        torch.set_num_threads(placement.threads)
        refuse_batch_dependent_positions(model.config, limits.context_tokens)
        self._hidden_states = LastHiddenStates(model)
        if not isinstance(limits.embedding_size, NoEmbeddings):
            probe = torch.zeros((1, 2), dtype=torch.long, device=model.device)
            limits = replace(limits, embedding_size=self._hidden_states.size(probe))
        check = _SelfCheck(model, limits)
        asked = _asked_of_attention(model)
        heads = AttentionHeads(asked.layers, asked.heads, asked.kv_heads, asked.head_dim)
        super().__init__(heads, limits, placement, serving_attention(heads, attention), kv_bytes, ranks, profile)
        check.compare(self)

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        placement: Placement,
        *,
        kv_bytes: int | None = None,
        max_context_tokens: int | None = None,
        attention: AttentionKind = ReferenceAttention,
        on_progress: Callable[[str], None] = lambda _line: None,
        ranks: int = 1,
        profile: PoolProfile | None = None,
    ) -> "TransformersRunner":
        """Load the weights and lay out the pool. `max_context_tokens` lowers the model's own limit. `ranks`: so many
        processes of a torch.distributed group do the same, and each holds a part.

        Raises `ModelError` and `kvcache.sizing.PoolSizeError`.
        """
        on_progress(f"Loading {files.name} on {placement}")
        limits = files.limits.at_most(max_context_tokens)
        model = load_weights(files, placement, ranks)
        return cls(model, limits, placement, kv_bytes=kv_bytes, attention=attention, ranks=ranks, profile=profile)

    def _forward(self, step: PackedStep) -> ForwardOutput:
        rows = self._to_device(step.rows)
        arguments: dict[str, Any] = {"logits_to_keep": rows} if self._takes_rows else {}
        with self._hidden_states.kept() if len(step.embedded) else nullcontext() as states:
            out: torch.Tensor = self._model(
                input_ids=self._to_device(step.ids)[None],
                position_ids=self._to_device(step.positions)[None],
                use_cache=False,
                paged=step.attention,
                **arguments,
            ).logits[0]
        return ForwardOutput(
            out if self._takes_rows else out[rows],
            states[0][0, self._to_device(step.embedded)] if states else None,
        )


class _SelfCheck:
    """Two short sequences whose logits the model's own attention gave, each sequence alone."""

    def __init__(self, model: PreTrainedModel, limits: ModelLimits) -> None:
        """`model` still has its own attention."""
        self._name = type(model).__name__
        self._sequences = [[(7 * i + 1) % limits.vocabulary for i in range(length)] for length in (7, 5)]
        with torch.inference_mode():
            self._want = torch.stack(
                [
                    model(torch.tensor([ids], device=model.device), use_cache=False).logits[0, -1]
                    for ids in self._sequences
                ]
            )

    def compare(self, runner: TransformersRunner) -> None:
        """Run them packed and in two pieces each. Raises `UnsupportedModel` if the logits are others."""
        cut = (4, 4)  # then three tokens of the first and one of the second: a chunk and a decode
        blocks = ([0], [1])
        try:
            runner.logits(
                [
                    SequenceInput(ids[:at], 0, own, None)
                    for ids, at, own in zip(self._sequences, cut, blocks, strict=True)
                ]
            )
            got = runner.logits(
                [
                    SequenceInput(ids[at:], at, own, GREEDY)
                    for ids, at, own in zip(self._sequences, cut, blocks, strict=True)
                ]
            )
        except (TypeError, RuntimeError) as error:
            raise UnsupportedModel(f"{self._name} can't run packed sequences ({first_line(error)})") from error
        scale = self._want.abs().max()
        difference = float((got - self._want).abs().max() / scale)
        if not difference <= _TOLERANCE[got.dtype]:
            raise UnsupportedModel(
                f"{self._name} gives other logits on paged attention than on its own (by {difference:.2g} of the "
                "largest): it needs something that this runner leaves out; use another model"
            )


def _asked_of_attention(model: PreTrainedModel) -> AttentionGeometry:
    try:
        return probe_attention(model)
    except (TypeError, AttributeError, KeyError, RuntimeError) as error:
        raise UnsupportedModel(
            f"{type(model).__name__} can't run on another attention function ({first_line(error)})"
        ) from error
