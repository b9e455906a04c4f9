"""Queues of rows as linked lists through columns: no object a row, and any row leaves in constant time.

Knows row numbers and the order in which rows came. Does not know why. All lists of a discipline share one `RowLinks`,
for a row is in one list at most.

8 bytes a row; 16 where a row can come back to its place.
"""

from array import array
from collections.abc import Iterator
from typing import Protocol

from scheduling.columns import grown

__all__ = ["NO_ROW", "RowChain", "RowEnds", "RowLinks", "RowList"]

NO_ROW = 2**32 - 1
"""In a link: nobody. (An index has fewer rows.)"""


class RowEnds(Protocol):
    """What a list is to its links: `head` is `NO_ROW` when it is empty."""

    head: int
    tail: int
    count: int


class RowList:
    """The ends of one list, and nothing else."""

    __slots__ = ("count", "head", "tail")

    def __init__(self) -> None:
        self.head = NO_ROW
        self.tail = NO_ROW
        self.count = 0


class RowChain:
    """The links of all lists."""

    def __init__(self) -> None:
        self.after: array[int] = array("I")
        self.before: array[int] = array("I")
        self._size = 0

    def append(self, queue: RowEnds, row: int) -> None:
        """A row that is in no list, at the tail."""
        if row >= self._size:
            self._grow(row)
        tail = queue.tail
        self.after[row] = NO_ROW
        self.before[row] = tail
        if tail == NO_ROW:
            queue.head = row
        else:
            self.after[tail] = row
        queue.tail = row
        queue.count += 1

    def remove(self, queue: RowEnds, row: int) -> None:
        before, after = self.before[row], self.after[row]
        if before == NO_ROW:
            assert queue.head == row, f"row {row} is not in this queue"
            queue.head = after
        else:
            self.after[before] = after
        if after == NO_ROW:
            queue.tail = before
        else:
            self.before[after] = before
        queue.count -= 1

    def pop(self, queue: RowEnds) -> None:
        """The head leaves."""
        after = self.after[queue.head]
        queue.head = after
        if after == NO_ROW:
            queue.tail = NO_ROW
        else:
            self.before[after] = NO_ROW
        queue.count -= 1

    def rows(self, queue: RowEnds) -> Iterator[int]:
        row = queue.head
        while row != NO_ROW:
            yield row
            row = self.after[row]

    def check_integrity(self, queue: RowEnds) -> None:
        """Assert that links and count agree. Linear."""
        count = 0
        before = NO_ROW
        for row in self.rows(queue):
            assert self.before[row] == before, f"row {row} points back to another row"
            before = row
            count += 1
            assert count <= queue.count, "the list has more rows than it counts, or a circle"
        assert count == queue.count, f"the list has {count} rows and counts {queue.count}"
        assert queue.tail == before, "the tail is not the last row"

    def _columns(self) -> "tuple[array[int], ...]":
        return self.after, self.before

    def _grow(self, row: int) -> None:
        more = grown(self._size, row) - self._size
        for column in self._columns():
            column.frombytes(bytes(more * column.itemsize))
        self._size += more


class RowLinks(RowChain):
    """The same, of rows that may come back to their places."""

    def __init__(self) -> None:
        super().__init__()
        self.number: array[int] = array("Q")
        """Rows are numbered as they come; a row that comes back keeps its number, and so its place."""
        self._count = 0

    def append(self, queue: RowEnds, row: int) -> None:
        """A new row at the tail."""
        super().append(queue, row)
        self._count = self.number[row] = self._count + 1

    def relist(self, queue: RowEnds, row: int) -> None:
        """A row that is in no list now, at the tail of this one, with the number it has."""
        number = self.number[row]
        self.append(queue, row)
        self.number[row] = number

    def restore(self, queue: RowEnds, row: int) -> None:
        """A row that was here before, by its number. Costs as many steps as rows came back before it."""
        if row >= self._size:
            self._grow(row)
        number = self.number[row]
        before, after = NO_ROW, queue.head
        while after != NO_ROW and self.number[after] < number:
            before, after = after, self.after[after]
        self.before[row], self.after[row] = before, after
        if before == NO_ROW:
            queue.head = row
        else:
            self.after[before] = row
        if after == NO_ROW:
            queue.tail = row
        else:
            self.before[after] = row
        queue.count += 1

    def _columns(self) -> "tuple[array[int], ...]":
        return *super()._columns(), self.number
