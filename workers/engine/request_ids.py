"""Rows by request id, without the ids: a hash table of rows.

Knows rows and hashes. Does not know the ids afterwards: who looks for one gets the rows that may have it, one or two
in all, and compares. Owned by the engine thread.

Chains through columns, 8 bytes a row, and 4 bytes for each of a fixed number of chains: a dictionary takes a hundred
and more, most of it for ids that the rows have already. Strings hash differently in each process, so nobody can send
ids of one chain; whoever sends one id very often makes its own chain long, which costs who looks for that id.
"""

from array import array
from collections.abc import Iterator

from scheduling.columns import grown
from scheduling.row_list import NO_ROW

__all__ = ["RequestIds"]


class RequestIds:
    def __init__(self, capacity: int) -> None:
        """`capacity`: about the most rows at once."""
        chains = 1 << max(1, capacity - 1).bit_length()
        self._mask = chains - 1
        self._heads: array[int] = array("I", [NO_ROW]) * chains
        self._after: array[int] = array("I")
        self._before: array[int] = array("I")

    def enter(self, row: int, request_id: str) -> None:
        """The row is one of this id; there may be others."""
        if row >= len(self._after):
            self._grow(row)
        chain = hash(request_id) & self._mask
        after = self._heads[chain]
        self._heads[chain] = row
        self._after[row], self._before[row] = after, NO_ROW
        if after != NO_ROW:
            self._before[after] = row

    def leave(self, row: int, request_id: str) -> None:
        """`request_id`: under which it entered."""
        before, after = self._before[row], self._after[row]
        if before == NO_ROW:
            chain = hash(request_id) & self._mask
            assert self._heads[chain] == row, f"row {row} did not enter as {request_id!r}"
            self._heads[chain] = after
        else:
            self._after[before] = after
        if after != NO_ROW:
            self._before[after] = before

    def rows(self, request_id: str) -> Iterator[int]:
        """Every row of this id, and perhaps some of others. Valid until the next change."""
        row = self._heads[hash(request_id) & self._mask]
        while row != NO_ROW:
            yield row
            row = self._after[row]

    def _grow(self, row: int) -> None:
        size = len(self._after)
        more = grown(size, row) - size
        for column in (self._after, self._before):
            column.frombytes(bytes(more * column.itemsize))
