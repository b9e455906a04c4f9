"""CUDA graphs of decode steps: the whole forward as one launch, for a few batch sizes.

Knows static tensors, padding and buckets. Does not know what is captured. **No GPU has run this yet**: tests run it on
a CPU with a capture that computes anew each time, so all of it but CUDA's own recording.

A decode step of a small batch is hundreds of small kernels, each launched from Python: the GPU waits for the launches.
A graph is recorded once and launched whole, but with fixed shapes and addresses. So there is one for each of some batch
sizes (buckets), recorded at start, largest first, in one pool of memory; a step's inputs are copied into its bucket's
own tensors. Rows that a bucket has too many repeat the step's first row: they compute, and write to the same place, the
very values that it does.

Steps with prompts have any number of tokens and enough work to hide the launches; they run as they are.

Drawback: the largest bucket's activations are kept for good, and a start takes a fraction of a second a bucket.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from workers.runners.attention.flash import FlashAttention, FlashStep

__all__ = ["Capture", "DecodeGraphs", "Replay", "bucket_for", "capture_cuda", "decode_buckets"]

_FINE_UP_TO = 32
_COARSE = 16
_WARM_UPS = 2

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, FlashStep], torch.Tensor]
"""(ids, positions, rows, attention) → logits [rows, vocabulary]."""


def decode_buckets(most: int) -> tuple[int, ...]:
    """Batch sizes to record for steps of up to `most` sequences: at most twice, later a quarter too many rows."""
    sizes = {1, 2, 4, most, *range(8, min(most, _FINE_UP_TO), 8), *range(_FINE_UP_TO, most, _COARSE)}
    return tuple(sorted(size for size in sizes if size <= most))


def bucket_for(sequences: int, buckets: Sequence[int]) -> int | None:
    """The smallest that holds so many; None if none does."""
    return min((bucket for bucket in buckets if bucket >= sequences), default=None)


class Replay(Protocol):
    """A recorded forward: computes again, from the tensors it was recorded with into the one it gives."""

    def __call__(self) -> torch.Tensor: ...


Capture = Callable[[Callable[[], torch.Tensor]], Replay]


@dataclass(frozen=True, slots=True)
class _Bucket:
    ids: torch.Tensor
    positions: torch.Tensor
    attention: FlashStep
    replay: Replay


class DecodeGraphs:
    """Owned by the engine thread; recorded before it starts."""

    def __init__(
        self, forward: Forward, attention: FlashAttention, *, most_sequences: int, context_tokens: int, capture: Capture
    ) -> None:
        """Records all buckets: KV of block 0 is overwritten, so the pool must be nobody's yet."""
        self._buckets: dict[int, _Bucket] = {}
        device = attention.storage.blocks.device
        for size in reversed(decode_buckets(most_sequences)):
            ids = torch.zeros(size, dtype=torch.long, device=device)
            positions = torch.zeros(size, dtype=torch.long, device=device)
            rows = torch.arange(size, device=device)
            static = attention.static_decode(size, context_tokens)
            replay = capture(partial(forward, ids, positions, rows, static))
            self._buckets[size] = _Bucket(ids, positions, static, replay)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self._buckets))

    def logits(self, ids: torch.Tensor, positions: torch.Tensor, step: FlashStep) -> torch.Tensor | None:
        """Of a step in which every sequence has one new token and samples; None if there is no bucket for it.

        `ids`, `positions` [sequences] on the device. Valid until the next call.
        """
        count = len(ids)
        size = bucket_for(count, self.sizes)
        if size is None:
            return None
        bucket = self._buckets[size]
        fill_rows(bucket.ids, ids)
        fill_rows(bucket.positions, positions)
        step.copy_into(bucket.attention)
        return bucket.replay()[:count]


def fill_rows(static: torch.Tensor, values: torch.Tensor) -> None:
    """The rows of a bucket: these, and then the first of them again and again."""
    static[: len(values)].copy_(values)
    static[len(values) :].copy_(values[:1].expand(len(static) - len(values), *values.shape[1:]))


def capture_cuda(pool: Any) -> Capture:
    """Recording by CUDA; all into one `pool` of memory (`torch.cuda.graph_pool_handle()`)."""

    def capture(run: Callable[[], torch.Tensor]) -> Replay:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):  # libraries choose kernels and allocate on first use
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay

    return capture
