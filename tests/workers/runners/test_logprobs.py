"""Log probabilities: a batch at once equals each row alone; of the model's own distribution, whatever is asked."""

import pytest
import torch

from workers.intake.sampling import GREEDY, SamplingParams
from workers.runners.sampler import Sampler

VOCABULARY = 300


def logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(3)) * 4


def test_they_are_of_the_models_own_distribution_before_anything_is_edited() -> None:
    asked = SamplingParams(
        temperature=0.3,
        top_p=0.5,
        seed=4,
        presence_penalty=2.0,
        logit_bias=((5, 100.0),),
        logprobs=4,
    )
    own = logits(1)
    want = own.log_softmax(dim=-1)[0]
    drawn = Sampler().sample(own.clone(), [asked], [1], [[7, 9]])
    got = drawn.logprobs[0]
    assert drawn.token_ids == (5,), "the bias forces it"
    assert got.token_id == 5
    assert got.logprob == pytest.approx(float(want[5]), abs=1e-5)
    best = want.topk(4)
    assert [token for token, _ in got.alternatives] == best.indices.tolist()
    assert [value for _, value in got.alternatives] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_each_row_gets_what_it_asks_for_and_no_row_changes_anothers_tokens() -> None:
    wishes = [
        GREEDY,
        SamplingParams(temperature=0, logprobs=0),
        SamplingParams(seed=1),
        SamplingParams(seed=2, logprobs=3),
        SamplingParams(seed=3, top_p=0.9, logprobs=20),
    ]
    plain = [SamplingParams(temperature=each.temperature, top_p=each.top_p, seed=each.seed) for each in wishes]
    positions = range(len(wishes))
    drawn = Sampler().sample(logits(5), wishes, positions)
    assert drawn.token_ids == Sampler().sample(logits(5), plain, positions).token_ids
    assert {row: len(each.alternatives) for row, each in drawn.logprobs.items()} == {1: 0, 3: 3, 4: 20}
    for row in (1, 3, 4):
        alone = Sampler().sample(logits(5)[row : row + 1], [wishes[row]], [row]).logprobs[0]
        together = drawn.logprobs[row]
        assert together.token_id == drawn.token_ids[row]
        assert together.logprob == pytest.approx(alone.logprob, abs=1e-6)
        assert [token for token, _ in together.alternatives] == [token for token, _ in alone.alternatives]


def test_nobody_who_asks_means_nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def computed(*_arguments: object, **_keywords: object) -> torch.Tensor:
        raise AssertionError("a distribution that nobody asked for")

    monkeypatch.setattr(torch.Tensor, "log_softmax", computed)
    assert Sampler().sample(logits(2), [GREEDY, GREEDY], [0, 0]).logprobs == {}


def test_more_alternatives_than_there_are_tokens() -> None:
    drawn = Sampler().sample(torch.tensor([[0.0, 1.0]]), [SamplingParams(temperature=0, logprobs=5)], [0])
    assert [token for token, _ in drawn.logprobs[0].alternatives] == [1, 0]
