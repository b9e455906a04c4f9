"""The flash backend: its tables, what it writes where, and which library serves which GPU. Kernels need one."""

import random

import pytest
import torch

from kvcache.storage import KVStorage
from tests.workers.runners.attention.plain_flash import PLAIN, plain_kernel
from workers.runners.attention.backend import AttentionKind, SequenceSpan
from workers.runners.attention.flash import FlashAttentionKind, pack_tables
from workers.runners.attention.flash_libraries import FlashLibrary, choose_flash, installed_flash
from workers.runners.attention.reference import ReferenceAttention

BF16 = torch.bfloat16
ALL = {"flash-attn-4", "flash-attn 2", "torch's varlen_attn"}
LAYERS, KV_HEADS, HEAD_DIM = 2, 2, 16


def test_tables_say_where_everything_is() -> None:
    tables = pack_tables([SequenceSpan(5, 1, [7, 8]), SequenceSpan(2, 4, [3, 9, 1]), SequenceSpan(0, 2, [6])], 4)
    assert tables.query_ends.tolist() == [0, 1, 5, 7]
    assert tables.key_lengths.tolist() == [6, 6, 2]
    assert tables.key_ends.tolist() == [0, 6, 12, 14]
    assert tables.block_table.tolist() == [[7, 8], [3, 9], [6, 0]], "blocks not yet reached are left out"
    assert tables.written_block.tolist() == [8, 3, 3, 9, 9, 6, 6]
    assert tables.written_place.tolist() == [1, 2, 3, 0, 1, 0, 1]
    assert (tables.longest_query, tables.longest_key) == (4, 6)


@pytest.mark.parametrize("window", [None, 9])
def test_any_mix_of_steps_gives_what_the_reference_gives(window: int | None) -> None:
    draw = random.Random(3)
    kinds: list[AttentionKind] = [ReferenceAttention, FlashAttentionKind(PLAIN, plain_kernel)]
    storages = [
        KVStorage(64, LAYERS, kind.block_shape(KV_HEADS, HEAD_DIM), torch.float32, torch.device("cpu"))
        for kind in kinds
    ]
    for storage in storages:  # of earlier owners: nothing of it may be seen
        storage.blocks.normal_().mul_(100)
    backends = [kind(storage) for kind, storage in zip(kinds, storages, strict=True)]
    tables = [[range(16 * s, 16 * s + 16) for s in range(4)] for _ in kinds]
    known = [0] * 4
    for _ in range(6):
        pieces = [(s, draw.choice([1, draw.randint(1, 30)])) for s in draw.sample(range(4), draw.randint(1, 4))]
        tokens = sum(count for _, count in pieces)
        steps = [
            backend.begin_step([SequenceSpan(known[s], count, own[s]) for s, count in pieces])
            for backend, own in zip(backends, tables, strict=True)
        ]
        for layer in range(LAYERS):
            key, value = torch.randn(2, tokens, KV_HEADS, HEAD_DIM)
            query = torch.randn(tokens, 3 * KV_HEADS, HEAD_DIM)
            for step in steps:
                step.write(layer, key, value)
            want, got = (step.attend(layer, query, scaling=0.2, window=window) for step in steps)
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
        for s, count in pieces:
            known[s] += count


@pytest.mark.parametrize(
    ("capability", "installed", "name"),
    [
        ((9, 0), ALL, "flash-attn-4"),
        ((10, 3), ALL, "flash-attn-4"),
        ((8, 0), ALL, "flash-attn 2"),
        ((12, 0), ALL, "flash-attn 2"),
        ((9, 0), {"flash-attn 2", "torch's varlen_attn"}, "flash-attn 2"),
        ((8, 9), {"flash-attn-4", "torch's varlen_attn"}, "torch's varlen_attn"),
    ],
)
def test_the_first_library_that_is_there_and_knows_the_gpu_serves(
    capability: tuple[int, int], installed: set[str], name: str
) -> None:
    chosen = choose_flash(capability, installed, BF16)
    assert isinstance(chosen, FlashLibrary)
    assert chosen.name == name
    assert FlashAttentionKind(chosen).block_size % (256 if chosen.name != "flash-attn-4" else 1) == 0


def test_what_no_library_serves_is_said() -> None:
    assert "compute capability 7.5" in str(choose_flash((7, 5), ALL, BF16))
    assert "compute capability 9.0" in str(choose_flash((9, 0), set(), BF16))
    assert "not in float32" in str(choose_flash((9, 0), ALL, torch.float32))
    kind = FlashAttentionKind(PLAIN)
    assert kind.refusal(9, 3, 64) is None
    assert "heads of 512 values" in str(kind.refusal(4, 2, 512))
    assert "heads of 20 values" in str(kind.refusal(4, 2, 20))


def test_torchs_own_is_always_there() -> None:
    assert "torch's varlen_attn" in installed_flash()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: the libraries' kernels run on nothing else")
def test_the_libraries_kernels_give_what_the_plain_one_gives() -> None:
    chosen = choose_flash(torch.cuda.get_device_capability(), installed_flash(), BF16)
    assert isinstance(chosen, FlashLibrary), chosen
    for window in (None, 300):
        results = []
        for kernel in (None, plain_kernel):
            torch.manual_seed(1)
            kind = FlashAttentionKind(chosen, kernel)
            shape = kind.block_shape(KV_HEADS, 64)
            storage = KVStorage(8, LAYERS, shape, BF16, torch.device("cuda" if kernel is None else "cpu"))
            spans = [SequenceSpan(0, 300, [3, 1, 6]), SequenceSpan(255, 1, [2, 5])]
            step = kind(storage).begin_step(spans)
            key, value = torch.randn(2, 301, KV_HEADS, 64).to(storage.blocks)
            query = torch.randn(301, 8, 64).to(storage.blocks)
            step.write(1, key, value)
            results.append(step.attend(1, query, scaling=0.125, window=window).float().cpu())
        torch.testing.assert_close(*results, atol=2e-2, rtol=2e-2)
