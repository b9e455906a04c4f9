"""Any causal language model that transformers knows, run on KV in blocks.

Knows transformers' model code, packed sequences, the attention backend and the sampler. Does not know requests.

All sequences of a step lie behind one another in one row, [1, tokens], with explicit positions: nothing is padded,
and a step may mix pieces of prompts and single tokens as it likes. transformers computes everything but attention,
without a cache of its own; attention is ours (`workers.transformers_attention`), on the pool. Logits are computed
only where a token is sampled: the output head of a small model costs as much as several of its layers.

**Trust is checked at load**, not assumed: two short sequences are run through the model's own attention, each alone,
and through ours, packed and in pieces. A family that needs something that is left out here (a position bias,
positions that it counts itself) gives other logits, and is refused.

Drawback: transformers calls some twenty small operations a layer from Python, unfused; a lean forward of the common
families is to come beside this one.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from kvcache.sizing import ACCELERATOR_SHARE, CPU_SHARE, KVGeometry, PoolSizeError, size_pool
from kvcache.storage import KVStorage, KVStorageStatistics
from workers.attention.backend import AttentionBackend, SequenceSpan
from workers.attention.reference import ReferenceAttention
from workers.devices import Placement, free_memory_bytes
from workers.errors import DeviceLost, NotFiniteLogits, OutOfMemory, UnsupportedModel, first_line
from workers.model_source import ModelFiles
from workers.model_weights import load_weights
from workers.runner import ModelLimits, SequenceInput
from workers.sampler import Sampler
from workers.sampling import GREEDY
from workers.transformers_attention import AttentionGeometry, probe_attention

__all__ = ["RunnerStatistics", "TransformersRunner"]

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""Largest difference between our logits and the model's own, as a part of its largest logit."""


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    steps: int
    tokens: int
    """Computed, prompts and decodes together."""
    sampled: int
    storage: KVStorageStatistics


class TransformersRunner:
    """A `ModelRunner`. Owned by the engine thread; loaded before that thread starts."""

    def __init__(
        self,
        model: PreTrainedModel,
        limits: ModelLimits,
        placement: Placement,
        *,
        kv_bytes: int | None = None,
        backend: type[AttentionBackend] = ReferenceAttention,
    ) -> None:
        """`kv_bytes`: memory of the pool; a share of what is free where None.

        Raises `UnsupportedModel`, or `kvcache.sizing.PoolSizeError`.
        """
        self._model = model
        self._limits = limits
        self._device = placement.device
        self._block_size = backend.block_size
        self._takes_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        torch.set_num_threads(placement.threads)
        _refuse_batch_dependent_positions(model, limits)
        check = _SelfCheck(model, limits)
        geometry = _asked_of_attention(model)
        self._storage = _make_storage(geometry, limits, placement, kv_bytes, backend)
        self._attention = backend(self._storage)
        self._sampler = Sampler()
        self._steps = 0
        self._tokens = 0
        self._sampled = 0
        check.compare(self)

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        placement: Placement,
        *,
        kv_bytes: int | None = None,
        max_context_tokens: int | None = None,
        on_progress: Callable[[str], None] = lambda _line: None,
    ) -> "TransformersRunner":
        """Load the weights and lay out the pool. `max_context_tokens` lowers the model's own limit.

        Raises `ModelError` and `kvcache.sizing.PoolSizeError`.
        """
        on_progress(f"Loading {files.name} on {placement}")
        own = files.limits
        context = own.context_tokens if max_context_tokens is None else min(own.context_tokens, max_context_tokens)
        limits = ModelLimits(context, own.vocabulary, own.eos_token_ids)
        return cls(load_weights(files, placement), limits, placement, kv_bytes=kv_bytes)

    @property
    def limits(self) -> ModelLimits:
        return self._limits

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_blocks(self) -> int:
        return self._storage.num_blocks

    @property
    def storage(self) -> KVStorage:
        return self._storage

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        """See `ModelRunner.step`. The sequences lie in the step in this order."""
        if not sequences:
            return []
        sampling = [position for position, sequence in enumerate(sequences) if sequence.sampling is not None]
        with _faults_named():
            logits = self.logits(sequences)
            with torch.inference_mode():
                drawn = self._sampler.sample(
                    logits,
                    [sequences[position].sampling or GREEDY for position in sampling],
                    [sequences[position].output_position for position in sampling],
                )
        if drawn.not_finite:
            bad = [sampling[row] for row in drawn.not_finite]
            # What was computed for it lies in its blocks; whoever owns them next reads past their ends.
            blocks = [block for position in bad for block in self._storage.scrub(sequences[position].block_ids)]
            raise NotFiniteLogits(bad, blocks)
        self._steps += 1
        self._tokens += sum(len(sequence.token_ids) for sequence in sequences)
        self._sampled += len(sampling)
        tokens: list[int | None] = [None] * len(sequences)
        for position, token in zip(sampling, drawn.token_ids, strict=True):
            tokens[position] = token
        return tokens

    def logits(self, sequences: Sequence[SequenceInput]) -> torch.Tensor:
        """One forward: KV is written, and the logits [rows, vocabulary] come back, one row a sequence that samples."""
        lengths = np.array([len(sequence.token_ids) for sequence in sequences])
        starts = np.array([sequence.start for sequence in sequences])
        ends = lengths.cumsum()
        ids = np.fromiter((token for sequence in sequences for token in sequence.token_ids), np.int64, int(ends[-1]))
        # Position of a packed token: its place in the row, less where its sequence begins there, plus its start.
        positions = np.arange(len(ids)) + np.repeat(starts - (ends - lengths), lengths)
        rows = ends[[sequence.sampling is not None for sequence in sequences]] - 1
        step = self._attention.begin_step(
            [SequenceSpan(sequence.start, len(sequence.token_ids), sequence.block_ids) for sequence in sequences]
        )
        with torch.inference_mode():
            return self._forward(self._to_device(ids), self._to_device(positions), self._to_device(rows), step)

    def statistics(self) -> RunnerStatistics:
        return RunnerStatistics(self._steps, self._tokens, self._sampled, self._storage.statistics())

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, step: object) -> torch.Tensor:
        arguments: dict[str, Any] = {"logits_to_keep": rows} if self._takes_rows else {}
        out: torch.Tensor = self._model(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, paged=step, **arguments
        ).logits[0]
        return out if self._takes_rows else out[rows]

    def _to_device(self, values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


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


def _make_storage(
    geometry: AttentionGeometry,
    limits: ModelLimits,
    placement: Placement,
    kv_bytes: int | None,
    backend: type[AttentionBackend],
) -> KVStorage:
    blocks = size_pool(
        KVGeometry(geometry.layers, geometry.kv_heads, geometry.head_dim, placement.dtype.itemsize, backend.block_size),
        budget_bytes=kv_bytes,
        free_bytes=free_memory_bytes(placement.device),
        share=CPU_SHARE if placement.device.type == "cpu" else ACCELERATOR_SHARE,
        longest_request_tokens=limits.context_tokens,
    )
    shape = backend.block_shape(geometry.kv_heads, geometry.head_dim)
    try:
        # Two at least, whatever the budget: the self-check runs two sequences.
        return KVStorage(max(blocks, 2), geometry.layers, shape, placement.dtype, placement.device)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise PoolSizeError(
            f"{placement.device} has no room for {blocks} KV blocks ({first_line(error)}): lower engine.kv_bytes"
        ) from error


def _refuse_batch_dependent_positions(model: PreTrainedModel, limits: ModelLimits) -> None:
    """`dynamic` and `longrope` embeddings change with the longest position of a forward, beyond a first length.

    In a packed step one long sequence would change the others' tokens.
    """
    config = model.config.get_text_config(decoder=True)
    stated = getattr(config, "rope_parameters", None)
    if not stated:
        return
    for rope in [stated, *(part for part in stated.values() if isinstance(part, dict))]:
        kind = rope.get("rope_type")
        first_length = rope.get("original_max_position_embeddings", config.max_position_embeddings)
        if kind in {"dynamic", "longrope"} and limits.context_tokens > first_length:
            raise UnsupportedModel(
                f"{type(model).__name__} has {kind} position embeddings, which depend on the longest sequence of a "
                f"batch beyond {first_length} tokens: set model.max_context_tokens to {first_length} or less"
            )


@contextmanager
def _faults_named() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(first_line(error)) from error
    except torch.AcceleratorError as error:
        raise DeviceLost(first_line(error)) from error
    except RuntimeError as error:
        # The CPU's allocator has no exception class of its own.
        if "can't allocate memory" in str(error):
            raise OutOfMemory(first_line(error)) from error
        raise
