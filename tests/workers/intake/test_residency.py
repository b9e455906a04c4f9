"""The weighted pull: shares, floors, hysteresis, and which bound it is."""

import pytest

from scheduling.priority import PriorityClass
from workers.intake.residency import Bound, Residency, class_shares

P0, P3 = PriorityClass.P0, PriorityClass.P3


def residency() -> Residency:
    return Residency({P0: 3.0, P3: 1.0}, max_rows=100, max_held_bytes=100_000)


def test_bytes_are_divided_by_weight_above_a_floor_and_rows_equally() -> None:
    assert class_shares({P0: 3.0, P3: 1.0}, 100) == {P0: 5 + 90 * 3 // 4, P3: 27}
    statistics = residency().statistics()
    assert (statistics[P0].max_held_bytes, statistics[P3].max_held_bytes) == (72_500, 27_500)
    assert statistics[P0].max_rows == statistics[P3].max_rows == 50


def test_a_flood_of_one_class_pauses_that_class_alone() -> None:
    pulled = residency()
    for _ in range(50):
        pulled.enter(P3, 0, 1)
    assert pulled.paused(P3)
    assert not pulled.paused(P0)
    assert pulled.statistics()[P3].paused_by is Bound.ROWS


def test_a_class_resumes_only_well_below_its_limit() -> None:
    pulled = residency()
    for _ in range(50):
        pulled.enter(P3, 0, 1)
    for _ in range(12):
        pulled.leave(P3, 0, 1)
    assert pulled.paused(P3)
    pulled.leave(P3, 0, 1)
    assert not pulled.paused(P3)
    assert pulled.statistics()[P3].pauses == 1


def test_bytes_that_are_held_pause_as_rows_do() -> None:
    pulled = residency()
    pulled.enter(P3, 0, 1, 27_500)
    assert pulled.statistics()[P3].paused_by is Bound.HELD_BYTES
    pulled.leave(P3, 0, 1, 27_500)
    assert not pulled.paused(P3)


def test_leaving_twice_is_a_bug() -> None:
    pulled = residency()
    pulled.enter(P0, 0, 1, 1)
    pulled.leave(P0, 0, 1, 1)
    with pytest.raises(AssertionError, match="more records left"):
        pulled.leave(P0, 0, 1, 1)


def test_a_revoked_partition_takes_all_its_records_along_once() -> None:
    pulled = residency()
    for _ in range(43):
        pulled.enter(P3, 0, 1, 10)
    for _ in range(7):
        pulled.enter(P3, 1, 1, 10)
    assert pulled.paused(P3)
    pulled.revoke(P3, 0)
    assert not pulled.paused(P3)
    pulled.leave(P3, 0, 1, 10)
    assert pulled.statistics()[P3].rows == 7
    pulled.enter(P3, 0, 2, 10)
    pulled.leave(P3, 0, 1, 10)
    assert pulled.statistics()[P3].rows == 8
