"""The compiled attention against the reference, on any mix of sequences, heads and windows."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcache.storage import KVStorage
from tests.workers.runners.native_kernels import kernels_or_skip
from workers.runners.attention.backend import AttentionKind, AttentionStep, SequenceSpan
from workers.runners.attention.cpu import CpuAttentionKind
from workers.runners.attention.reference import ReferenceAttention

NUM_BLOCKS = 4 * 3 * 19
LAYERS = 2


@pytest.fixture(scope="module")
def cpu() -> CpuAttentionKind:
    return CpuAttentionKind(kernels_or_skip(), threads=1)


@st.composite
def cuts(draw: st.DrawFn) -> list[list[int]]:
    """For each sequence the lengths of its pieces, one a step."""
    sequences = draw(st.integers(1, 4))
    piece = st.one_of(st.just(1), st.integers(1, 40), st.integers(200, 300))
    return [draw(st.lists(piece, min_size=1, max_size=3)) for _ in range(sequences)]


@given(
    cuts=cuts(),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 7]),
    head_dim=st.sampled_from([16, 48, 64]),
    window=st.one_of(st.none(), st.integers(1, 20), st.integers(250, 300)),
    seed=st.integers(0, 10),
)
def test_the_kernels_equal_the_reference(
    cpu: CpuAttentionKind,
    cuts: list[list[int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    window: int | None,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    kinds: tuple[AttentionKind, ...] = (cpu, ReferenceAttention)
    backends = []
    for kind in kinds:
        shape = kind.block_shape(kv_heads, head_dim)
        storage = KVStorage(NUM_BLOCKS, LAYERS, shape, torch.float32, torch.device("cpu"))
        storage.blocks.fill_(1e4)  # what an earlier owner left
        backends.append(kind(storage))
    free = [*range(NUM_BLOCKS)]
    random.Random(seed).shuffle(free)
    tables = [[free.pop() for _ in range(-(-sum(pieces) // 16))] for pieces in cuts]
    done = [0] * len(cuts)
    for step_number in range(3):
        spans, chosen = [], []
        for s, pieces in enumerate(cuts):
            if step_number < len(pieces):
                spans.append(SequenceSpan(done[s], pieces[step_number], tables[s]))
                chosen.append(s)
        if not spans:
            continue
        tokens = sum(span.tokens for span in spans)
        query = torch.randn(tokens, kv_heads * group, head_dim, generator=generator)
        key, value = (torch.randn(tokens, kv_heads, head_dim, generator=generator) for _ in range(2))
        results = []
        for backend in backends:
            step: AttentionStep = backend.begin_step(spans)
            for layer in range(LAYERS):
                step.write(layer, key + layer, value)
            results.append(step.attend(1, query, scaling=head_dim**-0.5, window=window))
        torch.testing.assert_close(results[0], results[1], atol=2e-5, rtol=1e-5)
        for s, span in zip(chosen, spans, strict=True):
            done[s] += span.tokens
