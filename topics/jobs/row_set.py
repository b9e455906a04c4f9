"""A set of a job's rows, small enough to travel in a record.

Knows row numbers. One bit a row, deflated: 50,000 rows are at most 8.4 kB of text, and a run of consecutive rows a few
dozen bytes.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator

__all__ = ["RowSet"]


class RowSet:
    """Rows 0 … `total` − 1, in or out."""

    def __init__(self, total: int, rows: Iterable[int] = ()) -> None:
        self.total = total
        self._bits = bytearray((total + 7) // 8)
        self._size = 0
        for row in rows:
            self.add(row)

    @classmethod
    def decode(cls, total: int, text: str) -> "RowSet":
        """Raises `ValueError` for what `encode` doesn't write."""
        rows = cls(total)
        bits = zlib.decompressobj().decompress(b64decode(text, validate=True), len(rows._bits) + 1)
        if len(bits) != len(rows._bits):
            raise ValueError(f"a set of {total} rows has {len(rows._bits)} bytes, not {len(bits)}")
        rows._bits = bytearray(bits)
        rows._size = sum(byte.bit_count() for byte in bits)
        return rows

    def encode(self) -> str:
        return b64encode(zlib.compress(bytes(self._bits))).decode("ascii")

    def add(self, row: int) -> None:
        assert 0 <= row < self.total, f"{row = } of {self.total}"
        bit = 1 << (row & 7)
        if not self._bits[row >> 3] & bit:
            self._bits[row >> 3] |= bit
            self._size += 1

    def __contains__(self, row: object) -> bool:
        return isinstance(row, int) and 0 <= row < self.total and bool(self._bits[row >> 3] >> (row & 7) & 1)

    def __iter__(self) -> Iterator[int]:
        return (row for row in range(self.total) if row in self)

    def __len__(self) -> int:
        return self._size
