"""What all runners on a real model share: packing a step, drawing its tokens, naming its faults.

Knows packed sequences, the pool, the attention backend and the sampler. Does not know how a model computes: that is
one method, `_forward`.

All sequences of a step lie behind one another, with explicit positions: nothing is padded, and a step may mix pieces
of prompts and single tokens as it likes. Logits are computed only where a token is sampled: the output head of a
small model costs as much as several of its layers. The hidden states behind the last norm are there in any case, and
are handed out only for tokens whose embedding is wanted.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from kvcache.sizing import ACCELERATOR_SHARE, CPU_SHARE, KVGeometry, PoolSizeError, size_pool
from kvcache.storage import KVStorage, KVStorageStatistics
from workers.intake.sampling import GREEDY, TokenLogprobs
from workers.models.devices import Placement, free_memory_bytes
from workers.runners.attention.backend import AttentionKind, AttentionStep, SequenceSpan
from workers.runners.attention.reference import ReferenceAttention
from workers.runners.errors import DeviceLost, GrammarBroken, NotFiniteLogits, OutOfMemory, first_line
from workers.runners.rank_group import RankGroup
from workers.runners.runner import Embedding, ModelLimits, SequenceInput
from workers.runners.sampler import Sampler
from workers.runners.step_memory import PoolProfile

__all__ = ["AttentionHeads", "ForwardOutput", "PackedStep", "PagedRunner", "RunnerStatistics", "serving_attention"]

log = logging.getLogger(__name__)

_NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
"""Of those that have no exception class of their own: the CPU's allocator, the driver, cuBLAS and cuDNN."""

_Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """The same in all layers."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class PackedStep:
    """A step's tokens behind one another, on the host."""

    ids: _Ids
    """[tokens]"""
    positions: _Ids
    """[tokens], each in its own sequence."""
    rows: _Ids
    """[samples]: packed tokens whose logits are wanted."""
    embedded: _Ids
    """[embeddings]: packed tokens whose hidden states are wanted; none of them is in `rows`."""
    attention: AttentionStep


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """On the device; valid until the next forward."""

    logits: torch.Tensor
    """[samples, vocabulary]"""
    hidden: torch.Tensor | None = None
    """[embeddings, hidden], behind the model's last norm; None where none is wanted."""


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    steps: int
    tokens: int
    """Computed, prompts and decodes together."""
    sampled: int
    storage: KVStorageStatistics


class PagedRunner(ABC):
    """A `ModelRunner` but for the model. Owned by the engine thread; loaded before that thread starts."""

    def __init__(
        self,
        heads: AttentionHeads,
        limits: ModelLimits,
        placement: Placement,
        attention: AttentionKind,
        kv_bytes: int | None,
        ranks: int = 1,
        profile: PoolProfile | None = None,
    ) -> None:
        """`kv_bytes`: memory of the pool; a share of what is free where None, less what steps take if there is a
        `profile`. `ranks`: so many processes of a torch.distributed group make a runner of this model at this time.
        Raises `PoolSizeError`. `_forward` is called here where there is a profile.
        """
        torch.set_num_threads(placement.threads)
        self._limits = limits
        self._device = placement.device
        self._block_size = attention.block_size
        self.attention_name = attention.name
        self._sampler = Sampler()
        self._logprobs: dict[int, TokenLogprobs] = {}
        self._embeddings: dict[int, Embedding] = {}
        self._accepted: dict[int, list[int]] = {}
        self.group: RankGroup | None = None
        """The other ranks that compute a part of each step."""
        self._steps = 0
        self._tokens = 0
        self._sampled = 0
        set_aside_bytes = 0
        if profile is not None and kv_bytes is None:
            set_aside_bytes = self._profile(heads, placement, attention, profile)
        self._storage = _make_storage(heads, limits, placement, attention, kv_bytes, ranks, set_aside_bytes)
        self._attention = attention(self._storage)

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
        # A row for each sequence that samples, and one for each token guessed behind it.
        rows = [
            (position, ahead)
            for position, sequence in enumerate(sequences)
            if sequence.sampling is not None
            for ahead in range(1 + len(sequence.guess))
        ]
        with _faults_named(), self._scratch_freed():
            output = self.forward(sequences)
            with torch.inference_mode():
                drawn = self._sampler.sample(
                    output.logits,
                    [sequences[position].sampling or GREEDY for position, _ahead in rows],
                    [sequences[position].output_position + ahead for position, ahead in rows],
                    [sequences[position].history for position, _ahead in rows],
                )
            embeddings = _embeddings(sequences, output.hidden)
        if drawn.grammar_broken:
            raise GrammarBroken([rows[row][0] for row in drawn.grammar_broken])
        no_numbers = {position for position, embedding in embeddings.items() if not np.isfinite(embedding).all()}
        no_numbers.update(rows[row][0] for row in drawn.not_finite)
        if no_numbers:
            bad = sorted(no_numbers)
            # What was computed for it lies in its blocks; whoever owns them next reads past their ends.
            blocks = [block for position in bad for block in self._storage.scrub(sequences[position].block_ids)]
            raise NotFiniteLogits(bad, blocks)
        self._steps += 1
        self._tokens += sum(len(sequence.token_ids) + len(sequence.guess) for sequence in sequences)
        self._sampled += len(rows)
        tokens: list[int | None] = [None] * len(sequences)
        self._accepted = {}
        for (position, ahead), token in zip(rows, drawn.token_ids, strict=True):
            guess = sequences[position].guess
            if ahead == 0:
                tokens[position] = token
                self._accepted[position] = []
            elif [tokens[position], *self._accepted[position]] == list(guess[:ahead]):
                # All tokens so far are the guessed ones, so this one was drawn behind them.
                self._accepted[position].append(token)
        self._logprobs = {rows[row][0]: logprobs for row, logprobs in drawn.logprobs.items()}
        self._embeddings = embeddings
        return tokens

    def take_accepted(self) -> Mapping[int, Sequence[int]]:
        """See `workers.engine.speculation.VerifyingRunner`."""
        taken, self._accepted = self._accepted, {}
        return taken

    def take_logprobs(self) -> Mapping[int, TokenLogprobs]:
        """See `ModelRunner.take_logprobs`."""
        taken, self._logprobs = self._logprobs, {}
        return taken

    def take_embeddings(self) -> Mapping[int, Embedding]:
        """See `ModelRunner.take_embeddings`."""
        taken, self._embeddings = self._embeddings, {}
        return taken

    def logits(self, sequences: Sequence[SequenceInput]) -> torch.Tensor:
        """One forward: its logits, see there."""
        return self.forward(sequences).logits

    def forward(self, sequences: Sequence[SequenceInput]) -> ForwardOutput:
        """KV is written, and what is wanted comes back: for each sequence that samples a row of logits, and one for
        each token guessed behind it; for each that is embedded a hidden state.
        """
        lengths = np.array([len(sequence.token_ids) + len(sequence.guess) for sequence in sequences])
        starts = np.array([sequence.start for sequence in sequences])
        ends = lengths.cumsum()
        ids = np.fromiter(
            (token for sequence in sequences for part in (sequence.token_ids, sequence.guess) for token in part),
            np.int64,
            int(ends[-1]),
        )
        # Position of a packed token: its place in the row, less where its sequence begins there, plus its start.
        positions = np.arange(len(ids)) + np.repeat(starts - (ends - lengths), lengths)
        samples = np.array([0 if sequence.sampling is None else 1 + len(sequence.guess) for sequence in sequences])
        # The last `samples` tokens of each sequence.
        rows = np.arange(int(samples.sum())) + np.repeat(ends - samples.cumsum(), samples)
        embedded = ends[[sequence.embed for sequence in sequences]] - 1
        attention = self._attention.begin_step(
            [
                SequenceSpan(sequence.start, int(length), sequence.block_ids)
                for sequence, length in zip(sequences, lengths, strict=True)
            ]
        )
        with torch.inference_mode():
            return self._forward(PackedStep(ids, positions, rows, embedded, attention))

    @contextmanager
    def _scratch_freed(self) -> Iterator[None]:
        """On any fault, give back what is only kept to save allocating it again."""
        try:
            yield
        except (RuntimeError, MemoryError):
            self._sampler = Sampler()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            raise

    def prepare(self, most_sequences: int) -> None:  # noqa: B027 - most runners have nothing to prepare
        """Once, before the first step, on a pool that is nobody's: what only needs to be done once for all steps."""

    def statistics(self) -> RunnerStatistics:
        return RunnerStatistics(self._steps, self._tokens, self._sampled, self._storage.statistics())

    @abstractmethod
    def _forward(self, step: PackedStep) -> ForwardOutput:
        """Runs in inference mode."""

    def _to_device(self, values: _Ids) -> torch.Tensor:
        host = torch.from_numpy(values)
        if self._device.type == "cuda":
            host = host.pin_memory()  # an ordinary tensor's copy would wait for all that the device has to do
        return host.to(self._device, non_blocking=True)

    def _profile(
        self, heads: AttentionHeads, placement: Placement, attention: AttentionKind, profile: PoolProfile
    ) -> int:
        """Bytes to set aside for steps: run the widest on a pool that is just large enough.

        Twice its peak: once for steps as they come, and once for those that are recorded (CUDA graphs keep their own).
        """
        sequences = profile.widest.sequences_of(self._limits, attention.block_size)
        blocks = 1 + max(sequence.block_ids[-1] for sequence in sequences)
        shape = attention.block_shape(heads.kv_heads, heads.head_dim)
        try:
            with _faults_named():
                self._storage = KVStorage(blocks, heads.layers, shape, placement.dtype, placement.device)
                self._attention = attention(self._storage)
                profile.meter.restart()
                PagedRunner.step(self, sequences)  # not an override that tells other ranks: each does this itself
                peak_bytes = profile.meter.peak_bytes()
        except OutOfMemory as error:
            raise PoolSizeError(
                f"{placement.device} has no room for a step of {profile.widest.tokens} tokens and "
                f"{profile.widest.sequences} sequences beside the weights ({error}): lower engine.step_tokens or "
                "engine.max_sequences"
            ) from error
        del self._storage, self._attention
        self._sampler = Sampler()
        self._steps = self._tokens = self._sampled = 0
        if placement.device.type == "cuda":
            torch.cuda.empty_cache()
        return 2 * peak_bytes


def _embeddings(sequences: Sequence[SequenceInput], hidden: torch.Tensor | None) -> dict[int, Embedding]:
    """Rows of `hidden` by place of their sequence, copied to the host."""
    if hidden is None:
        return {}
    places = [place for place, sequence in enumerate(sequences) if sequence.embed]
    return dict(zip(places, hidden.float().cpu().numpy().copy(), strict=True))


def serving_attention(heads: AttentionHeads, preferred: AttentionKind) -> AttentionKind:
    """`preferred` if it can serve these heads, else the reference, which serves all."""
    refused = preferred.refusal(heads.heads, heads.kv_heads, heads.head_dim)
    return preferred if refused is None else ReferenceAttention


def _make_storage(
    heads: AttentionHeads,
    limits: ModelLimits,
    placement: Placement,
    attention: AttentionKind,
    kv_bytes: int | None,
    ranks: int,
    set_aside_bytes: int,
) -> KVStorage:
    share = CPU_SHARE if placement.device.type == "cpu" else ACCELERATOR_SHARE
    blocks = size_pool(
        KVGeometry(heads.layers, heads.kv_heads, heads.head_dim, placement.dtype.itemsize, attention.block_size),
        budget_bytes=kv_bytes,
        free_bytes=free_memory_bytes(placement.device),
        share=replace(share, set_aside_bytes=set_aside_bytes),
        longest_request_tokens=limits.context_tokens,
    )
    if ranks > 1:
        blocks = _fewest(blocks, placement.device)
    shape = attention.block_shape(heads.kv_heads, heads.head_dim)
    least = -(-limits.context_tokens // attention.block_size)
    while True:
        try:
            # Two at least, whatever the budget: the self-check runs two sequences.
            return KVStorage(max(blocks, 2), heads.layers, shape, placement.dtype, placement.device)
        except (MemoryError, RuntimeError) as error:
            if not _is_no_memory(error):
                raise
            smaller = blocks * 3 // 4
            if kv_bytes is not None or smaller < least or ranks > 1:
                raise PoolSizeError(
                    f"{placement.device} has no room for {blocks} KV blocks ({first_line(error)}): lower "
                    "engine.kv_bytes or model.max_context_tokens"
                ) from error
            # What was free is not what can be had in one piece, or somebody else took it meanwhile.
            log.warning("no memory for %d KV blocks: trying %d", blocks, smaller)
            blocks = smaller


def _fewest(blocks: int, device: torch.device) -> int:
    """Of what the ranks of a tensor-parallel group have room for: one block table serves all."""
    counted = torch.tensor(blocks, device=device)
    torch.distributed.all_reduce(counted, torch.distributed.ReduceOp.MIN)
    return int(counted)


@contextmanager
def _faults_named() -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if _is_no_memory(error):
            raise OutOfMemory(first_line(error)) from error
        if isinstance(error, torch.AcceleratorError):
            raise DeviceLost(first_line(error)) from error
        raise


def _is_no_memory(error: MemoryError | RuntimeError) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(sign in str(error) for sign in _NO_MEMORY)
