"""The bodies of requests: chat completions and text completions, in OpenAI's schema.

Knows which fields there are, their types and ranges, and how large each may be. **A field stands in a request model
only if it is truly enforced**; what OpenAI or vLLM have beyond that is named in `topics.validation`, which turns a
body into one of these models or into one `RequestError`. Does not know tokens, models served or context lengths
(`workers.intake.prompt`).

What asks for a form of the answer (`response_format`, `tools`) is `topics.structured`; for vectors,
`topics.embeddings`.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from topics.structured import MAX_TOOLS, FunctionTool, ResponseFormat, ToolCall, ToolChoice
from topics.wire_model import Items, Text, WireModel

__all__ = [
    "ChatCompletionRequest",
    "ChatMessage",
    "ClassWish",
    "CompletionRequest",
    "GenerationRequest",
    "Prompts",
    "StreamOptions",
    "TextPart",
    "each_prompt",
]

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_PROMPT_TOKENS = 2_000_000
MAX_PROMPTS = 2048
"""Of one request."""
MAX_CHOICES = 128
MAX_SEQUENCES = 2048
"""Prompts × choices of one request."""
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
MAX_USER_CHARACTERS = 512
MAX_TOP_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5
CLASSES = ("p0", "p1", "p2", "p3")

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
ClassNumber = Annotated[int, Field(ge=0, le=3)]


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
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            Annotated[Text, Tag("string")]
            | Annotated[Items[TextPart], Field(min_length=1, max_length=MAX_PARTS), Tag("parts")],
            Discriminator(
                _content_kind,
                custom_error_type="content_kind",
                custom_error_message="must be a string or a list of text parts",
            ),
        ]
        | None
    ) = None
    """None: only of an assistant that called tools."""
    tool_calls: Annotated[Items[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    """Of an assistant only."""
    tool_call_id: Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)] | None = None
    """Of a tool's answer only: the call that it answers."""

    @model_validator(mode="after")
    def _consistent(self) -> "ChatMessage":
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise PydanticCustomError("missing_content", "must have a content: add it")
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError(
                "foreign_tool_calls", "has tool_calls, which only an assistant's message may have"
            )
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise PydanticCustomError(
                "foreign_tool_call_id", "must have a tool_call_id if its role is tool, and none otherwise"
            )
        return self

    @property
    def text(self) -> str:
        """The content as one string; text parts are joined as they stand."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
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


ClassWish = Annotated[
    ClassNumber,
    BeforeValidator(_class_number, json_schema_input_type=ClassNumber | Literal["p0", "p1", "p2", "p3"]),
]
"""A class that a body asks for."""


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
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """Choices for each prompt. None: 1. Their randomness differs, their prompt is computed once."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=MAX_USER_CHARACTERS)] | None = None
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
    priority: ClassWish | None = None
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
    response_format: ResponseFormat | None = None
    tools: Annotated[Items[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    """None: `auto` with tools, else `none`."""
    parallel_tool_calls: bool | None = None
    """False: at most one call."""
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
    if not isinstance(prompt, list | tuple):
        return None
    # The first element gives away what the others must be.
    first = prompt[0] if prompt else None
    if isinstance(first, str):
        return "strings"
    return "token_id_lists" if isinstance(first, list | tuple) else "token_ids"


_TokenIds = Annotated[
    Items[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1, max_length=MAX_PROMPT_TOKENS)
]
_OneText = Annotated[Text, Field(min_length=1)]
Prompts = Annotated[
    Annotated[_OneText, Tag("string")]
    | Annotated[Items[_OneText], Field(max_length=MAX_PROMPTS), Tag("strings")]
    | Annotated[_TokenIds, Tag("token_ids")]
    | Annotated[Items[_TokenIds], Field(max_length=MAX_PROMPTS), Tag("token_id_lists")],
    Discriminator(
        _prompt_kind,
        custom_error_type="prompt_kind",
        custom_error_message="must be a string, a list of strings, a list of token ids or a list of such lists",
    ),
]
"""One text or several, as text or as token ids."""


def each_prompt(prompts: Prompts) -> "tuple[str | tuple[int, ...], ...]":
    """One string or one list of token ids for each."""
    if isinstance(prompts, str):
        return (prompts,)
    token_ids = tuple(item for item in prompts if isinstance(item, int))
    return (token_ids,) if token_ids else tuple(item for item in prompts if not isinstance(item, int))


class CompletionRequest(GenerationRequest):
    prompt: Prompts
    logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None,
        BeforeValidator(_no_count, json_schema_input_type=int | Literal[False] | None),
    ] = None
    """The log probability of each token of the answer, and of so many of the most likely ones."""

    @property
    def prompts(self) -> "tuple[str | tuple[int, ...], ...]":
        """One string or one list of token ids for each prompt."""
        return each_prompt(self.prompt)

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs
