"""Whose blocks were copied out, and in which places of the swap pool they lie.

Knows rows, places by number, and what is left of a table. Does not know blocks, what is copied when
(`kvcache.swap_plan`), nor where the places are (`kvcache.storage`).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kvcache.block_pool import BlockPool

__all__ = ["SwapPlaces", "SwappedTable"]


@dataclass(frozen=True, slots=True)
class SwappedTable:
    """What is left of a table whose blocks were copied out."""

    computed_tokens: int
    head: int
    """Blocks at the start that others shared: not copied, but found again by their names."""
    places: tuple[int, ...]
    """In the swap pool, of the blocks behind the head."""


class SwapPlaces:
    """A bounded pool; none of 0 places ever has room."""

    def __init__(self, places: int) -> None:
        self._pool = BlockPool(places) if places else None
        self._tables: dict[int, SwappedTable] = {}

    @property
    def total(self) -> int:
        return 0 if self._pool is None else self._pool.num_blocks

    @property
    def free(self) -> int:
        return 0 if self._pool is None else self._pool.free_blocks

    def put(self, row: int, computed_tokens: int, head: int, blocks: int) -> tuple[int, ...] | None:
        """Places for so many blocks of the row, behind a head that is not copied; None if there are too few."""
        places = None if self._pool is None or not blocks else self._pool.allocate(blocks)
        if places is None:
            return None
        table = self._tables[row] = SwappedTable(computed_tokens, head, tuple(places))
        return table.places

    def take(self, row: int) -> SwappedTable | None:
        """The row comes back, or has ended: its places are free. None if it was not swapped out."""
        table = self._tables.pop(row, None)
        if table is not None:
            assert self._pool is not None, "somebody is swapped out and there is no swap pool"
            self._pool.free(table.places)
        return table

    def check_integrity(self, running: Iterable[int]) -> None:
        """Assert that the places are those of swapped tables, and that none of these rows has any."""
        assert self._tables.keys().isdisjoint(running), "a request runs and is swapped out"
        if self._pool is not None:
            self._pool.check_integrity(Counter(place for table in self._tables.values() for place in table.places))
