"""How a request wants its tokens drawn, and what may be said of a drawn one beside its id.

Knows the parameters and their neutral values. Does not draw (`workers.runners.sampler`) and does not check what a
client sent (`topics.messages` refuses what is out of range, in the client's words).
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.intake.grammar import Grammar  # with it comes a library that few need

__all__ = ["GREEDY", "SamplingParams", "TokenLogprobs"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int | None = None
    """None: no limit."""
    seed: int = 0
    """64 bits; the draw at output position i is a function of (seed, i) and nothing else."""
    min_p: float = 0.0
    """Tokens less probable than this part of the most probable one's probability are not drawn."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit), each token once."""
    min_tokens: int = 0
    """Before so many are out, none of `end_token_ids` is chosen."""
    end_token_ids: tuple[int, ...] = ()
    grammar: "Grammar | None" = field(default=None, compare=False)
    """What the answer may look like; None: anything."""
    logprobs: int | None = None
    """The drawn token's log probability is wanted, and those of so many of the most likely ones; None: nothing."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalises(self) -> bool:
        """The tokens so far matter."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def edits_logits(self, position: int) -> bool:
        """Whether the logits at this output position are to be changed before a token is chosen."""
        return self.penalises or bool(self.logit_bias) or (position < self.min_tokens and bool(self.end_token_ids))


GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of one drawn token, natural logarithms."""

    token_id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]
    """The most likely tokens, as many as were asked for, most likely first; the drawn one may be among them."""
