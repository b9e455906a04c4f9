"""The bodies that cross the wire: chat-completions and completions requests, and their replies, in OpenAI's schema.

Knows which fields there are, their types and ranges, and how large each may be. **A field stands in a request model
only if it is truly enforced**; what OpenAI or vLLM have beyond that is named in `topics.validation`, which turns a
body into one of these models or into one `RequestError`. Does not know tokens, models served or context lengths
(`workers.prompt`).

Types are strict, as OpenAI's own are: `"0.5"` is not a number and `1` is not `true`.
"""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Strict, Tag
from pydantic_core import PydanticCustomError

__all__ = [
    "ChatChoice",
    "ChatChunkChoice",
    "ChatChunkDelta",
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatCompletionRequest",
    "ChatLogprobs",
    "ChatMessage",
    "ChatTokenLogprob",
    "Completion",
    "CompletionChoice",
    "CompletionChunk",
    "CompletionChunkChoice",
    "CompletionLogprobs",
    "CompletionRequest",
    "ErrorBody",
    "ErrorDetail",
    "FinishReason",
    "GenerationRequest",
    "PromptTokensDetails",
    "ReplyMessage",
    "StreamOptions",
    "TextPart",
    "TokenLogprob",
    "Usage",
]

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TEXT_CHARACTERS = 4_000_000
"""Of one string. Far above what the cap on a record's bytes lets through; a bound all the same."""
MAX_PROMPT_TOKENS = 2_000_000
MAX_OUTPUT_TOKENS = 2**31 - 1
MAX_REPETITION_PENALTY = 10
MAX_BIASED_TOKENS = 1024
MAX_TOKEN_DIGITS = 10
MAX_STOP_STRINGS = 4
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKENS = 64
MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
MAX_NAME_CHARACTERS = 256
MAX_TOP_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5
CLASSES = ("p0", "p1", "p2", "p3")

T = TypeVar("T")

Items = Annotated[tuple[T, ...], Strict(False), Field(fail_fast=True)]
"""A JSON array. Strictness would ask for a Python tuple; the items stay strict. The first bad item ends the check:
half a million of them must not become half a million errors.
"""
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
ClassNumber = Annotated[int, Field(ge=0, le=3)]
FinishReason = Literal["stop", "length"]


class WireModel(BaseModel):
    """Immutable, strict, closed: an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


# --- requests ---


def _only_text(value: object) -> object:
    if isinstance(value, str) and value != "text":
        raise PydanticCustomError("part_type", 'must be "text": other modalities are not supported yet')
    return value


class TextPart(WireModel):
    type: Annotated[Literal["text"], BeforeValidator(_only_text)]
    text: Text


def _content_kind(content: object) -> str | None:
    if isinstance(content, str):
        return "string"
    return "parts" if isinstance(content, list | tuple) else None


class ChatMessage(WireModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[Text, Tag("string")]
        | Annotated[Items[TextPart], Field(min_length=1, max_length=MAX_PARTS), Tag("parts")],
        Discriminator(
            _content_kind,
            custom_error_type="content_kind",
            custom_error_message="must be a string or a list of text parts",
        ),
    ]

    @property
    def text(self) -> str:
        """The content as one string; text parts are joined as they stand."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class StreamOptions(WireModel):
    include_usage: bool = False


def _class_number(value: object) -> object:
    """`"p1"` → 1; everything else is left to the field's own check."""
    if not isinstance(value, str):
        return value
    if value.lower() not in CLASSES:
        raise PydanticCustomError("class_name", 'must be 0, 1, 2 or 3, or "p0" … "p3" (0 is the most urgent)')
    return CLASSES.index(value.lower())


def _stop_strings(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise PydanticCustomError("stop_kind", "must be a string or a list of strings")
    return value


class GenerationRequest(WireModel):
    """What chat and text completions share. Null stands for the default everywhere."""

    model: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)] | None = None
    """None: the model that these topics are for."""
    max_tokens: Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    """None: as many as the context has left, up to the worker's limit."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """None: 1. 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """vLLM's extra. 0 and -1: no limit."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """vLLM's extra: tokens less probable than this part of the most probable one are not drawn."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=MAX_REPETITION_PENALTY)] | None = None
    """vLLM's extra. 1: none. Counts the prompt's tokens too."""
    logit_bias: (
        Annotated[
            dict[
                Annotated[str, Field(max_length=MAX_TOKEN_DIGITS, pattern=r"^[0-9]+$")],
                Annotated[float, Field(ge=-100, le=100)],
            ],
            Field(max_length=MAX_BIASED_TOKENS),
        ]
        | None
    ) = None
    """Token id, as a string → what is added to its logit."""
    min_tokens: Annotated[int, Field(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    """vLLM's extra: no end-of-sequence token before so many are out. Stop strings end an answer all the same."""
    stop: (
        Annotated[
            Items[StopString],
            Field(max_length=MAX_STOP_STRINGS),
            BeforeValidator(
                _stop_strings,
                json_schema_input_type=StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)],
            ),
        ]
        | None
    ) = None
    stop_token_ids: (
        Annotated[Items[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(max_length=MAX_STOP_TOKENS)] | None
    ) = None
    """vLLM's extra: tokens that end the answer like the model's own end token, and like it are no text."""
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    """None: derived from the request id."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    metadata: (
        Annotated[
            dict[
                Annotated[str, Field(min_length=1, max_length=MAX_METADATA_KEY)],
                Annotated[str, Field(max_length=MAX_METADATA_VALUE)],
            ],
            Field(max_length=MAX_METADATA_PAIRS),
        ]
        | None
    ) = None
    priority: (
        Annotated[
            ClassNumber,
            BeforeValidator(_class_number, json_schema_input_type=ClassNumber | Literal["p0", "p1", "p2", "p3"]),
        ]
        | None
    ) = None
    """May lower the topic's class, never raise it. 0 (or `"p0"`) is the most urgent."""
    ignore_eos: bool | None = None
    """vLLM's extra: go on past the end-of-sequence token, to the limit. Benchmarks need it."""

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def requested_tokens(self) -> int | None:
        """The longest answer asked for, None where the request leaves it open."""
        return self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """How many of the most likely tokens beside the drawn one; None: no log probabilities at all."""
        return None


class ChatCompletionRequest(GenerationRequest):
    messages: Annotated[Items[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    """OpenAI's newer name of `max_tokens`; both together are refused."""
    logprobs: bool | None = None
    """The log probability of each token of the answer."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """So many of the most likely tokens at each place too. Needs `logprobs`."""

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def requested_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def _no_count(value: object) -> object:
    """`false` is what the chat's field of this name means by nothing."""
    return None if value is False else value


def _prompt_kind(prompt: object) -> str | None:
    if isinstance(prompt, str):
        return "string"
    # A list of strings (or of lists) is several prompts; its first element gives it away.
    single = isinstance(prompt, list | tuple) and not (prompt and isinstance(prompt[0], str | list | tuple))
    return "token_ids" if single else None


class CompletionRequest(GenerationRequest):
    prompt: Annotated[
        Annotated[Text, Field(min_length=1), Tag("string")]
        | Annotated[
            Items[Annotated[int, Field(ge=0, le=2**31 - 1)]],
            Field(min_length=1, max_length=MAX_PROMPT_TOKENS),
            Tag("token_ids"),
        ],
        Discriminator(
            _prompt_kind,
            custom_error_type="prompt_kind",
            custom_error_message="must be one string or one list of token ids: send several prompts one by one",
        ),
    ]
    logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None,
        BeforeValidator(_no_count, json_schema_input_type=int | Literal[False] | None),
    ] = None
    """The log probability of each token of the answer, and of so many of the most likely ones."""

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs


# --- replies ---


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
    content: str
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


class ChatChunkDelta(WireModel):
    role: Literal["assistant"] | None = None
    """In the first chunk only."""
    content: str | None = None


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
