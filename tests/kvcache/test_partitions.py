from random import Random

import pytest

from kvcache.growth import Growing, worst_need
from kvcache.manager import KVCacheManager
from kvcache.partitions import DEFAULT_SHARES, Part, PartitionError, Share, divide
from kvcache.reserves import PEAK_HALF_LIFE_S


def test_reserves_over_the_whole_are_refused_with_the_sum() -> None:
    with pytest.raises(PartitionError, match=r"0.6 \(p0\) \+ 0.5 \(p1\) = 1.1, more than the whole: lower them by 0.1"):
        divide("blocks", 100, {0: Share(0.6), 1: Share(0.5)})


def test_a_ceiling_below_the_reserve_is_refused() -> None:
    with pytest.raises(PartitionError, match=r"p1's ceiling of slots = 0.2 is below its reserve = 0.3"):
        divide("slots", 64, {1: Share(0.3, 0.2)})


@pytest.mark.parametrize("share", [Share(-0.1), Share(0.1, 1.1), Share(1.5)])
def test_a_share_is_a_fraction(share: Share) -> None:
    with pytest.raises(PartitionError, match="from 0 to 1"):
        divide("blocks", 100, {0: share})


def test_the_shares_that_ship_divide_a_pool() -> None:
    assert divide("blocks", 1000, DEFAULT_SHARES) == {
        0: Part(150, 400),
        1: Part(375, 1000),
        2: Part(0, 1000),
        3: Part(0, 1000),
    }


def test_a_class_is_held_to_its_ceiling() -> None:
    kv = KVCacheManager(10, 1, parts={0: Part(0, 4)})
    assert kv.allocate(1, 3, owner_class=0) is not None
    assert kv.allocate(2, 2, owner_class=0) is None
    assert kv.allocate(2, 2, owner_class=1) is not None


def test_a_class_that_holds_nothing_may_pass_its_ceiling_with_one_request() -> None:
    kv = KVCacheManager(10, 1, parts={0: Part(0, 4)})
    assert kv.allocate(1, 8, owner_class=0) is not None
    assert kv.allocate(2, 1, owner_class=0) is None


def test_idle_reserve_is_lent_and_the_borrower_is_known() -> None:
    kv = KVCacheManager(10, 1, parts={0: Part(5, 10), 3: Part(0, 10)})
    assert kv.allocate(1, 8, owner_class=3) is not None
    assert kv.is_borrower(3)
    assert not kv.is_borrower(3, given_back=8)
    assert kv.allocate(2, 2, owner_class=0) is not None
    assert not kv.is_borrower(0)


def test_within_its_reserve_a_class_finds_what_is_promised_to_others() -> None:
    kv = KVCacheManager(10, 1, parts={0: Part(5, 10)})
    kv.allocate(1, 4, owner_class=3, predicted_tokens=10)
    assert kv.allocate(2, 3, owner_class=3, predicted_tokens=5) is None
    assert kv.allocate(2, 3, owner_class=0, predicted_tokens=5) is not None


def test_a_following_reserve_holds_back_what_was_used_lately() -> None:
    kv = KVCacheManager(10, 1, parts={0: Part(2, 5)}, following=[0])
    kv.allocate(1, 4, owner_class=0)
    kv.tick(10.0)
    kv.release(1)
    kv.tick(11.0)
    assert kv.allocate(9, 1, owner_class=1) is not None, "somebody runs"
    assert kv.allocate(2, 7, owner_class=3) is None
    assert kv.allocate(2, 5, owner_class=3) is not None
    kv.release(2)
    kv.tick(11.0 + 4 * PEAK_HALF_LIFE_S)
    assert kv.allocate(2, 8, owner_class=3) is not None, "it fades"


def test_where_nobody_is_evicted_reserves_are_not_lent() -> None:
    kv = KVCacheManager(10, 1, parts={0: Part(5, 10)}, firm=True)
    kv.allocate(9, 1, owner_class=3)
    assert kv.allocate(1, 5, owner_class=3) is None
    assert kv.allocate(1, 4, owner_class=3) is not None


def test_what_would_be_free_without_others_is_known_before_they_are_evicted() -> None:
    kv = KVCacheManager(10, 1)
    names = [1, 2, 3]
    kv.allocate(1, 5, owner_class=3, names=names)
    kv.computed(1, 5)
    kv.allocate(2, 5, owner_class=3, names=names)
    kv.allocate(3, 3, owner_class=3)
    assert kv.free_blocks == 0
    assert not kv.fits(4, 3, owner_class=0, without=[1]), "2 holds the shared blocks still"
    assert kv.fits(4, 2, owner_class=0, without=[1])
    assert kv.fits(4, 7, owner_class=0, without=[1, 2])
    kv.release(1)
    kv.release(2)
    assert kv.allocate(4, 7, owner_class=0) is not None


def test_the_worst_moment_is_before_the_first_end_that_gives_back_enough() -> None:
    short = Growing(left=2, tokens=4, blocks=4, returned=4)
    long = Growing(left=10, tokens=4, blocks=4, returned=4)
    assert worst_need([short], 1) == 2
    assert worst_need([short, long], 1) == 6, "10 more tokens of the long one, and 4 blocks of the short one are back"
    assert worst_need([long, long], 1) == 20


def test_shared_blocks_do_not_come_back() -> None:
    short = Growing(left=2, tokens=4, blocks=4, returned=0)
    long = Growing(left=10, tokens=4, blocks=4, returned=4)
    assert worst_need([short, long], 1) == 10


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_the_need_is_what_a_simulation_of_the_growth_comes_to(block_size: int) -> None:
    draw = Random(block_size)
    for _ in range(200):
        requests = []
        for _ in range(draw.randrange(1, 8)):
            tokens = draw.randrange(1, 60)
            blocks = -(-tokens // block_size)
            requests.append(Growing(draw.randrange(50), tokens, blocks, blocks))
        held = sum(request.blocks for request in requests)
        most = max(
            sum(-(-(request.tokens + moment) // block_size) for request in requests if request.left >= moment)
            for moment in range(51)
        )
        assert worst_need(requests, block_size) == max(0, most - held)
