import pytest

from kvcache.block_pool import BlockPool


def test_fresh_blocks_come_as_one_run() -> None:
    assert BlockPool(8).allocate(5) == [0, 1, 2, 3, 4]


def test_all_or_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) is not None
    assert pool.allocate(2) is None
    assert pool.free_blocks == 1
    assert pool.allocate(1) == [3]


def test_least_recently_freed_is_taken_first() -> None:
    pool = BlockPool(4)
    pool.allocate(4)
    for block in (2, 0, 3):
        pool.free([block])
    assert pool.allocate(1) == [2]
    assert pool.allocate(1) == [0]
    assert pool.allocate(1) == [3]


def test_what_is_taken_together_is_in_ascending_order() -> None:
    pool = BlockPool(6)
    pool.allocate(6)
    pool.free([5, 2, 4, 3])
    assert pool.allocate(4) == [2, 3, 4, 5]


def test_growth_takes_the_blocks_behind_while_they_are_free() -> None:
    pool = BlockPool(8)
    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(2) == [2, 3]
    pool.free([2, 3])  # the most recently freed: 4 … 7 are older
    assert pool.allocate(3, behind=1) == [2, 3, 4]
    assert pool.allocate(2, behind=0) == [5, 6], "block 1 is held, so the oldest come"
    assert pool.allocate(1, behind=7) == [7], "nothing lies behind the last block"


def test_a_shared_block_is_free_when_the_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    assert pool.allocate(1) == [0]
    pool.share(0)
    pool.free([0])
    assert pool.free_blocks == 1
    assert pool.holders(0) == 1
    pool.free([0])
    assert pool.free_blocks == 2
    pool.check_integrity({})


def test_sharing_a_free_block_takes_it_out_of_the_middle() -> None:
    pool = BlockPool(5)
    pool.share(2)
    assert pool.free_blocks == 4
    assert pool.allocate(4) == [0, 1, 3, 4]
    pool.check_integrity(dict.fromkeys(range(5), 1))


def test_freeing_a_free_block_is_a_bug() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="block 1 is freed and nobody holds it"):
        pool.free([1])


def test_integrity_names_a_leaked_block() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="block 0 is held 1 times, its owners say 0"):
        pool.check_integrity({})


def test_statistics_count_runs_and_the_low_mark() -> None:
    pool = BlockPool(6)
    pool.allocate(3)
    pool.free([1])
    pool.allocate(2, behind=0)
    statistics = pool.statistics()
    assert statistics.free == 2
    assert statistics.free_lowest == 2
    assert statistics.taken == 5
    assert statistics.taken_in_run == 3, "0-1-2 is a run of two steps; 1 lies behind 0; 3 doesn't lie behind 1"


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks=0"):
        BlockPool(0)
