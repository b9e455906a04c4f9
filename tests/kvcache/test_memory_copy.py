"""Pieces of memory copied by one thread and by several."""

import numpy as np
import pytest

from kvcache.memory_copy import MemoryCopier, Piece

PIECE = 700_001
"""So that a thread's share ends within a piece."""


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_byte_of_every_piece_is_copied_and_no_other(threads: int) -> None:
    count = 7
    source = np.random.default_rng(1).integers(1, 256, (count, PIECE), dtype=np.uint8)
    target = np.zeros((count + 1, PIECE), dtype=np.uint8)
    places = [3, 0, 7, 1, 5, 2, 6]
    rows = zip(places, range(count), strict=True)
    MemoryCopier(threads).copy(
        [Piece(target[place].ctypes.data, source[row].ctypes.data, PIECE) for place, row in rows]
    )
    assert (target[places] == source).all()
    assert not target[4].any()


def test_a_copy_that_is_too_small_for_two_threads_is_made() -> None:
    source, target = np.arange(100, dtype=np.uint8), np.zeros(100, dtype=np.uint8)
    MemoryCopier(2).copy([Piece(target.ctypes.data, source.ctypes.data, 100)])
    assert (target == source).all()


def test_nothing_to_copy_is_no_error() -> None:
    MemoryCopier(2).copy([])
