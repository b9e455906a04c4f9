"""The JSON of replies: chunks, final answers and errors, as bytes.

Knows the shapes of `topics.messages` (a test holds the two together) and writes them straight as dicts: a chunk is
made for every delta, and a model per chunk would be ten times its cost. Does not know headers, topics or when a
chunk is due.

A stream is: chunks with text, the first with the role; one with the finish reason (it may carry the last text); with
`include_usage` one more with the usage and no choices, and then all others say `"usage": null`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from topics.codec import dumps
from topics.errors import RequestError
from workers.answer_logprobs import ShownToken, chat_logprobs, completion_logprobs
from workers.prompt import PreparedRequest, RequestKind
from workers.request import FinishReason

__all__ = ["ReplyBody", "error_body"]


class ReplyBody:
    """Writes the replies of one request. Holds no state of the stream: the caller says which chunk is the first."""

    def __init__(self, request_id: str, prepared: PreparedRequest, token_bytes: Callable[[int], bytes]) -> None:
        """`token_bytes`: what a token stands for; asked only where log probabilities are."""
        self._token_bytes = token_bytes
        self._chat = prepared.kind is RequestKind.CHAT
        self._include_usage = prepared.include_usage
        self._final_head: dict[str, Any] = {
            "id": f"chatcmpl-{request_id}" if self._chat else f"cmpl-{request_id}",
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
        finish_reason: FinishReason | None = None,
        logprobs: Sequence[ShownToken] = (),
    ) -> bytes:
        """A piece of the answer. The last one has the finish reason, with or without text."""
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            delta = {"role": "assistant", "content": text} if first else {"content": text} if text else {}
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
        self,
        text: str,
        finish_reason: FinishReason,
        *,
        prompt_tokens: int,
        output_tokens: int,
        cached_tokens: int = 0,
        logprobs: Sequence[ShownToken] | None = None,
    ) -> bytes:
        """The whole answer. `cached_tokens`: the part of the prompt whose KV was already there. `logprobs`: None where
        they were not asked for."""
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choice["logprobs"] = None if logprobs is None else self._logprobs(logprobs)
        choice["finish_reason"] = finish_reason.value
        usage = _usage(prompt_tokens, output_tokens, cached_tokens)
        return dumps({**self._final_head, "choices": [choice], "usage": usage})

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
