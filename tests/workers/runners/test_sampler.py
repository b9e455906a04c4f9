import math
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from workers.intake.sampling import GREEDY, SamplingParams
from workers.runners import sampler
from workers.runners.sampler import Sampler, uniforms

sample = Sampler().sample


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small only wait for a second thread, long where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def logits_of(probabilities: Sequence[float]) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log().float()


def draw(logits: torch.Tensor, params: SamplingParams, count: int) -> list[int]:
    """`count` tokens of one request: positions 0 … count − 1 of its output."""
    batch = logits.expand(count, -1)
    return list(sample(batch, [params] * count, range(count)).token_ids)


def reference_distribution(logits: torch.Tensor, params: SamplingParams) -> list[float]:
    """The definition in plain Python: temperature, min_p, exactly top_k tokens, then the fewest that reach top_p."""
    top = max(logits.tolist())
    weights = [math.exp((value - top) / params.temperature) for value in logits.tolist()]
    weights = [weight if weight >= params.min_p else 0.0 for weight in weights]
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    order = order[: params.top_k or len(order)]
    total = sum(weights[token] for token in order)
    kept, reached = [], 0.0
    for token in order:
        if reached >= params.top_p * total and params.top_p < 1:
            break
        kept.append(token)
        reached += weights[token]
    return [weights[token] / reached if token in kept else 0.0 for token in range(len(weights))]


def chi_square(counts: Sequence[int], probabilities: Sequence[float]) -> float:
    """(χ² − degrees of freedom) in units of its standard deviation; tokens of probability 0 must not occur."""
    drawn = sum(counts)
    possible = [p for p in probabilities if p > 0]
    assert all(count == 0 for count, p in zip(counts, probabilities, strict=True) if p == 0)
    value = sum((count - drawn * p) ** 2 / (drawn * p) for count, p in zip(counts, probabilities, strict=True) if p)
    degrees = len(possible) - 1
    return (value - degrees) / math.sqrt(2 * degrees)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0, seed=5),
        SamplingParams(top_k=4),
        SamplingParams(top_p=0.7),
        SamplingParams(min_p=0.3),
        SamplingParams(temperature=1.5, min_p=0.2, top_k=5, top_p=0.9),
        SamplingParams(temperature=1.3, top_k=6, top_p=0.8, seed=2**64 - 1),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    logits = logits_of([0.3, 0.02, 0.15, 0.08, 0.2, 0.05, 0.12, 0.08])
    tokens = draw(logits, params, 20_000)
    counts = [tokens.count(token) for token in range(8)]
    assert abs(chi_square(counts, reference_distribution(logits, params))) < 4


def test_draws_of_neighbouring_seeds_at_one_position_follow_the_distribution() -> None:
    probabilities = [0.1, 0.2, 0.3, 0.4]
    params = [SamplingParams(seed=seed) for seed in range(20_000)]
    tokens = sample(logits_of(probabilities).expand(20_000, -1), params, [3] * 20_000).token_ids
    assert abs(chi_square([tokens.count(token) for token in range(4)], probabilities)) < 4


@pytest.mark.parametrize("vocabulary", [50, 1500])
def test_top_k_and_top_p_keep_what_the_definition_keeps(vocabulary: int) -> None:
    """Every token that can be drawn, found by walking u through [0, 1) in the sorted distribution."""
    chooser = random.Random(vocabulary)
    for case in range(16):
        generator = torch.Generator().manual_seed(case)
        logits = torch.randn(vocabulary, generator=generator) * chooser.choice([0.01, 1, 5])
        if case % 3 == 0:
            logits = logits.round()  # many ties
        params = SamplingParams(
            temperature=chooser.choice([0.3, 1.0, 3.0]),
            top_k=chooser.choice([None, 1, 7, 600, vocabulary, 10 * vocabulary]),
            top_p=chooser.choice([0.05, 0.5, 0.95, 1.0]),
        )
        if params.top_k is None and params.top_p == 1.0:
            continue
        want = reference_distribution(logits, params)
        weights = ((logits - logits.max()) / params.temperature).exp()[None]
        steps = 1000
        u = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
        got = sampler._draw_filtered(weights.expand(steps, -1), u, [params] * steps)
        frequency = torch.bincount(got, minlength=vocabulary).double() / steps
        # A token's stretch of [0, 1) is cut by the walk's raster at both ends.
        torch.testing.assert_close(frequency, torch.tensor(want, dtype=torch.float64), atol=1.01 / steps, rtol=0)


def test_candidates_and_the_whole_sort_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(64, 3000, generator=torch.Generator().manual_seed(1)).mul(3)
    logits[::4] = logits[::4].round()
    chooser = random.Random(1)
    params = [
        SamplingParams(top_k=chooser.choice([None, 3, 40, 500, 700]), top_p=chooser.uniform(0.1, 0.99), seed=row)
        for row in range(64)
    ]
    quick = sample(logits, params, range(64))
    monkeypatch.setattr(sampler, "_CANDIDATES", ())
    assert sample(logits, params, range(64)) == quick


def test_greedy_takes_the_largest_and_the_first_of_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0]])
    assert sample(logits, [GREEDY, GREEDY], [0, 0]).token_ids == (1, 0)


def test_one_tokens_draw_is_the_same_alone_and_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(40, 1000, generator=generator).mul(2)
    kinds = [GREEDY, SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(temperature=0.7, top_k=20)]
    params = [
        SamplingParams(kind.temperature, kind.top_p, kind.top_k, seed=row)
        for row, kind in enumerate(kinds[row % 4] for row in range(40))
    ]
    positions = [row * 3 for row in range(40)]
    together = sample(logits, params, positions).token_ids
    for row in range(40):
        assert sample(logits[row : row + 1], [params[row]], [positions[row]]).token_ids == (together[row],)
    order = random.Random(1).sample(range(40), 25)
    picked = sample(logits[order], [params[row] for row in order], [positions[row] for row in order]).token_ids
    assert picked == tuple(together[row] for row in order)


def test_seed_and_position_both_matter() -> None:
    logits = torch.zeros(1000)
    first = draw(logits, SamplingParams(seed=1), 20)
    assert draw(logits, SamplingParams(seed=1), 20) == first
    assert len(set(first)) > 15
    assert draw(logits, SamplingParams(seed=2), 20) != first


def test_uniforms_are_these_forever() -> None:
    """A request's next attempt may run on a newer version: a changed hash would change its text half-way."""
    assert uniforms([0, 0, 1, 2**64 - 1, -1], [0, 1, 0, 10**6, 10**6]).tolist() == [
        0.6524484863740322,
        0.7012121095215252,
        0.36818951565166946,
        0.4611314684076886,
        0.4611314684076886,
    ]


def test_uniforms_fill_the_unit_interval_without_correlation() -> None:
    values = uniforms([12345] * 100_000, range(100_000))
    assert 0 <= values.min() < 1e-3
    assert 1 - 1e-3 < values.max() < 1
    assert abs(values.mean() - 0.5) < 0.004
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.012
    neighbours = uniforms([12346] * 100_000, range(100_000))
    assert abs(np.corrcoef(values, neighbours)[0, 1]) < 0.012
    assert len(np.intersect1d(values, neighbours)) == 0, "streams of two seeds must not be one stream, shifted"


@pytest.mark.parametrize("temperature", [1e-40, 1e-6, 1e6])
def test_extreme_temperatures_stay_numbers(temperature: float) -> None:
    logits = torch.tensor([[-90.0, 90.0, 89.0, -torch.inf]]).expand(50, -1)
    tokens = sample(logits, [SamplingParams(temperature=temperature, seed=s) for s in range(50)], [0] * 50).token_ids
    assert set(tokens) == ({1} if temperature < 1 else {0, 1, 2})


def test_a_token_of_minus_infinity_is_never_drawn() -> None:
    logits = torch.full((2000, 6), -torch.inf)
    logits[:, [1, 4]] = 0.0
    for params in (SamplingParams(), SamplingParams(top_p=0.99), SamplingParams(top_k=5)):
        assert set(sample(logits, [params] * 2000, range(2000)).token_ids) == {1, 4}


@pytest.mark.parametrize("spoil", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_named(spoil: float) -> None:
    logits = torch.zeros(4, 10)
    logits[1, 3] = spoil
    logits[3, 9] = spoil
    params = [GREEDY, GREEDY, SamplingParams(), SamplingParams()]
    result = sample(logits, params, [0] * 4)
    assert result.not_finite == (1, 3)
    assert result.token_ids == ()


def test_no_rows_at_all() -> None:
    assert sample(torch.empty(0, 10), [], []).token_ids == ()
