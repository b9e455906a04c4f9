"""The growing answer of one request, on the egress side.

Knows the text so far, the tokens not yet sent, the next `seq`, and when a delta is due. Does not know Kafka or JSON.
Owned by the event loop.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from topics.replies import ReplyContext
from workers.answer_logprobs import AnswerLogprobs, ShownToken
from workers.detokenizer import Detokenizer
from workers.prompt import PreparedRequest
from workers.reply_body import ReplyBody
from workers.request import Arrival
from workers.sampling import TokenLogprobs

__all__ = ["DeltaPart", "ReplyStream", "StreamStart"]


@dataclass(frozen=True, slots=True)
class DeltaPart:
    """What one delta record says: new text, and the ids of the tokens it covers."""

    seq: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ShownToken, ...] = ()
    """Of the tokens whose text has become known, where they are asked for."""


_LOGPROBS_A_DELTA = 200
"""Tokens. With twenty alternatives each that is about half of what a delta record may hold."""


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where an attempt takes the stream up: the engine begins with the tokens found, and says them again to us."""

    seq: int = 0
    """Of the next delta."""
    token_ids: tuple[int, ...] = ()
    """What earlier deltas cover."""
    told_characters: int = 0
    finished: bool = False
    """The finish reason was told."""
    usage_told: bool = False
    reset: bool = False
    """Earlier deltas are void: it was told that the stream begins again."""


class ReplyStream:
    def __init__(
        self,
        arrival: Arrival,
        prepared: PreparedRequest,
        detokenizer: Detokenizer | None,
        context: ReplyContext,
        body: ReplyBody,
        logprobs: AnswerLogprobs | None = None,
        start: StreamStart = StreamStart(),
    ) -> None:
        """`detokenizer` is None where the engine makes the text (requests with stop strings), `logprobs` where they
        were not asked for."""
        self.start = start
        self.arrival = arrival
        self.prepared = prepared
        self.context = context
        self.body = body
        self.last_acknowledgement: asyncio.Future[Any] | None = None
        """Of the newest delta: the terminal reply must not overtake it."""
        self._detokenizer = detokenizer
        self._logprobs = logprobs
        self._pieces: list[str] = []
        self._characters = 0
        self._new_ids: list[int] = []
        self._new_text = ""
        self._seq = start.seq
        self._told_tokens = len(start.token_ids)
        """Of what comes, so many were told by earlier attempts."""
        self._told_characters = start.told_characters
        """The same of the text."""
        self.tokens = 0
        """Of the answer, so far."""
        self._sent_s: float | None = None

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._pieces)

    @property
    def logprobs(self) -> Sequence[ShownToken] | None:
        """Of the answer so far; None where they were not asked for."""
        return None if self._logprobs is None else self._logprobs.shown(self._characters)

    def take(self, token_ids: list[int], text: str | None, logprobs: Sequence[TokenLogprobs] = ()) -> int:
        """What is new of the answer; how many of its tokens no earlier attempt has told."""
        if self._logprobs is not None:
            self._logprobs.take(logprobs)
        if self._detokenizer is not None:
            # The end token is a token of the answer, but no text, whether or not the tokenizer calls it special.
            ends = self.prepared.eos_token_ids
            text = self._detokenizer.feed([token for token in token_ids if token not in ends])
        self.tokens += len(token_ids)
        told = min(self._told_tokens, len(token_ids))
        self._told_tokens -= told
        self._new_ids.extend(token_ids[told:])
        self._add(text or "")
        return len(token_ids) - told

    def finish(self) -> None:
        """No more tokens come: let go of half a character that was held back."""
        if self._detokenizer is not None:
            self._add(self._detokenizer.flush())

    def due_s(self, interval_s: float, max_tokens: int) -> float | None:
        """When the next delta should go, 0 for at once; None while there is no text to send.

        The first goes at once. Tokens without text (half a character, a held-back stop string) travel with the next
        text, for a reader can do nothing with them.
        """
        if not self.prepared.stream or not self._new_text:
            return None
        if self._sent_s is None or len(self._new_ids) >= max_tokens:
            return 0.0
        return self._sent_s + interval_s

    def next_delta(self, now_s: float) -> DeltaPart:
        shown = () if self._logprobs is None else tuple(self._logprobs.next(self._characters, _LOGPROBS_A_DELTA))
        part = DeltaPart(self._seq, self._new_text, tuple(self._new_ids), shown)
        self._seq += 1
        self._sent_s = now_s
        self._new_text = ""
        self._new_ids.clear()
        return part

    @property
    def more_than_a_delta(self) -> bool:
        """One delta would not do for the log probabilities that are to be sent."""
        return self._logprobs is not None and self._logprobs.owes(self._characters, _LOGPROBS_A_DELTA)

    @property
    def started(self) -> bool:
        """Whether a reader has seen something of it."""
        return self._seq > 0

    def _add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            self._characters += len(piece)
            told = min(self._told_characters, len(piece))
            self._told_characters -= told
            self._new_text += piece[told:]
