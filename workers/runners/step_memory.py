"""What the widest step takes of a device's memory besides weights and KV: measured, by running it.

Widest in tokens and sequences: all are short prompts, so what plain torch attention gathers of a long context is not in
it (flash-attention gathers nothing). A step that finds no memory all the same is computed in pieces.

Knows a step's width and how torch counts what a CUDA device has given out. Does not know the pool or the model. **No
GPU has run the meter yet**: the tests measure with one of their own.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from workers.intake.sampling import SamplingParams
from workers.models.devices import Placement
from workers.runners.runner import ModelLimits, SequenceInput

__all__ = ["CudaMemoryMeter", "MemoryMeter", "PoolProfile", "WidestStep", "pool_profile"]

_DRAWN = SamplingParams(temperature=1.0, top_p=0.9)
"""Takes more memory to draw than a greedy token."""


@dataclass(frozen=True, slots=True)
class WidestStep:
    """The largest step that the engine plans."""

    tokens: int
    sequences: int

    def sequences_of(self, limits: ModelLimits, block_size: int) -> list[SequenceInput]:
        """That step, on blocks 0 and up: each sequence a prompt that is computed whole, and samples."""
        length = max(1, min(self.tokens // self.sequences, limits.context_tokens))
        blocks = -(-length // block_size)
        return [
            SequenceInput([0] * length, 0, list(range(number * blocks, (number + 1) * blocks)), _DRAWN)
            for number in range(self.sequences)
        ]


class MemoryMeter(Protocol):
    def restart(self) -> None:
        """Measure from here on."""
        ...

    def peak_bytes(self) -> int:
        """The most that was given out at once since then, above what was given out at that time."""
        ...


class CudaMemoryMeter:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before_bytes = 0

    def restart(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before_bytes = torch.cuda.memory_allocated(self._device)

    def peak_bytes(self) -> int:
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - self._before_bytes


@dataclass(frozen=True, slots=True)
class PoolProfile:
    widest: WidestStep
    meter: MemoryMeter


def pool_profile(placement: Placement, widest: WidestStep | None) -> PoolProfile | None:
    """How to measure what steps up to this one take. None where nobody says how wide they are, and on a CPU: its memory
    is other programs' too, so the pool is a small share of what is free, and a step fits into the rest.
    """
    if widest is None or placement.device.type != "cuda":
        return None
    return PoolProfile(widest, CudaMemoryMeter(placement.device))
