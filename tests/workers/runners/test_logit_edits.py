import random
from collections.abc import Iterator, Sequence

import pytest
import torch

from workers.intake.sampling import GREEDY, SamplingParams
from workers.runners.logit_edits import edit_logits
from workers.runners.sampler import Sampler

VOCABULARY = 12


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small only wait for a second thread, long where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reference(
    logits: Sequence[float], wish: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    """The definition, token by token."""
    changed = [*logits]
    for token in range(len(changed)):
        if token in prompt or token in output:
            factor = wish.repetition_penalty
            changed[token] = changed[token] / factor if changed[token] > 0 else changed[token] * factor
        changed[token] -= wish.frequency_penalty * output.count(token)
        changed[token] -= wish.presence_penalty * (token in output)
        changed[token] += dict(wish.logit_bias).get(token, 0.0)
        if token in wish.end_token_ids and len(output) < wish.min_tokens:
            changed[token] = float("-inf")
    return changed


def test_any_mix_of_rows_equals_the_definition() -> None:
    draw = random.Random(1)
    for _ in range(40):
        logits = torch.randn(9, VOCABULARY) * 3
        wishes, prompts, outputs = [], [], []
        for _row in range(9):
            wishes.append(
                SamplingParams(
                    repetition_penalty=draw.choice([1.0, 1.3, 0.7]),
                    presence_penalty=draw.choice([0.0, 0.5, -1.0]),
                    frequency_penalty=draw.choice([0.0, 0.2, -0.3]),
                    logit_bias=draw.choice([(), ((3, 2.5), (7, -100.0))]),
                    min_tokens=draw.choice([0, 4]),
                    end_token_ids=draw.choice([(), (2, 11)]),
                )
            )
            prompts.append([draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 5))])
            outputs.append([draw.randrange(VOCABULARY) for _ in range(draw.randint(0, 8))])
        want = [
            reference(row.tolist(), wish, prompt, output)
            for row, wish, prompt, output in zip(logits, wishes, prompts, outputs, strict=True)
        ]
        histories = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
        before = logits.clone()
        edited = edit_logits(logits, wishes, [len(output) for output in outputs], histories)
        torch.testing.assert_close(logits, torch.tensor(want), atol=1e-5, rtol=1e-5)
        untouched = [row for row in range(9) if row not in edited]
        assert torch.equal(logits[untouched], before[untouched])


def test_rows_that_ask_for_nothing_are_not_looked_at() -> None:
    logits = torch.randn(3, VOCABULARY)
    before = logits.clone()
    wishes = [GREEDY, SamplingParams(min_p=0.2), SamplingParams(min_tokens=3, end_token_ids=(1,))]
    assert edit_logits(logits, wishes, [0, 0, 3], [(), (), ()]) == []
    assert torch.equal(logits, before)


def test_a_greedy_request_takes_the_largest_of_the_changed_logits() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]] * 3)
    wishes = [
        GREEDY,
        SamplingParams(temperature=0, presence_penalty=1.5),
        SamplingParams(temperature=0, min_tokens=1, end_token_ids=(1, 2)),
    ]
    drawn = Sampler().sample(logits, wishes, [1, 1, 0], [[1], [0, 1], [0]])
    assert drawn.token_ids == (1, 2, 3)


def test_a_forbidden_token_is_never_drawn_and_a_forced_one_always() -> None:
    wishes = [SamplingParams(seed=s, logit_bias=((4, -100.0),)) for s in range(300)]
    drawn = Sampler().sample(torch.zeros(300, 5), wishes, [0] * 300).token_ids
    assert set(drawn) == {0, 1, 2, 3}
    wishes = [SamplingParams(seed=s, logit_bias=((4, 100.0),)) for s in range(300)]
    assert set(Sampler().sample(torch.zeros(300, 5), wishes, [0] * 300).token_ids) == {4}


def test_bfloat16_logits_stay_bfloat16() -> None:
    logits = torch.ones(1, 4, dtype=torch.bfloat16)
    edit_logits(logits, [SamplingParams(frequency_penalty=0.5, logit_bias=((0, 1.0),))], [2], [[3, 1, 1]])
    assert logits.tolist() == [[2.0, 0.0, 1.0, 1.0]]
