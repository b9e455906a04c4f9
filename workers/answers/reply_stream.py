"""The growing answer of one sequence of a request, on the egress side.

Knows its text so far, which tools it calls, the tokens not yet sent, and when a delta is due. Does not know Kafka, JSON
or the request's other answers (`workers.answers.growing_reply`). Owned by the event loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.answers.answer_logprobs import AnswerLogprobs, ShownToken
from workers.answers.detokenizer import Detokenizer
from workers.answers.embedding_reply import embedding_item
from workers.answers.reply_body import AnsweredChoice, MadeCall
from workers.intake.prompt import PreparedRequest
from workers.intake.request import FinishReason
from workers.intake.sampling import TokenLogprobs
from workers.intake.tool_calls import CalledTool, ToolCallReader
from workers.runners.runner import Embedding

__all__ = ["DeltaPart", "ReplyStream", "StreamStart"]


@dataclass(frozen=True, slots=True)
class DeltaPart:
    """What one delta record says: what is new, and the ids of the tokens it covers."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ShownToken, ...] = ()
    """Of the tokens whose text has become known, where they are asked for."""
    calls: tuple[MadeCall, ...] = ()


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
        request_id: str,
        prepared: PreparedRequest,
        detokenizer: Detokenizer | None,
        logprobs: AnswerLogprobs | None = None,
        start: StreamStart = StreamStart(),
    ) -> None:
        """`detokenizer` is None where the engine makes the text (requests with stop strings), `logprobs` where they
        were not asked for."""
        self.start = start
        self.prepared = prepared
        self._request_id = request_id
        self._detokenizer = detokenizer
        self._reader = ToolCallReader() if prepared.tool_calls else None
        self._calls: list[MadeCall] = []
        self._new_calls: list[MadeCall] = []
        self._logprobs = logprobs
        self._pieces: list[str] = []
        self._characters = 0
        """Of the answer as the model writes it, calls included."""
        self._new_ids: list[int] = []
        self._new_text = ""
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
        """No more tokens come: let go of what was held back, half a character or the beginning of a call."""
        if self._detokenizer is not None:
            self._add(self._detokenizer.flush())
        if self._reader is not None:
            self._say(self._reader.flush())

    def answer(self, reason: FinishReason, embedding: Embedding | None = None) -> AnsweredChoice:
        """The whole of it, when it is finished. `embedding`: what there is instead of a text."""
        if reason is FinishReason.STOP and self._calls:
            reason = FinishReason.TOOL_CALLS
        sequence, calls, item = self.prepared.sequence, tuple(self._calls), None
        if embedding is not None:
            assert self.prepared.embedding is not None, "nobody asked for it"
            item = embedding_item(sequence, embedding, self.prepared.embedding)
        return AnsweredChoice(self.text, reason, sequence, calls, self.logprobs, item)

    def due_s(self, interval_s: float, max_tokens: int) -> float | None:
        """When the next delta should go, 0 for at once; None while there is no text to send.

        The first goes at once. Tokens without text (half a character, a held-back stop string) travel with the next
        text, for a reader can do nothing with them.
        """
        if not self.prepared.stream or not (self._new_text or self._new_calls):
            return None
        if self._sent_s is None or len(self._new_ids) >= max_tokens:
            return 0.0
        return self._sent_s + interval_s

    def next_delta(self, now_s: float) -> DeltaPart:
        shown = () if self._logprobs is None else tuple(self._logprobs.next(self._characters, _LOGPROBS_A_DELTA))
        part = DeltaPart(self._new_text, tuple(self._new_ids), shown, tuple(self._new_calls))
        self._sent_s = now_s
        self._new_text = ""
        self._new_ids.clear()
        self._new_calls.clear()
        return part

    @property
    def more_than_a_delta(self) -> bool:
        """One delta would not do for the log probabilities that are to be sent."""
        return self._logprobs is not None and self._logprobs.owes(self._characters, _LOGPROBS_A_DELTA)

    @property
    def started(self) -> bool:
        """Whether a reader has seen something of it."""
        return self._sent_s is not None or self.start.seq > 0

    def _add(self, piece: str) -> None:
        self._characters += len(piece)
        if self._reader is None:
            self._say(piece)
            return
        for part in self._reader.feed(piece):
            if isinstance(part, CalledTool):
                self._call(part)
            else:
                self._say(part)

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            told = min(self._told_characters, len(text))
            self._told_characters -= told
            self._new_text += text[told:]

    def _call(self, called: CalledTool) -> None:
        place = len(self._calls)
        call_id = called.call_id(self._request_id, self.prepared.sequence, place)
        call = MadeCall(call_id, place, called.name, called.arguments)
        self._calls.append(call)
        self._new_calls.append(call)
