"""A step in pieces says what it says in one: tokens, log probabilities, and who is at fault."""

from collections.abc import Sequence

import pytest

from scheduling.step_time import LinearStepTime
from tests.workers.engine.faulty_runner import Fault, FaultyRunner
from workers.intake.sampling import SamplingParams
from workers.runners.errors import GrammarBroken, NoMemoryForSequence, NotFiniteLogits, OutOfMemory
from workers.runners.runner import ModelLimits, SequenceInput
from workers.runners.split_forward import SplitForward
from workers.runs.simulated_runner import SimulatedRunner, VirtualClock

SEQUENCES = [
    SequenceInput([1], 8, [0, 1, 2], SamplingParams(seed=1, logprobs=0), 3),
    SequenceInput([*range(10)], 4, [3, 4, 5, 6], None),
    SequenceInput([*range(7)], 0, [7, 8], SamplingParams(seed=3, logprobs=1), 0),
    SequenceInput([5], 2, [9], SamplingParams(seed=4), 2),
]
EMBEDDED = SequenceInput([*range(6)], 3, [10, 11, 12], None, embed=True)


class Memory:
    """A fault: more than so many tokens at once are too many."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.seen: list[list[tuple[int, int]]] = []
        """Of each forward that fitted, the span of each piece."""

    def __call__(self, sequences: Sequence[SequenceInput]) -> None:
        if sum(len(sequence.token_ids) for sequence in sequences) > self.tokens:
            raise OutOfMemory("tried to allocate 2 GiB")
        self.seen.append([(each.start, each.start + len(each.token_ids)) for each in sequences])


def forward(fault: Fault) -> SplitForward:
    limits = ModelLimits(context_tokens=64, vocabulary=97, eos_token_ids=frozenset())
    simulated = SimulatedRunner(LinearStepTime(1.0, 0.0, 0.0, 0.0), VirtualClock(), limits, num_blocks=16, block_size=4)
    return SplitForward(FaultyRunner(simulated, fault))


@pytest.mark.parametrize("tokens", [18, 10, 9, 4, 3, 2, 1])
def test_pieces_say_what_the_whole_says(tokens: int) -> None:
    memory = Memory(tokens)
    whole = forward(lambda _sequences: None).step(SEQUENCES)
    assert forward(memory).step(SEQUENCES) == whole
    computed = sorted(span for step in memory.seen for span in step)
    assert sum(end - start for start, end in computed) == 19, "each token once"


def test_a_text_cut_in_pieces_is_embedded_once_at_its_end() -> None:
    memory = Memory(4)
    got = forward(memory).step([*SEQUENCES, EMBEDDED]).embeddings
    assert list(got) == [len(SEQUENCES)]
    assert got[len(SEQUENCES)].tolist() == [8, 5]
    assert len(memory.seen) > 5


def test_the_next_steps_are_cut_at_once_and_after_a_while_more_is_tried() -> None:
    memory = Memory(5)
    cutting = forward(memory)
    cutting.step(SEQUENCES)
    assert (cutting.cuts, cutting.most_tokens) == (2, 4)
    cutting.step(SEQUENCES)
    assert cutting.cuts == 2
    memory.tokens = 100
    while cutting.most_tokens is not None:
        cutting.step(SEQUENCES)
    assert cutting.step(SEQUENCES) == forward(lambda _sequences: None).step(SEQUENCES)
    assert memory.seen[-1] == [(8, 9), (4, 14), (0, 7), (2, 3)]


def test_a_sequence_of_which_no_token_fits_is_named() -> None:
    def never_the_third(sequences: Sequence[SequenceInput]) -> None:
        if any(sequence.block_ids == [7, 8] for sequence in sequences):
            raise OutOfMemory("tried to allocate 2 GiB")

    with pytest.raises(NoMemoryForSequence) as caught:
        forward(never_the_third).step(SEQUENCES)
    assert caught.value.sequence == 2


def test_a_piece_whose_logits_are_no_numbers_names_its_sequence() -> None:
    memory = Memory(6)

    def spoiled(sequences: Sequence[SequenceInput]) -> None:
        memory(sequences)
        bad = [place for place, each in enumerate(sequences) if each.sampling and each.sampling.seed == 4]
        if bad:
            raise NotFiniteLogits(bad, [9])

    with pytest.raises(NotFiniteLogits) as caught:
        forward(spoiled).step(SEQUENCES)
    assert (caught.value.sequences, caught.value.blocks) == ((3,), (9,))


def test_a_piece_whose_grammar_broke_names_its_sequence() -> None:
    memory = Memory(6)

    def broken(sequences: Sequence[SequenceInput]) -> None:
        memory(sequences)
        bad = [place for place, each in enumerate(sequences) if each.sampling and each.sampling.seed == 4]
        if bad:
            raise GrammarBroken(bad)

    with pytest.raises(GrammarBroken) as caught:
        forward(broken).step(SEQUENCES)
    assert caught.value.sequences == (3,)
