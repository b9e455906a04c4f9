"""What all runners on a real model share: running a step, drawing its tokens, naming its faults.

Knows packed sequences, the pool, the attention backend and the sampler. Does not know how a model computes: that is
one method, `_forward`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch

from kvcache.sizing import ACCELERATOR_SHARE, CPU_SHARE, KVGeometry, PoolSizeError, size_pool
from kvcache.storage import KVStorage, KVStorageStatistics
from workers.intake.sampling import GREEDY, TokenLogprobs
from workers.models.devices import Placement, free_memory_bytes
from workers.runners.attention.backend import AttentionKind
from workers.runners.attention.reference import ReferenceAttention
from workers.runners.errors import DeviceLost, GrammarBroken, NotFiniteLogits, OutOfMemory, first_line
from workers.runners.packed_step import ForwardOutput, Ids, PackedStep, embeddings_of, pack
from workers.runners.rank_group import RankGroup
from workers.runners.runner import Embedding, ModelLimits, SequenceInput
from workers.runners.sampler import Sampler
from workers.runners.step_memory import PoolProfile

__all__ = ["AttentionHeads", "PagedRunner", "RunnerStatistics", "serving_attention"]

log = logging.getLogger(__name__)

_NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
"""Of those that have no exception class of their own: the CPU's allocator, the driver, cuBLAS and cuDNN."""


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """The same in all layers."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class _Begun:
    """A forward that was begun ahead."""

    sequences: Sequence[SequenceInput]
    logits: torch.Tensor
    """[rows, vocabulary]: of each sequence its token's, and those of the tokens guessed behind it."""
    first_rows: tuple[int, ...]
    """Of each sequence."""

    def rows(self, place: int) -> range:
        return range(self.first_rows[place], self.first_rows[place] + 1 + len(self.sequences[place].guess))


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
        self._begun: _Begun | None = None
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
            output = self._step_output(sequences)
            with torch.inference_mode():
                drawn = self._sampler.sample(
                    output.logits,
                    [sequences[position].sampling or GREEDY for position, _ahead in rows],
                    [sequences[position].output_position + ahead for position, ahead in rows],
                    [sequences[position].history for position, _ahead in rows],
                )
            embeddings = embeddings_of(sequences, output.hidden)
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

    @property
    def computes_by_itself(self) -> bool:
        """See `workers.engine.run_ahead.AheadRunner`. Other ranks know no forward but a step's."""
        return self._device.type == "cuda" and self.group is None

    def begin(self, sequences: Sequence[SequenceInput]) -> None:
        """See `workers.engine.run_ahead.AheadRunner`."""
        assert all(sequence.sampling is not None for sequence in sequences), "only what samples is begun ahead"
        counts = [1 + len(sequence.guess) for sequence in sequences]
        with _faults_named(), self._scratch_freed():
            self._begun = _Begun(sequences, self.logits(sequences), (0, *accumulate(counts[:-1])))

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

    def _step_output(self, sequences: Sequence[SequenceInput]) -> ForwardOutput:
        """As `forward`; a sequence that was begun ahead has its rows of logits already."""
        begun, self._begun = self._begun, None
        if begun is None:
            return self.forward(sequences)
        wanted = [sequence.begun for sequence in sequences if sequence.begun is not None]
        self._scrub_dropped(begun, set(range(len(begun.sequences))).difference(wanted))
        rest = [sequence for sequence in sequences if sequence.begun is None]
        if not wanted:
            return self.forward(rest)
        rows = np.array([row for place in wanted for row in begun.rows(place)])
        with torch.inference_mode():
            # A copy, before the next forward writes to the same place.
            ahead = begun.logits[self._to_device(rows)]
            if not rest:
                return ForwardOutput(ahead)
            others = self.forward(rest)
            return ForwardOutput(self._in_order(sequences, ahead, others.logits), others.hidden)

    def _in_order(self, sequences: Sequence[SequenceInput], ahead: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        """Rows of both kinds of sequences, in the order of the step."""
        of_ahead, of_rest = iter(range(len(ahead))), iter(range(len(ahead), len(ahead) + len(rest)))
        order = [
            next(of_rest if sequence.begun is None else of_ahead)
            for sequence in sequences
            if sequence.sampling is not None
            for _row in range(1 + len(sequence.guess))
        ]
        return torch.cat((ahead, rest))[self._to_device(np.array(order))]

    def _scrub_dropped(self, begun: _Begun, places: Collection[int]) -> None:
        """What nobody samples nobody looks at: where it is no number, whoever has the blocks next must not read it."""
        for place in places:
            if not begun.logits[[*begun.rows(place)]].amax(dim=-1).isfinite().all():
                self._storage.scrub(begun.sequences[place].block_ids)

    def logits(self, sequences: Sequence[SequenceInput]) -> torch.Tensor:
        """One forward: its logits, see there."""
        return self.forward(sequences).logits

    def forward(self, sequences: Sequence[SequenceInput]) -> ForwardOutput:
        """KV is written, and what is wanted comes back: for each sequence that samples a row of logits, and one for
        each token guessed behind it; for each that is embedded a hidden state.
        """
        with torch.inference_mode():
            return self._forward(pack(sequences, self._attention))

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

    def _to_device(self, values: Ids) -> torch.Tensor:
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
