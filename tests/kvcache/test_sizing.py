import pytest

from kvcache.sizing import CPU_SHARE, KVGeometry, MemoryShare, PoolSizeError, size_pool

GEOMETRY = KVGeometry(layers=30, kv_heads=3, head_dim=64, element_bytes=4, block_size=16)
BLOCK_BYTES = 2 * 30 * 3 * 64 * 4 * 16
MIB = 2**20
GIB = 2**30
HALF = MemoryShare(fraction=0.5, ceiling_bytes=None)


def blocks(*, budget: int | None = None, free: int = 16 * GIB, share: MemoryShare = HALF, longest: int = 8192) -> int:
    return size_pool(GEOMETRY, budget_bytes=budget, free_bytes=free, share=share, longest_request_tokens=longest)


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    assert GEOMETRY.block_bytes == BLOCK_BYTES
    assert GEOMETRY.token_bytes * 16 == BLOCK_BYTES


def test_a_budget_buys_whole_blocks() -> None:
    assert blocks(budget=600 * BLOCK_BYTES) == 600
    assert blocks(budget=601 * BLOCK_BYTES - 1) == 600


def test_auto_takes_its_share_of_free_memory() -> None:
    assert blocks(free=4 * GIB) == 2 * GIB // BLOCK_BYTES


def test_auto_stops_at_its_ceiling() -> None:
    assert CPU_SHARE.ceiling_bytes is not None
    assert blocks(free=64 * GIB, share=CPU_SHARE) == CPU_SHARE.ceiling_bytes // BLOCK_BYTES


def test_auto_takes_more_than_its_share_where_one_request_needs_it() -> None:
    assert blocks(free=512 * MIB, longest=8192) == 8192 // 16


def test_one_longest_request_is_enough() -> None:
    assert blocks(budget=512 * BLOCK_BYTES, longest=8192) == 512
    assert blocks(budget=513 * BLOCK_BYTES, longest=8193) == 513


def test_a_pool_that_cannot_hold_one_longest_request_is_refused_with_the_sums() -> None:
    with pytest.raises(PoolSizeError) as caught:
        blocks(budget=511 * BLOCK_BYTES, longest=8192)
    text = str(caught.value)
    assert "511 blocks of 16 tokens" in text
    assert "8176 tokens" in text
    assert f"at least {512 * BLOCK_BYTES}" in text
    assert "model.max_context_tokens to 8176" in text


def test_auto_that_cannot_hold_one_longest_request_is_refused() -> None:
    with pytest.raises(PoolSizeError, match=r"100\.0 MiB being free"):
        blocks(free=100 * MIB)


def test_a_budget_beyond_free_memory_is_refused() -> None:
    with pytest.raises(PoolSizeError, match=r"more than there is: 1,024\.0 MiB are free"):
        blocks(budget=2 * GIB, free=1 * GIB)
