"""A runner that goes wrong at a chosen step, in each of the ways in which one can."""

import threading
from collections.abc import Callable, Sequence

from tests.workers.engine.wrapped_runner import WrappedRunner
from workers.runners.runner import ModelRunner, SequenceInput

__all__ = ["FaultyRunner"]

Fault = Callable[[Sequence[SequenceInput]], None]
"""Raises, or does not come back, if it will: called before each step."""


class FaultyRunner(WrappedRunner):
    """A `ModelRunner`: another one, and a fault before its steps."""

    def __init__(self, runner: ModelRunner, fault: Fault) -> None:
        super().__init__(runner)
        self._fault = fault
        self.steps = 0

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        self.steps += 1
        self._fault(sequences)
        return super().step(sequences)


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
