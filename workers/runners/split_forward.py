"""A step in several forwards, where one asks for more memory than the device has.

Knows the runner, and how many tokens one forward was last able to take. Does not know plans or requests.

Activations grow with a forward's tokens. So when the device runs out of memory, the same step is computed again in two
halves, and in halves of those, down to one token; and the steps after it are cut to what went well, until enough of
them have passed to try twice as much. Nothing is lost by a forward that failed: its KV is written again, to the same
places. Chosen over planning smaller steps: the plan stands, nobody is evicted, and the scheduler need not know.

Drawback: a step in pieces reads the weights once for each. Limit: memory that the pool itself takes is not given back.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from workers.intake.sampling import TokenLogprobs
from workers.runners.errors import GrammarBroken, NoMemoryForSequence, NotFiniteLogits, OutOfMemory
from workers.runners.runner import Embedding, ModelRunner, SequenceInput

__all__ = ["SplitForward", "StepTokens"]

log = logging.getLogger(__name__)

_STEPS_BEFORE_MORE = 64
"""Steps that go well before twice as many tokens are tried."""


@dataclass(frozen=True, slots=True)
class StepTokens:
    """What came of a step."""

    tokens: tuple[int | None, ...]
    """Of each sequence; None where none was asked for."""
    logprobs: Mapping[int, TokenLogprobs]
    """By place in the list of sequences; of those alone whose sampling asks."""
    embeddings: Mapping[int, Embedding]
    """By place in the list of sequences; of each that is to be embedded."""


class SplitForward:
    """Owned by the engine thread."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._most_tokens: int | None = None
        """Of one forward; None: as many as a step has."""
        self._good_steps = 0
        self.cuts = 0
        """How often a forward had to be cut."""

    @property
    def most_tokens(self) -> int | None:
        """What one forward may take for now; None: anything."""
        return self._most_tokens

    def step(self, sequences: Sequence[SequenceInput]) -> StepTokens:
        """Compute all of it.

        Raises `NotFiniteLogits`, `GrammarBroken`, `NoMemoryForSequence`.
        """
        if self._most_tokens is None:
            try:
                tokens = self._runner.step(sequences)
                return StepTokens(tuple(tokens), self._runner.take_logprobs(), self._runner.take_embeddings())
            except OutOfMemory as fault:
                self._cut(_tokens(sequences), fault, first_sequence=0)
        else:
            self._try_more(_tokens(sequences))
        return self._in_pieces(sequences)

    def _in_pieces(self, sequences: Sequence[SequenceInput]) -> StepTokens:
        tokens: list[int | None] = [None] * len(sequences)
        logprobs: dict[int, TokenLogprobs] = {}
        embeddings: dict[int, Embedding] = {}
        place, offset = 0, 0
        while place < len(sequences):
            pieces = list(_take(sequences, place, offset, self._most_tokens))
            try:
                sampled = self._runner.step([piece for _, piece in pieces])
            except NotFiniteLogits as fault:
                raise NotFiniteLogits([pieces[row][0] for row in fault.sequences], fault.blocks) from fault
            except GrammarBroken as fault:
                raise GrammarBroken([pieces[row][0] for row in fault.sequences]) from fault
            except OutOfMemory as fault:
                self._cut(_tokens([piece for _, piece in pieces]), fault, first_sequence=place)
                continue
            for row, of_piece in self._runner.take_logprobs().items():
                logprobs[pieces[row][0]] = of_piece
            for row, embedding in self._runner.take_embeddings().items():
                embeddings[pieces[row][0]] = embedding
            for (of_sequence, piece), token in zip(pieces, sampled, strict=True):
                if piece.sampling is not None:
                    tokens[of_sequence] = token
            place, last = pieces[-1]
            offset = last.start + len(last.token_ids) - sequences[place].start
            if offset == len(sequences[place].token_ids):
                place, offset = place + 1, 0
        return StepTokens(tuple(tokens), logprobs, embeddings)

    def _cut(self, tokens: int, fault: OutOfMemory, *, first_sequence: int) -> None:
        """`tokens` at once were too many."""
        self.cuts += 1
        self._good_steps = 0
        if tokens == 1:
            raise NoMemoryForSequence(str(fault), first_sequence) from fault
        self._most_tokens = tokens // 2
        log.warning("no memory for a step of %d tokens (%s): %d at a time from now on", tokens, fault, tokens // 2)

    def _try_more(self, tokens: int) -> None:
        self._good_steps += 1
        if self._good_steps < _STEPS_BEFORE_MORE:
            return
        assert self._most_tokens is not None
        self._good_steps = 0
        more = 2 * self._most_tokens
        self._most_tokens = None if more >= tokens else more


def _tokens(sequences: Sequence[SequenceInput]) -> int:
    return sum(len(sequence.token_ids) for sequence in sequences)


def _take(
    sequences: Sequence[SequenceInput], place: int, offset: int, most: int | None
) -> Iterator[tuple[int, SequenceInput]]:
    """The next pieces, `most` tokens in all, from token `offset` of the sequence at `place`."""
    left = most
    while place < len(sequences) and left != 0:
        whole = sequences[place]
        size = len(whole.token_ids) - offset
        taken = size if left is None else min(size, left)
        yield place, _piece(whole, offset, taken)
        left = None if left is None else left - taken
        place, offset = place + 1, 0


def _piece(whole: SequenceInput, offset: int, tokens: int) -> SequenceInput:
    """Only the piece that reaches the end samples. Guesses are left out where memory is short, and what was begun ahead
    went with the forward that failed."""
    last = offset + tokens == len(whole.token_ids)
    return replace(
        whole,
        token_ids=whole.token_ids[offset : offset + tokens],
        start=whole.start + offset,
        sampling=whole.sampling if last else None,
        embed=whole.embed and last,
        begun=None,
        guess=(),
    )
