import psutil
import pytest
import torch

from kvcache.storage import KVStorage

CPU = torch.device("cpu")


def storage() -> KVStorage:
    return KVStorage(num_blocks=5, layers=3, block_shape=(2, 4, 8), dtype=torch.float32, device=CPU)


def test_a_block_is_one_run_of_memory_with_all_its_layers() -> None:
    kv = storage()
    assert kv.blocks[2].is_contiguous()
    assert kv.blocks[2].numel() * 4 == kv.statistics().block_bytes == 3 * 2 * 2 * 4 * 8 * 4
    assert kv.statistics().total_bytes == 5 * kv.statistics().block_bytes


def test_layers_keys_and_values_are_views_that_do_not_overlap() -> None:
    kv = storage()
    for layer in range(3):
        kv.keys(layer).fill_(layer + 1)
        kv.values(layer).fill_(-layer - 1)
    for layer in range(3):
        assert kv.keys(layer).eq(layer + 1).all()
        assert kv.values(layer).eq(-layer - 1).all()
    assert kv.keys(0).shape == (5, 2, 4, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_starts_as_aligned_zeros(dtype: torch.dtype) -> None:
    blocks = KVStorage(5, 3, (2, 4, 8), dtype, CPU).blocks
    assert blocks.eq(0).all()
    assert blocks.dtype is dtype
    assert blocks.data_ptr() % 64 == 0
    assert blocks.is_contiguous()


def test_a_large_pool_takes_no_memory_until_it_is_written() -> None:
    before = psutil.Process().memory_info().rss
    pool = KVStorage(1024, 1, (1, 1024, 256), torch.float32, CPU)
    assert pool.statistics().total_bytes == 2 * 2**30
    assert psutil.Process().memory_info().rss - before < 2**28


def test_scrub_makes_the_named_blocks_finite_and_leaves_what_is_finite() -> None:
    kv = storage()
    kv.blocks.fill_(1.5)
    kv.blocks[1, 0, 0, 0, 0, 0] = float("nan")
    kv.blocks[3, 2, 1, 1, 3, 7] = float("inf")
    kv.blocks[4, 0] = float("nan")
    assert kv.scrub([1, 2, 3]) == [1, 3], "it says which"
    assert kv.blocks[[1, 3]].isfinite().all()
    assert kv.blocks[[1, 3]].eq(1.5).sum() == 2 * 3 * 2 * 2 * 4 * 8 - 2
    assert kv.blocks[4, 0].isnan().all(), "other blocks are not looked at"


@pytest.mark.parametrize(("num_blocks", "layers"), [(0, 1), (1, 0)])
def test_an_empty_pool_is_refused(num_blocks: int, layers: int) -> None:
    with pytest.raises(ValueError, match="at least one block and one layer"):
        KVStorage(num_blocks, layers, (1, 1, 1), torch.float32, CPU)
