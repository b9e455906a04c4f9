import random
from collections.abc import Iterator

import pytest
import torch

from kvcache.storage import KVStorage
from workers.runners.attention.backend import SequenceSpan
from workers.runners.attention.reference import ReferenceAttention

HEAD_DIM = 8
LAYERS = 3
NUM_BLOCKS = 96


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small only wait for a second thread, long where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def dense_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, window: int | None
) -> torch.Tensor:
    """The definition, densely, for one sequence: all [tokens, heads, head_dim], query's tokens are the last ones."""
    repeat = query.shape[1] // key.shape[1]
    scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(repeat, dim=1)) * scaling
    positions = torch.arange(key.shape[0])
    behind = positions[-query.shape[0] :, None] - positions
    hidden = (behind < 0) | (behind >= (window or key.shape[0]))
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value.repeat_interleave(repeat, dim=1))


class Sequences:
    """Sequences with all their KV known, whose tokens go through a backend in pieces."""

    def __init__(self, lengths: list[int], heads: int, kv_heads: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.lengths = lengths
        shapes = [(length, LAYERS, kv_heads, HEAD_DIM) for length in lengths]
        self.keys = [torch.randn(shape, generator=generator) for shape in shapes]
        self.values = [torch.randn(shape, generator=generator) for shape in shapes]
        self.queries = [torch.randn(length, LAYERS, heads, HEAD_DIM, generator=generator) for length in lengths]
        self.storage = KVStorage(
            NUM_BLOCKS, LAYERS, ReferenceAttention.block_shape(kv_heads, HEAD_DIM), torch.float32, torch.device("cpu")
        )
        # Stale values of earlier owners lie everywhere: nothing of them may be seen.
        self.storage.blocks.normal_(generator=generator).mul_(1000)
        self.backend = ReferenceAttention(self.storage)
        free = [*range(NUM_BLOCKS)]
        random.Random(seed).shuffle(free)
        self.tables = [[free.pop() for _ in range(-(-length // 16) + 1)] for length in lengths]

    def run(self, pieces: list[tuple[int, int, int]], window: int | None, scaling: float = 0.3) -> None:
        """One step of (sequence, start, tokens) pieces, compared in every layer with the definition."""
        step = self.backend.begin_step([SequenceSpan(start, tokens, self.tables[s]) for s, start, tokens in pieces])
        for layer in range(LAYERS):
            query, key, value = (
                torch.cat([whole[s][start : start + tokens, layer] for s, start, tokens in pieces])
                for whole in (self.queries, self.keys, self.values)
            )
            step.write(layer, key, value)
            # As models hand them over: [heads, tokens, head_dim] seen transposed.
            got = step.attend(layer, query.transpose(0, 1).contiguous().transpose(0, 1), scaling=scaling, window=window)
            want = [
                dense_attention(
                    self.queries[s][start : start + tokens, layer],
                    self.keys[s][: start + tokens, layer],
                    self.values[s][: start + tokens, layer],
                    scaling,
                    window,
                )
                for s, start, tokens in pieces
            ]
            torch.testing.assert_close(got, torch.cat(want), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2)])
@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize("seed", range(3))
def test_any_mix_of_chunks_and_decodes_equals_the_definition(
    heads: int, kv_heads: int, window: int | None, seed: int
) -> None:
    draw = random.Random(seed)
    sequences = Sequences([draw.randint(1, 70) for _ in range(9)], heads, kv_heads, seed)
    done = [0] * len(sequences.lengths)
    while unfinished := [s for s, length in enumerate(sequences.lengths) if done[s] < length]:
        pieces = []
        for s in draw.sample(unfinished, draw.randint(1, len(unfinished))):
            left = sequences.lengths[s] - done[s]
            tokens = 1 if draw.random() < 0.5 else draw.randint(1, left)
            pieces.append((s, done[s], tokens))
            done[s] += tokens
        sequences.run(pieces, window)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33])
def test_block_borders(length: int) -> None:
    sequences = Sequences([length], 4, 2, seed=length)
    sequences.run([(0, 0, length)], window=None)
    if length > 1:
        sequences.run([(0, length - 1, 1)], window=None)


def test_layers_of_one_step_may_have_different_windows() -> None:
    sequences = Sequences([50], 2, 2, seed=1)
    sequences.run([(0, 0, 30)], window=None)
    sequences.run([(0, 30, 20)], window=7)
    sequences.run([(0, 30, 20)], window=None)


def test_decodes_of_very_different_lengths_are_not_padded_to_one_another() -> None:
    sequences = Sequences([640, 3, 3, 3], 2, 2, seed=1)
    sequences.run([(0, 0, 640), (1, 0, 2), (2, 0, 2), (3, 0, 2)], window=None)
    sequences.run([(s, length - 1, 1) for s, length in enumerate(sequences.lengths)], window=None)
    assert sequences.backend.statistics().scratch_bytes < 2.1 * 640 * 2 * HEAD_DIM * 4


def test_a_block_with_infinities_is_harmless_once_scrubbed() -> None:
    sequences = Sequences([20], 2, 2, seed=1)
    sequences.storage.blocks[sequences.tables[0][1]] = float("nan")
    sequences.storage.scrub(sequences.tables[0])
    sequences.run([(0, 0, 18)], window=None)
    sequences.run([(0, 18, 1)], window=None)
