"""When guesses are made: where they pay by what was measured, for whom they may be made, and in the step's order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from scheduling.plan import Chunk, StepPlan
from scheduling.priority import PriorityClass
from scheduling.step_time import LinearStepTime
from workers.engine.ngram_lookup import NGramLookup
from workers.engine.speculation import SpeculatedRequest, Speculation
from workers.intake.sampling import GREEDY, SamplingParams

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
"""After 1 2 3 came 4 5 6 7 …"""
P0, P3 = PriorityClass.P0, PriorityClass.P3
WEIGHTS_BOUND = LinearStepTime(20e-3, 1e-3, 0.1e-3, 0.0)
PRODUCTS_BOUND = LinearStepTime(1e-3, 1e-3, 2e-3, 0.0)


@dataclass
class Verifier:
    """A runner of which only the verdict is asked."""

    accepted: dict[int, Sequence[int]] = field(default_factory=dict)

    def take_accepted(self) -> Mapping[int, Sequence[int]]:
        return self.accepted


def plan(*chunks: Chunk) -> StepPlan:
    return StepPlan(chunks, (), (), (), 0.02)


def decode(row: int = 0) -> Chunk:
    return Chunk(row, len(TEXT) - 1, 1, samples=True, decode=True)


def request(service: PriorityClass = P0) -> SpeculatedRequest:
    return SpeculatedRequest(service, TEXT, NGramLookup(), GREEDY, 3, output_left=100, held_tokens=64)


def speculation(model: LinearStepTime = WEIGHTS_BOUND, classes: Sequence[PriorityClass] = (P0, P3)) -> Speculation:
    return Speculation(Verifier(), classes, lambda: model)


def test_what_followed_last_time_is_guessed() -> None:
    (guess,) = speculation().guess(plan(decode()), lambda _chunk: request()).values()
    assert list(guess) == [4, 5, 6, 7, 8, 9, 1]


def test_nothing_is_guessed_where_a_row_costs_as_much_as_a_token() -> None:
    chunks = [decode(row) for row in range(8)]
    assert speculation(PRODUCTS_BOUND).guess(plan(*chunks), lambda _chunk: request()) == {}


def test_a_step_with_a_piece_of_a_prompt_guesses_nothing() -> None:
    prompt = Chunk(1, 0, 30, samples=False, decode=False)
    assert speculation().guess(plan(decode(), prompt), lambda _chunk: request()) == {}


def test_only_the_classes_that_it_is_switched_on_for() -> None:
    services = {0: P0, 1: P3}
    guesses = speculation(classes=(P3,)).guess(plan(decode(0), decode(1)), lambda chunk: request(services[chunk.row]))
    assert set(guesses) == {1}


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(repetition_penalty=1.2),
        SamplingParams(logit_bias=((4, 1.0),)),
        SamplingParams(min_tokens=9, end_token_ids=(2,)),
        SamplingParams(logprobs=2),
    ],
)
def test_requests_that_a_row_alone_does_not_decide_are_left_alone(sampling: SamplingParams) -> None:
    wish = replace(request(), sampling=sampling)
    assert speculation().guess(plan(decode()), lambda _chunk: wish) == {}


def test_a_guess_ends_with_the_blocks_and_before_the_last_token_that_may_come() -> None:
    (guess,) = (
        speculation().guess(plan(decode()), lambda _chunk: replace(request(), held_tokens=len(TEXT) + 3)).values()
    )
    assert len(guess) == 3
    (guess,) = speculation().guess(plan(decode()), lambda _chunk: replace(request(), output_left=3)).values()
    assert len(guess) == 2


def test_a_class_whose_guesses_never_come_true_stops_guessing_and_asks_again_now_and_then() -> None:
    guessing = speculation()
    made = []
    for _ in range(400):
        guesses = guessing.guess(plan(decode()), lambda _chunk: request())
        made.append(sum(map(len, guesses.values())))
        guessing.accepted(guesses, lambda _place: P0)
    assert made[0] == 7
    assert 0 < sum(made[200:]) <= 4
    assert guessing.statistics().accepted == 0


def test_guesses_that_come_true_make_longer_ones() -> None:
    guessing = speculation(replace(WEIGHTS_BOUND, per_decode_sequence_s=8e-3))
    verifier = guessing.runner
    assert isinstance(verifier, Verifier)
    lengths = []
    for _ in range(40):
        guesses = guessing.guess(plan(decode()), lambda _chunk: request())
        verifier.accepted = dict(guesses)
        lengths.append(len(guesses[0]))
        guessing.accepted(guesses, lambda _place: P0)
    assert lengths[0] < lengths[-1] == 7


def test_guesses_that_have_come_true_for_very_long_are_no_certainty() -> None:
    guessing = speculation()
    verifier = guessing.runner
    assert isinstance(verifier, Verifier)
    for _ in range(5_000):
        guesses = guessing.guess(plan(decode()), lambda _chunk: request())
        verifier.accepted = dict(guesses)
        guessing.accepted(guesses, lambda _place: P0)
    assert 0.99 < guessing.statistics().by_class[P0].probability < 1.0


def test_guesses_are_counted_for_the_class_they_were_made_for() -> None:
    guessing = speculation()
    verifier = guessing.runner
    assert isinstance(verifier, Verifier)

    def step(service: PriorityClass, right: int) -> None:
        guesses = guessing.guess(plan(decode()), lambda _chunk: request(service))
        verifier.accepted = {0: guesses[0][:right]}
        guessing.accepted(guesses, lambda _place: service)

    for service, right in ((P0, 2), (P3, 0), (P0, 1)):
        step(service, right)
    told = guessing.statistics()
    assert (told.by_class[P0].accepted, told.by_class[P3].accepted, told.accepted) == (3, 0, 3)
    assert told.by_class[P3].guessed >= 1
    assert told.guessed == told.by_class[P0].guessed + told.by_class[P3].guessed


def test_rows_that_cost_nothing_are_guessed_as_far_as_may_be() -> None:
    (guess,) = (
        speculation(LinearStepTime(20e-3, 1e-3, 0.0, 0.0)).guess(plan(decode()), lambda _chunk: request()).values()
    )
    assert len(guess) == 7
