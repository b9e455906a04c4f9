"""Prefix hits through the manager: what is found, when, and by whom."""

from collections.abc import Sequence
from typing import Any

import pytest

from kvcache.block_hash import BlockHasher
from kvcache.manager import KVCacheManager

NAMES = [101, 102, 103, 104, 105, 106]


def manager(blocks: int = 12) -> KVCacheManager:
    return KVCacheManager(blocks, block_size=4)


def hit(kv: KVCacheManager, row: int, tokens: int, names: Sequence[int] = NAMES, owner_class: int = 1) -> int:
    allocation = kv.allocate(row, tokens, owner_class=owner_class, names=names)
    assert allocation is not None
    kv.check_integrity()
    return allocation.cached_tokens


def test_what_one_request_computed_another_finds() -> None:
    kv = manager()
    assert hit(kv, 1, 10) == 0
    kv.computed(1, 10)
    assert hit(kv, 2, 11, owner_class=3) == 8, "two whole blocks, whatever the class"
    assert list(kv.table(2))[:2] == list(kv.table(1))[:2]
    assert kv.free_blocks == 12 - 3 - 1


def test_nothing_is_found_before_it_is_computed() -> None:
    kv = manager()
    hit(kv, 1, 10)
    kv.computed(1, 7)
    assert hit(kv, 2, 10) == 4, "of the second block only three tokens are computed"


def test_at_least_one_token_is_computed() -> None:
    kv = manager()
    hit(kv, 1, 8)
    kv.computed(1, 8)
    assert hit(kv, 2, 8) == 4


def test_a_hit_survives_the_request_that_made_it() -> None:
    kv = manager()
    hit(kv, 1, 10)
    kv.computed(1, 10)
    kv.release(1)
    assert kv.free_blocks == 12
    assert kv.cached_prefix(NAMES, 12) == 8
    assert hit(kv, 2, 12) == 8


def test_what_was_used_longest_ago_is_lost_first() -> None:
    kv = manager(blocks=6)
    others = [name + 1000 for name in NAMES]
    for row, names in ((1, NAMES), (2, others)):
        hit(kv, row, 8, names)
        kv.computed(row, 8)
        kv.release(row)
    hit(kv, 3, 12, names=())
    assert kv.cached_prefix(NAMES, 12) == 4, "two blocks never had a name, then the older prompt's end"
    kv.release(3)
    hit(kv, 4, 20, names=())
    assert (kv.cached_prefix(NAMES, 12), kv.cached_prefix(others, 12)) == (0, 4)


def test_growth_does_not_take_a_named_block_for_the_sake_of_a_run() -> None:
    kv = manager()
    hit(kv, 1, 4, names=[7])
    hit(kv, 2, 4)
    kv.computed(2, 4)
    kv.release(2)
    kv.grow(1, 5)
    assert kv.cached_prefix(NAMES, 5) == 4
    assert kv.runs(1) == 2


def test_equal_content_computed_twice_keeps_one_name() -> None:
    kv = manager()
    for row in (1, 2):
        hit(kv, row, 8)
    for row in (1, 2):
        kv.computed(row, 8)
    kv.release(1)
    kv.release(2)
    kv.check_integrity()
    assert kv.statistics().cached == 2


def test_a_hit_shared_with_others_takes_no_room() -> None:
    kv = manager(blocks=4)
    hit(kv, 1, 12)
    kv.computed(1, 12)
    assert hit(kv, 2, 13) == 12
    assert kv.free_blocks == 0


def test_hits_are_counted_by_class() -> None:
    kv = manager()
    hit(kv, 1, 8, owner_class=0)
    kv.computed(1, 8)
    hit(kv, 2, 9, owner_class=3)
    statistics = kv.statistics()
    assert dict(statistics.asked_tokens_by_class) == {0: 8, 3: 9}
    assert statistics.hit_tokens_by_class[3] == 8
    assert not statistics.hit_tokens_by_class[0]


def test_a_shared_block_is_charged_to_the_most_urgent_that_holds_it() -> None:
    kv = manager()
    hit(kv, 1, 8, owner_class=3)
    kv.computed(1, 8)
    hit(kv, 2, 9, owner_class=0)
    assert (kv.used_blocks(0), kv.used_blocks(3)) == (3, 0)
    kv.release(2)
    assert (kv.used_blocks(0), kv.used_blocks(3)) == (0, 2)
    kv.check_integrity()


def test_distrusted_blocks_are_found_no_more() -> None:
    kv = manager()
    hit(kv, 1, 12)
    kv.computed(1, 12)
    hit(kv, 2, 12)
    hit(kv, 3, 12, names=[8, 9, 10])
    assert kv.distrust([kv.table(1)[1]]) == [1, 2]
    assert kv.cached_prefix(NAMES, 12) == 4


def hasher(**changes: Any) -> BlockHasher:
    settings: dict[str, Any] = {"model": "m", "adapter": "", "dtype": "float32"}
    return BlockHasher(4, **(settings | changes))


def test_names_agree_up_to_the_first_difference() -> None:
    first = hasher().names([1, 2, 3, 4, 5, 6, 7, 8, 9], "a")
    second = hasher().names([1, 2, 3, 4, 5, 6, 7, 0, 9, 9, 9, 9], "a")
    assert len(first) == 2
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_equal_tokens_behind_different_ones_are_named_differently() -> None:
    assert hasher().names([1, 2, 3, 4, 5, 6, 7, 8], "a")[1] != hasher().names([0, 2, 3, 4, 5, 6, 7, 8], "a")[1]


def test_names_may_be_made_bit_by_bit() -> None:
    names: list[int] = []
    tokens = [*range(11)]
    for length in range(12):
        hasher().extend(names, tokens[:length], "a")
    assert names == hasher().names(tokens, "a")


@pytest.mark.parametrize("change", [{"model": "n"}, {"adapter": "x"}, {"dtype": "bfloat16"}])
def test_what_the_kv_depends_on_is_part_of_the_name(change: dict[str, str]) -> None:
    assert hasher().names([1, 2, 3, 4], "a") != hasher(**change).names([1, 2, 3, 4], "a")


def test_tenants_share_unless_they_are_isolated() -> None:
    tokens = [1, 2, 3, 4]
    assert hasher().names(tokens, "a") == hasher().names(tokens, "b")
    assert hasher(by_tenant=True).names(tokens, "a") != hasher(by_tenant=True).names(tokens, "b")
