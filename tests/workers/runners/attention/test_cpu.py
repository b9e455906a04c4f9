import random

import pytest
import torch

from kvcache.storage import KVStorage
from tests.workers.runners.native_kernels import kernels_or_skip
from workers.runners.attention.backend import AttentionKind, AttentionStep, SequenceSpan
from workers.runners.attention.cpu import CpuAttentionKind
from workers.runners.attention.reference import ReferenceAttention
from workers.runners.native.library import NativeLibrary

HEAD_DIM = 32
LAYERS = 2


@pytest.fixture(scope="module")
def kind() -> CpuAttentionKind:
    return CpuAttentionKind(kernels_or_skip(), threads=2)


def storage_for(kind: AttentionKind, kv_heads: int, dtype: torch.dtype) -> KVStorage:
    storage = KVStorage(64, LAYERS, kind.block_shape(kv_heads, HEAD_DIM), dtype, torch.device("cpu"))
    # Stale values of earlier owners lie everywhere: nothing of them may be seen.
    storage.blocks.normal_(generator=torch.Generator().manual_seed(5)).mul_(1000)
    return storage


@pytest.mark.parametrize("heads", [2, 6, 64])
def test_models_in_bfloat16_get_bfloat16_back(kind: CpuAttentionKind, heads: int) -> None:
    """The kernels compute in float32 on a bfloat16 pool, so they are nearer to float32 than the reference is."""
    query = torch.randn(40, heads, HEAD_DIM, generator=torch.Generator().manual_seed(1)).bfloat16()
    key, value = (torch.randn(40, 2, HEAD_DIM, generator=torch.Generator().manual_seed(s)).bfloat16() for s in (2, 3))

    def attended(kind: AttentionKind, dtype: torch.dtype) -> torch.Tensor:
        step = kind(storage_for(kind, 2, dtype)).begin_step([SequenceSpan(0, 40, [7, 3, 5])])
        step.write(1, key.to(dtype), value.to(dtype))
        return step.attend(1, query.to(dtype), scaling=0.2, window=None)

    got = attended(kind, torch.bfloat16)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), attended(ReferenceAttention, torch.float32), atol=0.02, rtol=0.01)


def test_values_that_are_not_numbers_reach_their_own_sequence_and_no_other(kind: CpuAttentionKind) -> None:
    backend = kind(storage_for(kind, 2, torch.float32))
    step = backend.begin_step([SequenceSpan(0, 20, [1, 2]), SequenceSpan(0, 20, [3, 4])])
    key, value = torch.zeros(40, 2, HEAD_DIM), torch.ones(40, 2, HEAD_DIM)
    key[5] = float("nan")
    step.write(0, key, value)
    got = step.attend(0, torch.ones(40, 2, HEAD_DIM), scaling=1.0, window=None)
    assert got[:5].isfinite().all()
    assert got[5:20].isnan().all()
    assert torch.equal(got[20:], torch.ones(20, 2, HEAD_DIM))


def test_heads_that_the_kernels_cannot_serve_are_refused_with_the_reason(kind: CpuAttentionKind) -> None:
    assert kind.refusal(9, 3, 64) is None
    assert "heads of 20 values" in str(kind.refusal(4, 2, 20))
    assert "heads of 512 values" in str(kind.refusal(4, 2, 512))
    assert "40 query heads a KV head" in str(kind.refusal(40, 1, 64))


def test_the_number_of_threads_changes_nothing(kind: CpuAttentionKind) -> None:
    library: NativeLibrary = kind.library
    draw = random.Random(1)
    spans = [SequenceSpan(draw.randint(0, 90), draw.randint(1, 60), range(s * 10, s * 10 + 10)) for s in range(6)]
    tokens = sum(span.tokens for span in spans)
    query = torch.randn(tokens, 6, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    key, value = (torch.randn(tokens, 3, HEAD_DIM, generator=torch.Generator().manual_seed(s)) for s in (2, 3))
    results = []
    for threads in (1, 2, 5):
        own = CpuAttentionKind(library, threads)
        step: AttentionStep = own(storage_for(own, 3, torch.float32)).begin_step(spans)
        step.write(0, key, value)
        results.append(step.attend(0, query, scaling=0.1, window=30))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
