import pytest

from kvcache.manager import KVCacheManager

NAMES = [101, 102, 103, 104, 105, 106]


def test_allocate_covers_the_tokens() -> None:
    kv = KVCacheManager(num_blocks=10, block_size=4)
    allocation = kv.allocate(7, 9, owner_class=1)
    assert allocation is not None
    assert allocation.blocks == 3
    assert list(kv.table(7)) == [0, 1, 2]
    assert kv.free_blocks == 7


def test_allocate_is_all_or_nothing() -> None:
    kv = KVCacheManager(num_blocks=2, block_size=4)
    assert kv.allocate(1, 9, owner_class=0) is None
    assert kv.free_blocks == 2
    assert not kv.holds(1)
    kv.check_integrity()


def test_predicted_growth_keeps_newcomers_out() -> None:
    kv = KVCacheManager(num_blocks=4, block_size=1)
    assert kv.allocate(1, 1, owner_class=0, predicted_tokens=3) is not None
    assert (kv.free_blocks, kv.reserved_blocks) == (3, 2)
    assert kv.allocate(2, 1, owner_class=0, predicted_tokens=3) is None, "both at 3 tokens would be 6"
    assert kv.allocate(2, 1, owner_class=0, predicted_tokens=2) is not None, "it ends before the other is at 3"


def test_where_nobody_may_be_evicted_everybodys_longest_must_fit_at_once() -> None:
    kv = KVCacheManager(num_blocks=4, block_size=1, firm=True)
    assert kv.allocate(1, 1, owner_class=0, predicted_tokens=3) is not None
    assert kv.allocate(2, 1, owner_class=0, predicted_tokens=2) is None
    assert kv.allocate(2, 1, owner_class=0, predicted_tokens=1) is not None


def test_growth_uses_its_promise_first() -> None:
    kv = KVCacheManager(num_blocks=4, block_size=4)
    kv.allocate(1, 4, owner_class=0, predicted_tokens=8)
    assert kv.grow(1, 5)
    assert kv.reserved_blocks == 0
    assert kv.grow(1, 9), "past the prediction any free block will do"
    assert kv.statistics().grown_past_prediction == 1


def test_a_promise_is_soft() -> None:
    kv = KVCacheManager(num_blocks=3, block_size=4)
    kv.allocate(1, 4, owner_class=0, predicted_tokens=8)
    kv.allocate(2, 4, owner_class=0)
    assert kv.grow(2, 5), "the block promised to 1 is free, and 2 runs already"
    assert not kv.grow(1, 5)
    kv.check_integrity()


def test_growth_within_the_last_block_needs_nothing() -> None:
    kv = KVCacheManager(num_blocks=1, block_size=4)
    kv.allocate(1, 1, owner_class=0)
    assert kv.grow(1, 4)
    assert not kv.grow(1, 5)
    assert list(kv.table(1)) == [0]


def test_release_gives_back_blocks_and_promise() -> None:
    kv = KVCacheManager(num_blocks=4, block_size=4)
    kv.allocate(1, 8, owner_class=2, predicted_tokens=16)
    assert kv.release(1) == 2
    assert (kv.free_blocks, kv.reserved_blocks, kv.used_blocks(2)) == (4, 0, 0)


def test_of_a_released_table_the_end_is_taken_again_first() -> None:
    kv = KVCacheManager(num_blocks=3, block_size=1)
    kv.allocate(1, 3, owner_class=0, names=NAMES)
    kv.computed(1, 3)
    kv.release(1)
    kv.allocate(2, 1, owner_class=0)
    assert list(kv.table(2)) == [2]
    kv.allocate(3, 2, owner_class=0, names=NAMES)
    assert list(kv.table(3)) == [0, 1], "the start can still be found, and its last token is computed"


def test_blocks_whose_content_has_no_name_are_taken_first_of_all() -> None:
    kv = KVCacheManager(num_blocks=3, block_size=1)
    kv.allocate(1, 3, owner_class=0, names=NAMES)
    kv.computed(1, 2)
    kv.release(1)
    kv.allocate(2, 1, owner_class=0)
    assert list(kv.table(2)) == [2]


def test_usage_is_accounted_to_the_class_it_was_allocated_for() -> None:
    kv = KVCacheManager(num_blocks=8, block_size=4)
    kv.allocate(1, 8, owner_class=0)
    kv.allocate(2, 4, owner_class=3)
    kv.grow(2, 9)
    assert (kv.used_blocks(0), kv.used_blocks(3), kv.used_blocks(1)) == (2, 3, 0)
    assert dict(kv.statistics().used_by_class) == {0: 2, 3: 3}


def test_a_table_that_grows_undisturbed_is_one_run() -> None:
    kv = KVCacheManager(num_blocks=8, block_size=1)
    kv.allocate(1, 2, owner_class=0)
    kv.grow(1, 5)
    assert kv.runs(1) == 1
    kv.allocate(2, 1, owner_class=0)
    kv.grow(1, 6)
    assert kv.runs(1) == 2


def test_allocating_twice_is_a_bug() -> None:
    kv = KVCacheManager(num_blocks=8, block_size=4)
    kv.allocate(1, 1, owner_class=0)
    with pytest.raises(AssertionError, match="row 1 has blocks already"):
        kv.allocate(1, 1, owner_class=0)


def test_refusals_are_counted() -> None:
    kv = KVCacheManager(num_blocks=1, block_size=4)
    kv.allocate(1, 1, owner_class=0)
    kv.allocate(2, 1, owner_class=0)
    kv.grow(1, 5)
    statistics = kv.statistics()
    assert (statistics.refused_allocations, statistics.refused_growths) == (1, 1)
    assert (statistics.allocations, statistics.growths, statistics.tables) == (1, 0, 1)


def test_an_empty_block_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size=0"):
        KVCacheManager(num_blocks=1, block_size=0)
