"""The log probabilities of one growing answer: which tokens may be shown, where each begins, and how they are written.

Knows OpenAI's two shapes. Does not work probabilities out (`workers.runners.logprobs`).

A token is shown with the text that it is in: not before it (half a character, a stop string that may yet come true),
and not at all if the answer ends before it. End tokens are no text and are left out, so the bytes of a chat's tokens,
joined, are its content.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from workers.answers.detokenizer import Detokenizer
from workers.intake.sampling import TokenLogprobs

__all__ = ["AnswerLogprobs", "ShownToken", "chat_logprobs", "completion_logprobs"]

_LEAST = -9999.0
"""What OpenAI writes for a token that can't be; JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    text_offset: int
    """Characters of the answer before it."""
    logprobs: TokenLogprobs


class AnswerLogprobs:
    """Owned by the event loop."""

    def __init__(self, detokenizer: Detokenizer, end_tokens: Collection[int]) -> None:
        """`detokenizer`: one of its own, for the lengths of tokens."""
        self._detokenizer = detokenizer
        self._end_tokens = end_tokens
        self._characters = 0
        self._tokens: list[ShownToken] = []
        self._released = 0

    def take(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """The next tokens of the answer."""
        for token in logprobs:
            if token.token_id not in self._end_tokens:
                self._tokens.append(ShownToken(self._characters, token))
                self._characters += len(self._detokenizer.feed([token.token_id]))

    def next(self, characters: int, most: int) -> list[ShownToken]:
        """Those not given before whose text begins within the answer's first `characters`; at most so many."""
        first = self._released
        while self._released < first + most and self.owes(characters):
            self._released += 1
        return self._tokens[first : self._released]

    def owes(self, characters: int, more_than: int = 0) -> bool:
        """Whether `next` has more of them than so many."""
        place = self._released + more_than
        return place < len(self._tokens) and self._tokens[place].text_offset < characters

    def shown(self, characters: int) -> list[ShownToken]:
        """All whose text begins within the answer's first `characters`."""
        return [token for token in self._tokens if token.text_offset < characters]


TokenBytes = Callable[[int], bytes]


def chat_logprobs(tokens: Sequence[ShownToken], token_bytes: TokenBytes) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion or a chunk of it."""
    content = []
    for shown in tokens:
        own = shown.logprobs
        best = [_entry(token_id, logprob, token_bytes) for token_id, logprob in own.alternatives]
        content.append(_entry(own.token_id, own.logprob, token_bytes) | {"top_logprobs": best})
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[ShownToken], token_bytes: TokenBytes) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion or a chunk of it."""

    def text(token_id: int) -> str:
        return token_bytes(token_id).decode(errors="replace")

    best = []
    for shown in tokens:
        # As OpenAI does: the drawn token is always there, so there may be one more than were asked for.
        pairs = (*shown.logprobs.alternatives, (shown.logprobs.token_id, shown.logprobs.logprob))
        best.append({text(token_id): max(logprob, _LEAST) for token_id, logprob in reversed(pairs)})
    return {
        "tokens": [text(shown.logprobs.token_id) for shown in tokens],
        "token_logprobs": [max(shown.logprobs.logprob, _LEAST) for shown in tokens],
        "top_logprobs": best,
        "text_offset": [shown.text_offset for shown in tokens],
    }


def _entry(token_id: int, logprob: float, token_bytes: TokenBytes) -> dict[str, Any]:
    data = token_bytes(token_id)
    return {"token": data.decode(errors="replace"), "logprob": max(logprob, _LEAST), "bytes": [*data]}
