"""The bodies of replies: chat completions, text completions, their chunks, and errors, in OpenAI's schema. (Those with
embeddings are `topics.embeddings`.)

Knows which fields there are. `workers.answers.reply_body` writes them as plain dicts for speed; a test holds the two
together.
"""

from typing import Literal

from topics.structured import ToolCall
from topics.wire_model import Items, WireModel

__all__ = [
    "ChatChoice",
    "ChatChunkChoice",
    "ChatChunkDelta",
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatLogprobs",
    "ChatTokenLogprob",
    "Completion",
    "CompletionChoice",
    "CompletionChunk",
    "CompletionChunkChoice",
    "CompletionLogprobs",
    "ErrorBody",
    "ErrorDetail",
    "PromptTokensDetails",
    "ReplyMessage",
    "TokenLogprob",
    "ToolCallDelta",
    "Usage",
    "reply_id",
]

FinishReason = Literal["stop", "length", "tool_calls"]


def reply_id(request_id: str, *, chat: bool) -> str:
    """The `id` of all bodies that answer a request with text."""
    return f"{'chatcmpl' if chat else 'cmpl'}-{request_id}"


class PromptTokensDetails(WireModel):
    cached_tokens: int = 0


class Usage(WireModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()


class TokenLogprob(WireModel):
    token: str
    logprob: float
    bytes: Items[int] | None
    """Of the token in UTF-8; it may be a part of a character."""


class ChatTokenLogprob(TokenLogprob):
    top_logprobs: Items[TokenLogprob]
    """The most likely tokens, most likely first."""


class ChatLogprobs(WireModel):
    content: Items[ChatTokenLogprob]
    """The tokens of the content in order, end tokens left out."""
    refusal: None = None


class CompletionLogprobs(WireModel):
    """Four lists of the same length: an entry a token."""

    tokens: Items[str]
    token_logprobs: Items[float]
    top_logprobs: Items[dict[str, float]]
    text_offset: Items[int]
    """Where the token's text begins, in characters of the whole answer."""


class ReplyMessage(WireModel):
    role: Literal["assistant"]
    content: str | None
    """None: tools were called, and nothing was said before."""
    tool_calls: Items[ToolCall] | None = None
    refusal: None = None


class ChatChoice(WireModel):
    index: int
    message: ReplyMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None


class ChatCompletion(WireModel):
    """The value of a `final` reply to a chat request."""

    id: str
    object: Literal["chat.completion"]
    created: int
    """Seconds since the epoch."""
    model: str
    choices: Items[ChatChoice]
    usage: Usage


class ToolCallDelta(ToolCall):
    """A call comes whole, in one chunk."""

    index: int


class ChatChunkDelta(WireModel):
    role: Literal["assistant"] | None = None
    """In the first chunk of a choice only."""
    content: str | None = None
    tool_calls: Items[ToolCallDelta] | None = None


class ChatChunkChoice(WireModel):
    index: int
    delta: ChatChunkDelta
    finish_reason: FinishReason | None = None
    logprobs: ChatLogprobs | None = None


class ChatCompletionChunk(WireModel):
    """The value of a `delta` reply. With `include_usage` a last one has no choices and the usage; others null."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: Items[ChatChunkChoice]
    usage: Usage | None = None


class CompletionChoice(WireModel):
    index: int
    text: str
    finish_reason: FinishReason
    logprobs: CompletionLogprobs | None = None


class Completion(WireModel):
    """The value of a `final` reply to a text completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: Items[CompletionChoice]
    usage: Usage


class CompletionChunkChoice(WireModel):
    index: int
    text: str
    finish_reason: FinishReason | None = None
    logprobs: CompletionLogprobs | None = None


class CompletionChunk(WireModel):
    """The value of a `delta` reply to a text completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: Items[CompletionChunkChoice]
    usage: Usage | None = None


class ErrorDetail(WireModel):
    message: str
    type: str
    param: str | None
    code: str | None
    status_code: int
    retry_after: float | None = None
    """Seconds. On overload only, like `queue_depth` (requests)."""
    queue_depth: int | None = None


class ErrorBody(WireModel):
    """The value of an `error` reply."""

    error: ErrorDetail
