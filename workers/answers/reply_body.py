"""The JSON of replies: chunks, final answers and errors, as bytes.

Knows the shapes of `topics.reply_messages` (a test holds the two together) and writes them straight as dicts: a chunk
is made for every delta, and a model per chunk would be ten times its cost. Does not know headers, topics or when a
chunk is due; nor vectors (`workers.answers.embedding_reply`).

A stream is, for each choice: chunks with text, the first with the role; calls of tools, each whole in one chunk; one
with the finish reason (it may carry the last text). With `include_usage` one more comes last, with the usage and no
choices, and then all others say `"usage": null`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from topics.codec import dumps
from topics.errors import RequestError
from topics.reply_messages import reply_id
from workers.answers.answer_logprobs import ShownToken, chat_logprobs, completion_logprobs
from workers.answers.embedding_reply import embedding_reply
from workers.intake.prompt import PreparedRequest, RequestKind
from workers.intake.request import FinishReason

__all__ = ["AnsweredChoice", "MadeCall", "ReplyBody", "error_body"]


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A tool that an answer calls."""

    id: str
    index: int
    """Of the answer's calls."""
    name: str
    arguments: str

    def body(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class AnsweredChoice:
    """One whole answer."""

    text: str
    finish_reason: FinishReason
    index: int = 0
    calls: Sequence[MadeCall] = ()
    logprobs: Sequence[ShownToken] | None = None
    """None where they were not asked for."""
    embedding: bytes | None = None
    """Instead of a text: its item of the reply's `data`, as it is written."""


class ReplyBody:
    """Writes the replies of one request. Holds no state of the stream: the caller says which chunk is the first."""

    def __init__(self, request_id: str, prepared: PreparedRequest, token_bytes: Callable[[int], bytes]) -> None:
        """`token_bytes`: what a token stands for; asked only where log probabilities are."""
        self._token_bytes = token_bytes
        self._chat = prepared.kind is RequestKind.CHAT
        self._include_usage = prepared.include_usage
        self._embeds = prepared.embedding is not None
        self._final_head: dict[str, Any] = {
            "id": reply_id(request_id, chat=self._chat),
            "object": "chat.completion" if self._chat else "text_completion",
            "created": prepared.created_s,
            "model": prepared.model,
        }
        self._chunk_head = self._final_head | ({"object": "chat.completion.chunk"} if self._chat else {})

    def chunk(
        self,
        text: str,
        *,
        first: bool,
        index: int = 0,
        finish_reason: FinishReason | None = None,
        calls: Sequence[MadeCall] = (),
        logprobs: Sequence[ShownToken] = (),
    ) -> bytes:
        """A piece of the answer `index`. Its last one has the finish reason, with or without text."""
        choice: dict[str, Any] = {"index": index}
        if self._chat:
            delta: dict[str, Any] = {"role": "assistant"} if first else {}
            if text or (first and not calls):
                delta["content"] = text
            if calls:
                delta["tool_calls"] = [{"index": call.index, **call.body()} for call in calls]
            choice["delta"] = delta
        else:
            choice["text"] = text
        choice["logprobs"] = self._logprobs(logprobs) if logprobs else None
        choice["finish_reason"] = None if finish_reason is None else finish_reason.value
        body = {**self._chunk_head, "choices": [choice]}
        if self._include_usage:
            body["usage"] = None
        return dumps(body)

    def usage_chunk(self, *, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0) -> bytes:
        """The chunk after the last, for those who set `stream_options.include_usage`."""
        usage = _usage(prompt_tokens, output_tokens, cached_tokens)
        return dumps({**self._chunk_head, "choices": [], "usage": usage})

    def final(
        self, choices: Sequence[AnsweredChoice], *, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0
    ) -> bytes:
        """The whole reply, choices in the order of their index. `cached_tokens`: the part of the prompts whose KV was
        already there."""
        if self._embeds:
            items = [choice.embedding for choice in choices if choice.embedding is not None]
            return embedding_reply(self._final_head["model"], items, prompt_tokens)
        usage = _usage(prompt_tokens, output_tokens, cached_tokens)
        return dumps({**self._final_head, "choices": [self._choice(choice) for choice in choices], "usage": usage})

    def _choice(self, answer: AnsweredChoice) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": answer.index}
        if self._chat:
            message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
            if answer.calls:
                message["content"] = answer.text or None
                message["tool_calls"] = [call.body() for call in answer.calls]
            choice["message"] = message
        else:
            choice["text"] = answer.text
        choice["logprobs"] = None if answer.logprobs is None else self._logprobs(answer.logprobs)
        choice["finish_reason"] = answer.finish_reason.value
        return choice

    def _logprobs(self, tokens: Sequence[ShownToken]) -> dict[str, Any]:
        return (chat_logprobs if self._chat else completion_logprobs)(tokens, self._token_bytes)


def error_body(error: RequestError) -> bytes:
    """The value of an `error` reply."""
    return dumps(error.body())


def _usage(prompt_tokens: int, output_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
