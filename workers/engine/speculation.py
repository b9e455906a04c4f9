"""Guess an answer's next tokens from its own text, so that one step may verify several of them.

Knows the tokens of running requests, what a step costs, and which guesses came true. Does not know models: a runner
computes the guesses as further rows of the same forward and says which of them it would have drawn.

**Guessing** is prompt lookup (Saxena 2023; transformers and vLLM have it too): the last tokens are looked for earlier
in prompt and answer, three of them, else two; what followed there last time is the guess. It needs no second model and
no memory beyond a table of where each n-gram was last seen. Why it can pay: a step that decodes few sequences is as
long as it takes to read the weights, and further rows are almost free.

**Exact.** A row's token is what would have been drawn there anyway: greedy, or by (seed, position) alone. Guesses count
as far as they agree, so an answer is the same with and without. Requests whose logits depend on what was said before
(penalties, biases, a grammar, end tokens that are barred) or that want log probabilities are left alone.

**When.** A step of D sequences that takes T makes D tokens. A further row costs c and gives a token with probability p,
so it pays while p > c · D ÷ T: the right side is the measured model of the step (`scheduling.step_time`), the left side
what came true of a class's guesses, counted with forgetting: the i-th guess in a row comes true with p to the power of
i. A class whose guesses don't pay makes one now and then, for texts change. Guesses take what a step has left in the
order of the step, so the most urgent go first; a step that computes a piece of a prompt has nothing left.

Limits: only as far as the last block of the sequence's table reaches, so that no block is taken for a guess. Nothing
is gained where the products, not the reading of the weights, take the time.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Protocol, runtime_checkable

from scheduling.plan import Chunk, StepPlan
from scheduling.priority import PriorityClass
from scheduling.step_time import LinearStepTime
from workers.engine.ngram_lookup import NGramLookup
from workers.intake.sampling import SamplingParams

__all__ = ["ClassSpeculation", "SpeculatedRequest", "Speculation", "SpeculationStatistics", "VerifyingRunner"]

_MOST_TOKENS = 7
_KEPT = 0.99
"""Of what is known about a class's guesses, at each new one."""
_MOST_CERTAIN = 1 - 1e-6
"""However long all guesses have come true: what is forgotten of the others would leave a 1."""
_PROBE_EVERY = 64
"""Steps between guesses of a class whose guesses don't pay."""


@runtime_checkable
class VerifyingRunner(Protocol):
    def take_accepted(self) -> Mapping[int, Sequence[int]]:
        """Of the last step's guesses: by place in its list of sequences, the tokens drawn behind the first one."""
        ...


@dataclass(frozen=True, slots=True)
class SpeculatedRequest:
    """What is looked at of a request that decodes."""

    service: PriorityClass
    token_ids: Sequence[int]
    """Prompt and output so far."""
    lookup: NGramLookup
    sampling: SamplingParams
    output_position: int
    output_left: int
    """Tokens that it may still write."""
    held_tokens: int
    """Of KV that its blocks have room for."""


@dataclass(slots=True)
class _Acceptance:
    """Counts of guesses behind which all had come true before, forgetting."""

    right: float = 1.0
    wrong: float = 1.0
    probed_step: int = 0
    guessed: int = 0
    """Since the start, as `accepted`."""
    accepted: int = 0

    @property
    def probability(self) -> float:
        return min(self.right / (self.right + self.wrong), _MOST_CERTAIN)

    def count(self, guessed: int, accepted: int) -> None:
        self.guessed += guessed
        self.accepted += accepted
        self.right = self.right * _KEPT + accepted
        self.wrong = self.wrong * _KEPT + (accepted < guessed)


@dataclass(frozen=True, slots=True)
class ClassSpeculation:
    guessed: int
    """Tokens, since the start."""
    accepted: int
    probability: float
    """That the next guess comes true, if those before it did."""


@dataclass(frozen=True, slots=True)
class SpeculationStatistics:
    by_class: Mapping[PriorityClass, ClassSpeculation]
    """Classes that have been guessed for."""

    @property
    def guessed(self) -> int:
        return sum(known.guessed for known in self.by_class.values())

    @property
    def accepted(self) -> int:
        return sum(known.accepted for known in self.by_class.values())


@dataclass(slots=True)
class Speculation:
    """Owned by the engine thread."""

    runner: VerifyingRunner
    classes: Collection[PriorityClass]
    step_time: Callable[[], LinearStepTime]
    _acceptance: dict[PriorityClass, _Acceptance] = field(default_factory=dict)
    _steps: int = 0

    def guess(self, plan: StepPlan, look_at: Callable[[Chunk], SpeculatedRequest]) -> dict[int, Sequence[int]]:
        """Guessed tokens by place in the plan's chunks; never an empty guess."""
        self._steps += 1
        if not plan.chunks or not all(chunk.decode for chunk in plan.chunks):
            return {}
        model = self.step_time()
        decodes = len(plan.chunks)
        context = sum(chunk.start + chunk.tokens for chunk in plan.chunks)
        cost = model.per_decode_sequence_s * decodes / model.predict(0, decodes, context)
        guesses: dict[int, Sequence[int]] = {}
        for place, chunk in enumerate(plan.chunks):
            request = look_at(chunk)
            if request.service not in self.classes or not _verifiable(request):
                continue
            most = min(
                self._worth(request.service, cost), request.output_left - 1, request.held_tokens - chunk.start - 1
            )
            if most > 0 and (found := request.lookup.after(request.token_ids, most)):
                guesses[place] = found
                self._of(request.service).probed_step = self._steps
        return guesses

    def accepted(
        self, guesses: Mapping[int, Sequence[int]], service_of: Callable[[int], PriorityClass]
    ) -> Mapping[int, Sequence[int]]:
        """After the step: what came true, by place; and it is learned from. `service_of`: by place."""
        if not guesses:
            return {}
        accepted = self.runner.take_accepted()
        for place, guess in guesses.items():
            self._of(service_of(place)).count(len(guess), len(accepted.get(place, ())))
        return accepted

    def statistics(self) -> SpeculationStatistics:
        """From any thread."""
        return SpeculationStatistics(
            {
                service: ClassSpeculation(known.guessed, known.accepted, known.probability)
                for service, known in self._acceptance.copy().items()
            }
        )

    def _worth(self, service: PriorityClass, cost: float) -> int:
        """How many guesses in a row pay, if a row costs this part of a token."""
        known = self._of(service)
        if cost >= known.probability:
            most = 0
        elif cost == 0:  # the model of the step may say that sequences are free
            most = _MOST_TOKENS
        else:
            most = min(_MOST_TOKENS, int(log(cost) / log(known.probability)))
        probe = self._steps - known.probed_step >= _PROBE_EVERY
        return max(most, 1) if probe else most

    def _of(self, service: PriorityClass) -> _Acceptance:
        return self._acceptance.setdefault(service, _Acceptance())


def _verifiable(request: SpeculatedRequest) -> bool:
    sampling = request.sampling
    free = sampling.grammar is None and sampling.logprobs is None
    return free and not sampling.edits_logits(request.output_position)
