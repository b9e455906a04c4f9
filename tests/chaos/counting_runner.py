"""A runner that counts what it computes in memory that outlives its process: so that work that was done twice shows.

Knows the runner's protocol. Does not know what is computed, or how a process ends.
"""

import mmap
from collections.abc import Sequence
from typing import Any

from workers.runners.runner import SequenceInput

__all__ = ["CountingRunner", "positions"]


class CountingRunner:
    def __init__(self, runner: Any, counter: mmap.mmap) -> None:
        """`counter`: eight bytes that are shared with whoever reads them."""
        self._runner = runner
        self._counter = counter
        self._positions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        self._positions += sum(len(each.token_ids) for each in sequences)
        self._counter[:] = self._positions.to_bytes(8, "little")
        return self._runner.step(sequences)  # type: ignore[no-any-return]


def positions(counter: mmap.mmap) -> int:
    """That were computed so far, of prompts and answers."""
    return int.from_bytes(counter[:], "little")
