"""Tensor parallel: one model's weights and KV over several ranks, through transformers' own plan of a family.

Knows the orders that keep the ranks in step. Does not know processes (`workers.runners.rank_group`).

Every rank holds a part of each layer's heads and of the KV that belongs to them, in a pool of as many blocks as the
others', so one block table and one plan serve all. A step is an order to the others and then the same forward
everywhere; the logits come together on every rank, and rank 0 alone samples. Swaps and scrubbed blocks are orders too.

Chosen over a plan of our own: transformers has one for each family and is tested with it. Drawback: two collectives a
layer whose cost is not hidden, and its Python.

Limits: all ranks are on one machine. A rank that is out of memory has left the others inside a collective, so that ends
the group; a step is not cut here.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

import torch

from kvcache.storage import CopyTiming, SwapSpace
from kvcache.swap_plan import BlockCopy
from workers.intake.sampling import GREEDY
from workers.models.devices import Placement
from workers.models.model_source import ModelFiles
from workers.models.model_weights import check_divisible
from workers.runners.attention.flash import flash_for
from workers.runners.attention.reference import ReferenceAttention
from workers.runners.errors import DeviceLost, EngineFault, NotFiniteLogits, OutOfMemory, UnsupportedModel, first_line
from workers.runners.rank_group import RankGroup, join_group
from workers.runners.runner import SequenceInput
from workers.runners.step_memory import WidestStep, pool_profile
from workers.runners.swap_space import SwapPool
from workers.runners.transformers_runner import TransformersRunner

__all__ = ["ParallelRunner", "load_parallel", "parallel_swap", "rank_placement"]


@dataclass(frozen=True, slots=True)
class _Forward:
    sequences: tuple[SequenceInput, ...]


@dataclass(frozen=True, slots=True)
class _Scrub:
    """Answered with the blocks that held values which are no numbers."""

    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _MakeSwapSpace:
    places: int


@dataclass(frozen=True, slots=True)
class _Copy:
    copies: tuple[BlockCopy, ...]


class ParallelRunner(TransformersRunner):
    """Rank 0's `ModelRunner`: what it computes, all ranks compute."""

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        if not sequences:
            return []
        group = self.group
        assert group is not None, "the ranks were not joined"
        group.tell(_Forward(tuple(map(_without_sampling, sequences))))
        try:
            return super().step(sequences)
        except NotFiniteLogits as fault:
            blocks = dict.fromkeys(block for place in fault.sequences for block in sequences[place].block_ids)
            group.tell(_Scrub(tuple(blocks)))
            spoiled = set(fault.blocks).union(*group.answers())
            raise NotFiniteLogits(fault.sequences, sorted(spoiled)) from fault
        except OutOfMemory as fault:
            raise DeviceLost(
                f"rank 0 of {group.ranks} has no memory for a step, and the others wait in it ({fault}): lower "
                "engine.step_tokens or engine.kv_bytes"
            ) from fault
        except EngineFault:
            raise
        except RuntimeError as error:
            raise DeviceLost(f"the ranks lost each other ({first_line(error)})") from error


class _ParallelSwapper:
    """A `BlockSwapper`: every rank copies its part of the blocks. Rank 0's times count for all."""

    def __init__(self, own: SwapPool, group: RankGroup) -> None:
        self._own = own.swapper
        self._group = group
        group.tell(_MakeSwapSpace(own.places))

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        self._group.tell(_Copy(tuple(copies)))
        self._own.copy(copies)

    def take_timings(self) -> list[CopyTiming]:
        return self._own.take_timings()


def parallel_swap(pool: SwapPool, group: RankGroup) -> SwapPool:
    """The same pool on every rank."""
    return replace(pool, swapper=_ParallelSwapper(pool, group))


def load_parallel(
    files: ModelFiles,
    placement: Placement,
    ranks: int,
    *,
    kv_bytes: int | None = None,
    max_context_tokens: int | None = None,
    widest: WidestStep | None = None,
) -> ParallelRunner:
    """Start the other ranks and load a part of the model on each. `placement`: rank 0's; `kv_bytes`: of each rank.

    Raises `ModelError` and `kvcache.sizing.PoolSizeError`.
    """
    check_divisible(files.folder, ranks)  # before seconds of imports in each of the others
    own = rank_placement(placement, 0, ranks)
    group = RankGroup(ranks, placement.device.type, _follow, (files, placement, kv_bytes, max_context_tokens, widest))
    try:
        runner = _load(ParallelRunner, files, own, kv_bytes, max_context_tokens, widest)
    except BaseException:
        group.close()
        raise
    assert isinstance(runner, ParallelRunner)
    runner.group = group
    return runner


def rank_placement(placement: Placement, rank: int, ranks: int) -> Placement:
    """GPUs in a row from rank 0's on; a CPU's threads are divided."""
    if placement.device.type == "cpu":
        return replace(placement, threads=max(1, placement.threads // ranks))
    return replace(placement, device=torch.device("cuda", (placement.device.index or 0) + rank))


def _load(
    kind: type[TransformersRunner],
    files: ModelFiles,
    placement: Placement,
    kv_bytes: int | None,
    max_context_tokens: int | None,
    widest: WidestStep | None,
) -> TransformersRunner:
    if placement.device.type == "cuda":
        torch.cuda.set_device(placement.device)
    flash = flash_for(placement)
    return kind.load(
        files,
        placement,
        kv_bytes=kv_bytes,
        max_context_tokens=max_context_tokens,
        attention=ReferenceAttention if isinstance(flash, str) else flash,
        ranks=torch.distributed.get_world_size(),
        profile=pool_profile(placement, widest),
    )


def _follow(
    orders: Connection,
    rank: int,
    ranks: int,
    rendezvous: Path,
    files: ModelFiles,
    placement: Placement,
    kv_bytes: int | None,
    max_context_tokens: int | None,
    widest: WidestStep | None,
) -> None:
    """A follower's life: the same forwards as rank 0, until its pipe ends."""
    # A signal to the whole process group is rank 0's to answer: it drains, and then this one's pipe ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    orders.send(rank)
    join_group(placement.device.type, rank, ranks, rendezvous)
    try:
        own = rank_placement(placement, rank, ranks)
        runner = _load(TransformersRunner, files, own, kv_bytes, max_context_tokens, widest)
    except (UnsupportedModel, ValueError):
        return  # rank 0 meets the same, and says it
    swap: SwapSpace | None = None
    while True:
        try:
            order = orders.recv()
        except EOFError:
            return
        match order:
            case _Forward(sequences):
                runner.logits(sequences)
            case _Copy(copies):
                assert swap is not None
                swap.copy(copies)
            case _Scrub(block_ids):
                orders.send(runner.storage.scrub(block_ids))
            case _MakeSwapSpace(places):
                swap = SwapSpace(runner.storage, places, perf_counter)


def _without_sampling(sequence: SequenceInput) -> SequenceInput:
    """What a follower needs: where logits are wanted counts, for all ranks must compute the same rows."""
    return SequenceInput(
        token_ids=tuple(sequence.token_ids),
        start=sequence.start,
        block_ids=tuple(sequence.block_ids),
        sampling=None if sequence.sampling is None else GREEDY,
        guess=tuple(sequence.guess),
    )
