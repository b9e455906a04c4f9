"""One request's deltas and terminal reply, merged: each piece of text once, in order, and all of it.

Knows the rules of one stream. Does not know Kafka, tasks or clocks (`topics.client`); pure and synchronous.

Deltas and terminal reply come from two topics, so any of them may be first. Deltas may come twice (the worker's
producer sends again after an outage) or not at all (they expired, the reader was too late). And when a worker died, the
next attempt goes on with the stream: a marker opens it, and what earlier attempts say behind that is void.

- A delta goes out if its `seq` is the next one. A gap ends the streaming: the rest of the text is taken from the final.
- A repeated `seq` is dropped; if it covers other tokens than the first time, the stream was cut anew, later `seq` mean
  other places, and it counts as a gap.
- After a reset the stream comes again from its beginning: what was told already is not told again.
- The final is the truth. What was told must be a beginning of it, or the request was answered differently the second
  time (sampling without a seed under another model, say): `AnswerChangedError`, since text that is out can't be taken
  back.
- The first terminal reply counts; a second one is dropped, like everything after it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topics.codec import loads
from topics.embeddings import vectors_of
from topics.errors import RequestError
from topics.headers import ReplyEvent
from topics.reply_chunks import read_chunk
from topics.reply_reader import Reply
from topics.stage_times import StageTimes

__all__ = [
    "Answer",
    "AnswerChangedError",
    "ReplyMerge",
    "RequestFailedError",
    "StreamDelta",
    "UnreadableReplyError",
]


class RequestFailedError(Exception):
    """The worker answered with an error. The attributes are those of the OpenAI error object."""

    def __init__(self, request_id: str, error: Mapping[str, Any]) -> None:
        self.request_id = request_id
        self.message: str = error["message"]
        self.type: str = error["type"]
        self.code: str | None = error.get("code")
        self.param: str | None = error.get("param")
        self.status_code: int = error["status_code"]
        self.retry_after_s: float | None = error.get("retry_after")
        self.queue_depth: int | None = error.get("queue_depth")
        super().__init__(f"request {request_id}: {self.message}")


class UnreadableReplyError(Exception):
    """The terminal reply is not what the contract says: a worker of another version, or not a worker's at all."""


class AnswerChangedError(Exception):
    """The request was run again after a crash, and its answer does not begin with what was streamed already."""

    def __init__(self, answer: "Answer", told: str) -> None:
        super().__init__(
            f"request {answer.request_id} was run again and answered differently after {len(told)} characters had "
            "been streamed: the final answer is in the exception's `answer`"
        )
        self.answer = answer


_EMBEDDED: Mapping[str, Any] = {"text": "", "finish_reason": "stop"}
"""What a choice would say of embeddings."""


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """A piece of text as it came; `token_ids` are the tokens it covers (empty for what only the final told)."""

    text: str
    token_ids: tuple[int, ...]
    index: int = 0
    """Of the choice that it is a piece of."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A request's whole answer. Times are `time.monotonic()` seconds."""

    request_id: str
    text: str
    """Of the first choice; empty where it only calls tools, and of embeddings."""
    finish_reason: str
    """`stop` of embeddings: they are whole."""
    usage: Mapping[str, Any]
    body: Mapping[str, Any]
    """The final reply: an OpenAI `chat.completion`, `text_completion` or `list` of embeddings."""
    sent_s: float
    first_delta_s: float | None
    """None: no delta arrived (`stream` was not asked for, or the final came first)."""
    ended_s: float
    stages: StageTimes | None = None
    """Where the time went, as the worker says."""

    @property
    def texts(self) -> list[str]:
        """Of all choices, in the order of their index."""
        return [_choice_text(choice) for choice in self.body.get("choices", ())]

    @property
    def embeddings(self) -> list[Sequence[float]]:
        """Vectors of length 1, in the order of the inputs; none where text was asked for."""
        return vectors_of(self.body) if "data" in self.body else []

    @property
    def tool_calls(self) -> "list[Mapping[str, Any]]":
        """Of the first choice, as OpenAI's `tool_calls`."""
        choices = self.body.get("choices") or [{}]
        return list(choices[0].get("message", {}).get("tool_calls") or ())


class ReplyMerge:
    """Feed it with `take`; get text with `take_deltas`, and when `complete`, `answer` and `rest`.

    Holds the text and token ids of one answer.
    """

    def __init__(self, request_id: str, sent_s: float) -> None:
        self._request_id = request_id
        self._sent_s = sent_s
        self._waiting: list[StreamDelta] = []
        self._told: dict[int, list[str]] = {}
        """By choice."""
        self._anew: dict[int, str] = {}
        """After a reset: the text since, by choice, until it has caught up with what was told."""
        self._attempt = 0
        self._tokens_of: list[tuple[int, ...]] = []
        """By `seq`, of the deltas that were in order."""
        self._gap = False
        self._first_delta_s: float | None = None
        self._terminal: Reply | None = None
        self._ended_s = sent_s

    @property
    def complete(self) -> bool:
        return self._terminal is not None

    def take(self, reply: Reply, now_s: float) -> None:
        """A reply to this request, in the order of arrival."""
        if self._terminal is not None:
            return
        if reply.event.terminal:
            self._terminal = reply
            self._ended_s = now_s
            return
        if reply.attempt < self._attempt:
            return
        self._attempt = reply.attempt
        if reply.event is ReplyEvent.RESET:
            # Whatever was missing: the stream is whole again from here on.
            self._gap = False
            begun = {*self._told, *(delta.index for delta in self._waiting)}
            self._anew = {index: "" for index in begun if self._told_of(index)}
            self._tokens_of.clear()
        elif reply.event is ReplyEvent.DELTA and reply.seq is not None:
            if self._first_delta_s is None:
                self._first_delta_s = now_s
            self._take_delta(reply, reply.seq)

    def take_deltas(self) -> list[StreamDelta]:
        """What has come in order and was not taken yet."""
        deltas, self._waiting = self._waiting, []
        for delta in deltas:
            self._told.setdefault(delta.index, []).append(delta.text)
        return deltas

    def answer(self) -> Answer:
        """When `complete`. Raises `RequestFailedError` if it is an error, `UnreadableReplyError`."""
        assert self._terminal is not None, "no terminal reply yet"
        try:
            body = loads(self._terminal.value)
            if self._terminal.event is ReplyEvent.ERROR:
                failure: RequestFailedError | None = RequestFailedError(self._request_id, body["error"])
            else:
                failure = None
                choice = body["choices"][0] if "data" not in body else _EMBEDDED
                answer = Answer(
                    request_id=self._request_id,
                    text=_choice_text(choice),
                    finish_reason=choice["finish_reason"],
                    usage=body["usage"],
                    body=body,
                    sent_s=self._sent_s,
                    first_delta_s=self._first_delta_s,
                    ended_s=self._ended_s,
                    stages=self._terminal.stages,
                )
        except (RequestError, KeyError, IndexError, TypeError) as error:
            raise UnreadableReplyError(
                f"the terminal reply to {self._request_id} is not a chat completion, completion, list of embeddings or "
                f"error: {error!r}"
            ) from error
        if failure is not None:
            raise failure
        return answer

    def rest(self, answer: Answer) -> list[StreamDelta]:
        """The ends of the choices that no delta told. Raises `AnswerChangedError`."""
        rest = []
        for index, text in enumerate(answer.texts):
            told = "".join(self._told.get(index, ()))
            if not text.startswith(told):
                raise AnswerChangedError(answer, told)
            if len(text) > len(told):
                rest.append(StreamDelta(text[len(told) :], (), index))
        return rest

    def _take_delta(self, reply: Reply, seq: int) -> None:
        if self._gap:
            return
        if seq < len(self._tokens_of):
            self._gap = self._tokens_of[seq] != reply.token_ids
            return
        chunk = read_chunk(reply.value) if seq == len(self._tokens_of) else None
        if chunk is None:
            self._gap = True
            return
        self._tokens_of.append(reply.token_ids)
        piece, token_ids, index = chunk.text, reply.token_ids, chunk.index
        if index in self._anew:
            anew = self._anew[index] = self._anew[index] + piece
            told = self._told_of(index)
            if len(anew) < len(told) and told.startswith(anew):
                return
            if not anew.startswith(told):
                self._gap = True
                return
            del self._anew[index]
            piece, token_ids = anew[len(told) :], ()
        if piece:
            self._waiting.append(StreamDelta(piece, token_ids, index))

    def _told_of(self, index: int) -> str:
        """All of a choice that went out or is about to."""
        waiting = (delta.text for delta in self._waiting if delta.index == index)
        return "".join([*self._told.get(index, ()), *waiting])


def _choice_text(choice: Mapping[str, Any]) -> str:
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return text if isinstance(text, str) else ""
