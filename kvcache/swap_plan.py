"""Which blocks are copied where: values that say what `kvcache.storage` has to move, and in how few pieces.

Knows block numbers and places in the swap pool. Does not know tensors or requests.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

__all__ = ["BlockCopy", "Direction", "runs"]


class Direction(Enum):
    OUT = "out"
    """From blocks to places."""
    IN = "in"


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Block *i* ↔ place *i*. To be done in the order in which they were planned, before the next forward."""

    direction: Direction
    blocks: tuple[int, ...]
    places: tuple[int, ...]
    row: int | None = None
    """Whose blocks they are; None: nobody's, of a measurement."""


def runs(numbers: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The stretches of consecutive numbers, as [from, to) in the tuple's own positions."""
    start = 0
    for position in range(1, len(numbers) + 1):
        if position == len(numbers) or numbers[position] != numbers[position - 1] + 1:
            yield start, position
            start = position
