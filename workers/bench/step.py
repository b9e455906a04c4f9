"""Where a step's time goes on this machine, against what its memory and its processor can do: `bench engine --profile`.

Knows a loaded decoder on the compiled kernels, and steps of a few kinds: one token each of so many sequences, and one
piece of a prompt. Does not know requests or scheduling.

Kinds take turns, round after round, so that a machine whose speed drifts is the same to all of them. Of each the
median counts, and the shortest: what other programs take, they only ever add. Beside the parts of the forward stands
what is outside of it: packing the step, drawing the tokens.

The memory's speed is that of reading half a GiB once, by as many threads, in the same rounds; the processor's that of
torch's product of two large float32 matrices.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.table import Table

from workers.intake.sampling import GREEDY
from workers.runners.decoder.native_forward import NativeForward
from workers.runners.decoder.runner import DecoderRunner
from workers.runners.native.library import STAGES, NativeLibrary
from workers.runners.runner import SequenceInput

__all__ = ["MachineLimits", "StepProfile", "profile_steps", "profile_table"]

_SEQUENCES = (1, 8, 32, 64)
_CONTEXT = 256
_PROMPT = 512
_READ_FLOATS = 2**27
_PRODUCT = 1536
_SEED = 20261130


@dataclass(frozen=True, slots=True)
class MachineLimits:
    read_gb_s: float
    product_gflop_s: float
    """float32"""


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Of one kind of step. Seconds; a figure each for the median round and the shortest."""

    sequences: int
    tokens: int
    context: int
    """At each sequence's end."""
    step_s: tuple[float, float]
    parts_s: dict[str, tuple[float, float]]
    """`STAGES`, and `outside` of the forward."""
    weight_gb_s: float
    """Weights read in the shortest products."""
    kv_gb_s: float
    """Keys and values read in the shortest attention, each once."""
    gflop_s: float
    """Of the shortest products."""


def profile_steps(
    runner: DecoderRunner, native: NativeForward, library: NativeLibrary, *, threads: int, rounds: int
) -> tuple[MachineLimits, list[StepProfile]]:
    """Run steps on the runner's pool, which must be nobody's."""
    context, prompt = (min(tokens, runner.limits.context_tokens) for tokens in (_CONTEXT, _PROMPT))
    blocks = -(-context // runner.block_size)
    kinds = {
        (sequences, sequences): _decodes(runner, sequences, context)
        for sequences in _SEQUENCES
        if sequences * blocks <= runner.num_blocks
    }
    kinds[1, prompt] = [SequenceInput([1] * prompt, 0, range(-(-prompt // runner.block_size)), GREEDY)]
    memory = np.ones(_READ_FLOATS, np.float32)
    left = torch.ones((_PRODUCT, _PRODUCT))
    read_s, product_s = [], []
    found: dict[tuple[int, int], list[list[float]]] = {kind: [] for kind in kinds}
    for step in kinds.values():
        runner.step(step)
    for _ in range(rounds):
        read_s.append(library.read_seconds(memory, threads))
        product_s.append(_timed(lambda: torch.mm(left, left)))
        for kind, step in kinds.items():
            before = native.statistics().seconds
            step_s = _timed(partial(runner.step, step))
            parts = [after - before[stage] for stage, after in native.statistics().seconds.items()]
            found[kind].append([step_s, *parts, step_s - sum(parts)])
    limits = MachineLimits(memory.nbytes / min(read_s) / 1e9, 2 * _PRODUCT**3 / min(product_s) / 1e9)
    profiles = [
        _profile(runner, native, sequences, tokens, prompt if tokens > sequences else context, np.array(rows))
        for (sequences, tokens), rows in found.items()
    ]
    return limits, profiles


def profile_table(limits: MachineLimits, profiles: Sequence[StepProfile]) -> Table:
    reach = f"memory reads {limits.read_gb_s:.1f} GB/s, torch.mm makes {limits.product_gflop_s:.0f} GFLOP/s"
    table = Table(title=f"shortest of each, ms; {reach}", padding=(0, 0))
    for heading in ("tokens", "step", *STAGES, "outside", "weights GB/s", "KV GB/s", "GFLOP/s"):
        table.add_column(heading, justify="right")
    for profile in profiles:
        times = (f"{least * 1e3:.1f}" for _median, least in (profile.step_s, *profile.parts_s.values()))
        # A piece of a prompt reads its KV many times, out of the caches.
        kv = f"{profile.kv_gb_s:.1f}" if profile.tokens == profile.sequences else ""
        table.add_row(
            f"{profile.sequences} × {profile.tokens // profile.sequences}",
            *times,
            f"{profile.weight_gb_s:.1f}",
            kv,
            f"{profile.gflop_s:.0f}",
        )
    return table


def _profile(
    runner: DecoderRunner,
    native: NativeForward,
    sequences: int,
    tokens: int,
    context: int,
    rows: np.ndarray[Any, np.dtype[np.float64]],
) -> StepProfile:
    median, least = np.median(rows, axis=0), rows.min(axis=0)
    step, *parts = [(float(a), float(b)) for a, b in zip(median, least, strict=True)]
    named = dict(zip((*STAGES, "outside"), parts, strict=True))
    statistics = runner.storage.statistics()
    kv_bytes = sequences * -(-context // runner.block_size) * statistics.block_bytes
    products_s = named["products"][1] + named["head"][1]
    size = native.size
    return StepProfile(
        sequences=sequences,
        tokens=tokens,
        context=context,
        step_s=step,
        parts_s=named,
        weight_gb_s=size.weight_bytes / products_s / 1e9,
        kv_gb_s=kv_bytes / named["attention"][1] / 1e9,
        gflop_s=2 * (size.layer_weights * tokens + size.head_weights * sequences) / products_s / 1e9,
    )


def _decodes(runner: DecoderRunner, sequences: int, context: int) -> list[SequenceInput]:
    """Blocks scattered as those of a pool in use are."""
    blocks = -(-context // runner.block_size)
    order = np.random.default_rng(_SEED).permutation(runner.num_blocks)
    tables = order[: sequences * blocks].reshape(sequences, blocks).tolist()
    return [SequenceInput([1], context - 1, table, GREEDY) for table in tables]


def _timed(run: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s
