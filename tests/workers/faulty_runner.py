"""A runner that goes wrong at a chosen step, in each of the ways in which one can."""

import threading
from collections.abc import Callable, Mapping, Sequence

from workers.intake.sampling import TokenLogprobs
from workers.runners.runner import Embedding, ModelLimits, ModelRunner, SequenceInput

__all__ = ["FaultyRunner"]

Fault = Callable[[Sequence[SequenceInput]], None]
"""Raises, or does not come back, if it will: called before each step."""


class FaultyRunner:
    """A `ModelRunner`: another one, and a fault before its steps."""

    def __init__(self, runner: ModelRunner, fault: Fault) -> None:
        self._runner = runner
        self._fault = fault
        self.steps = 0

    @property
    def limits(self) -> ModelLimits:
        return self._runner.limits

    @property
    def block_size(self) -> int:
        return self._runner.block_size

    @property
    def num_blocks(self) -> int:
        return self._runner.num_blocks

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        self.steps += 1
        self._fault(sequences)
        return self._runner.step(sequences)

    def take_logprobs(self) -> Mapping[int, TokenLogprobs]:
        return self._runner.take_logprobs()

    def take_embeddings(self) -> Mapping[int, Embedding]:
        return self._runner.take_embeddings()


class Hang:
    """A fault: from its n-th step on it does not come back until the test lets go."""

    def __init__(self, after: int) -> None:
        self._left = after
        self.hangs = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, sequences: Sequence[SequenceInput]) -> None:
        self._left -= 1
        if self._left < 0:
            self.hangs.set()
            assert self.let_go.wait(60), "the test forgot its engine"
