"""A request's body, checked: one of the request models, or one refusal that names the field and the remedy.

Knows OpenAI's and vLLM's further fields by name, which of their values change nothing (and so are accepted), and
how a problem that pydantic found is said in OpenAI's words. Does not know the record, the headers or the model.

Only the first problem is reported. No text of a body is ever repeated; numbers are, since the user must see them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from topics.embeddings import EmbeddingRequest
from topics.errors import RequestError
from topics.messages import (
    MAX_CHOICES,
    MAX_SEQUENCES,
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    GenerationRequest,
)
from topics.structured import FunctionChoice

__all__ = ["Request", "accepted_without_effect", "asked_sequences", "parse_request", "request_kind"]

Request = ChatCompletionRequest | CompletionRequest | EmbeddingRequest

_Unsupported = Mapping[str, tuple[tuple[object, ...], str]]
"""Field → the values that change nothing, and the remedy where it has another one."""

_NOTHING: tuple[object, ...] = (None,)
_LATER = "leave it out"

_UNSUPPORTED: _Unsupported = {
    "best_of": ((None, 1), "set it to 1"),
    "top_logprobs": (_NOTHING, "logprobs takes the number"),
    "use_beam_search": ((None, False), "set it to false"),
    "length_penalty": ((None, 1), "set it to 1"),
    "echo": ((None, False), "set it to false"),
    "suffix": (_NOTHING, _LATER),
    "response_format": ((None, {"type": "text"}), "send messages, a text completion is plain text"),
    "tools": ((None, []), "send messages, a text completion has none"),
    "tool_choice": ((None, "none"), "send messages, a text completion has none"),
    "parallel_tool_calls": ((None, True, False), "send messages, a text completion has none"),
    "functions": ((None, []), "use tools"),
    "function_call": ((None, "none"), "use tool_choice"),
    "audio": (_NOTHING, _LATER),
    "modalities": ((None, ["text"]), 'set it to ["text"]'),
    "prediction": (_NOTHING, _LATER),
    "web_search_options": (_NOTHING, _LATER),
    "reasoning_effort": (_NOTHING, _LATER),
    "verbosity": (_NOTHING, _LATER),
    "store": ((None, False), "set it to false"),
    "service_tier": ((None, "auto", "default"), "choose the class by the topic, or lower it by priority"),
    "safety_identifier": (_NOTHING, "use user"),
    "prompt_cache_key": (_NOTHING, "use the record's key"),
    "chat_template": (_NOTHING, "the model's own template is used"),
    "chat_template_kwargs": (_NOTHING, _LATER),
    "continue_final_message": ((None, False), "set it to false"),
    "add_generation_prompt": ((None, True), "set it to true"),
    "prompt_logprobs": (_NOTHING, _LATER),
}

_UNSUPPORTED_IN_MESSAGE: _Unsupported = {
    "name": (_NOTHING, "put the name into the content"),
    "function_call": (_NOTHING, "use tool_calls"),
    "refusal": (_NOTHING, _LATER),
    "audio": (_NOTHING, _LATER),
    "annotations": ((None, []), _LATER),
}

_UNSUPPORTED_IN_EMBEDDING: _Unsupported = {
    "stream": ((None, False), "vectors come whole, set it to false"),
    "n": ((None, 1), "an input has one vector, set it to 1"),
    "add_special_tokens": ((None, True), "send token ids"),
    "truncate_prompt_tokens": (_NOTHING, "shorten the input"),
    "normalize": ((None, True), "vectors have length 1, set it to true"),
}

_KIND_OF: Mapping[str, type[Request]] = MappingProxyType(
    {"messages": ChatCompletionRequest, "prompt": CompletionRequest, "input": EmbeddingRequest}
)
"""By the field that only such a request has."""

_ACCEPTED_IN: Mapping[type[BaseModel], _Unsupported] = MappingProxyType(
    {
        ChatCompletionRequest: _UNSUPPORTED,
        CompletionRequest: _UNSUPPORTED,
        EmbeddingRequest: _UNSUPPORTED_IN_EMBEDDING,
        ChatMessage: _UNSUPPORTED_IN_MESSAGE,
    }
)
_FIELDS = {model: frozenset(model.model_fields) for model in _ACCEPTED_IN}

_NAME_CHARACTERS = 64
"""A field's name is the client's own text: repeated up to this length."""

_PROBLEMS: Mapping[str, tuple[str, str]] = {
    # pydantic's error type: (code in OpenAI's terms, what the field must be; {…} from the error's context)
    "missing": ("missing_required_parameter", "is required: add it"),
    "extra_forbidden": ("unknown_parameter", "is not a known field: remove it"),
    "string_type": ("invalid_type", "must be a string"),
    "int_type": ("invalid_type", "must be a whole number of at most 64 bits"),
    "float_type": ("invalid_type", "must be a number"),
    "bool_type": ("invalid_type", "must be true or false"),
    "dict_type": ("invalid_type", "must be an object"),
    "model_type": ("invalid_type", "must be an object"),
    "model_attributes_type": ("invalid_type", "must be an object"),
    "tuple_type": ("invalid_type", "must be a list"),
    "greater_than": ("invalid_value", "must be greater than {gt}"),
    "greater_than_equal": ("invalid_value", "must be at least {ge}"),
    "less_than_equal": ("invalid_value", "must be at most {le}"),
    "string_too_short": ("invalid_value", "must not be empty"),
    "string_too_long": ("invalid_value", "must have at most {max_length} characters: shorten it"),
    "too_short": ("invalid_value", "must not be empty"),
    "too_long": ("invalid_value", "must have at most {max_length} entries: shorten it"),
    "string_pattern_mismatch": ("invalid_value", "must be a token id, written in digits"),
    "literal_error": ("invalid_value", "must be {expected}"),
    "union_tag_invalid": ("invalid_value", "must have a {discriminator} of {expected_tags}"),
    "union_tag_not_found": ("invalid_value", "must have a {discriminator}"),
}


def accepted_without_effect(model: type[BaseModel]) -> Mapping[str, tuple[object, ...]]:
    """Fields that a model lacks and a body may have all the same, with the values that it may have them with."""
    fields = _ACCEPTED_IN.get(model, {})
    return {name: values for name, (values, _) in fields.items() if name not in model.model_fields}


def request_kind(body: Mapping[str, Any]) -> type[Request]:
    """Which request a body is: `messages` make a chat, `prompt` a text completion, `input` asks for embeddings.

    Raises `RequestError`."""
    named = [field for field in _KIND_OF if field in body]
    if len(named) > 1:
        raise RequestError.invalid_request(
            named[-1],
            f"the body has both {named[0]} and {named[-1]}: send messages for a chat, prompt for a completion or input "
            "for embeddings.",
        )
    if not named:
        raise RequestError.invalid_request(
            "messages",
            "messages is required: add it (or prompt, for a text completion; or input, for embeddings).",
            "missing_required_parameter",
        )
    return _KIND_OF[named[0]]


def asked_sequences(body: Mapping[str, Any]) -> tuple[int, int]:
    """How many prompts a body has, and how many choices it asks for each; (1, 1) if `parse_request` will refuse it."""
    embeds = "input" in body
    prompt, choices = body.get("input" if embeds else "prompt"), None if embeds else body.get("n")
    several = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
    prompts = len(prompt) if isinstance(prompt, list) and several else 1
    choices = choices if isinstance(choices, int) and 1 <= choices <= MAX_CHOICES else 1
    return (prompts, int(choices)) if prompts * choices <= MAX_SEQUENCES else (1, 1)


def parse_request(body: Mapping[str, Any]) -> Request:
    """Check a decoded body whole. Raises `RequestError` (400) for its first problem; never changes `body`."""
    kind = request_kind(body)
    request: Request | None
    try:
        # Most bodies have nothing but known fields: those need no screening. Others are looked at more closely.
        request = kind.model_validate(body)
    except ValidationError:
        request = None
    if request is None:
        request = _parse_screened(kind, body)
    if not isinstance(request, EmbeddingRequest):
        _check_combinations(request)
    return request


def _parse_screened(kind: type[Request], body: Mapping[str, Any]) -> Request:
    """The request of a body with fields that are not enforced, but ask for nothing; or its first problem, raised."""
    screened = _screen(body, kind, "")
    messages = screened.get("messages")
    if isinstance(messages, list):
        screened["messages"] = [
            _screen(message, ChatMessage, f"messages.{place}.") if isinstance(message, dict) else message
            for place, message in enumerate(messages)
        ]
    try:
        return kind.model_validate(screened)
    except ValidationError as error:
        refusal = _refusal(screened, error.errors(include_url=False)[0])
    # Raised outside the handler: pydantic's error holds the body, and must not travel with ours.
    raise refusal


def _screen(part: Mapping[str, Any], model: type[BaseModel], path: str) -> dict[str, Any]:
    """`part` with the model's fields only; raises for a field that asks for more than is enforced, or is unknown."""
    known, unsupported = _FIELDS[model], _ACCEPTED_IN[model]
    screened = {}
    for field, value in part.items():
        if field in known:
            screened[field] = value
        elif field not in unsupported:
            name = _shortened(field)
            raise RequestError.invalid_request(
                f"{path}{name}", f"{path}{name} is not a known field: remove it.", "unknown_parameter"
            )
        else:
            neutral, remedy = unsupported[field]
            if not any(_same(value, candidate) for candidate in neutral):
                raise RequestError.unsupported(f"{path}{field}", remedy)
    return screened


def _same(value: object, neutral: object) -> bool:
    """JSON equality: 0 and 0.0 are the same number, but true is not 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _check_combinations(request: GenerationRequest) -> None:
    """What no single field can tell."""
    if request.stream_options is not None and not request.stream:
        raise RequestError.invalid_request(
            "stream_options", "stream_options is only allowed when stream is true: set stream, or leave it out."
        )
    limit = request.requested_tokens
    if limit is not None and request.min_tokens is not None and request.min_tokens > limit:
        raise RequestError.invalid_request(
            "min_tokens", f"min_tokens is {request.min_tokens}, more than the output limit of {limit}: lower it."
        )
    prompts = len(request.prompts) if isinstance(request, CompletionRequest) else 1
    if (sequences := prompts * (request.n or 1)) > MAX_SEQUENCES:
        raise RequestError.invalid_request(
            "n", f"n times the number of prompts is {sequences}, the most is {MAX_SEQUENCES}: send several requests."
        )
    if not isinstance(request, ChatCompletionRequest):
        return
    if request.top_logprobs and not request.logprobs:
        raise RequestError.invalid_request(
            "top_logprobs", "top_logprobs is only allowed when logprobs is true: set logprobs, or leave it out."
        )
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise RequestError.invalid_request(
            "max_tokens", "max_tokens and max_completion_tokens mean the same: send one of them."
        )
    _check_form(request)


def _check_form(request: ChatCompletionRequest) -> None:
    """What is asked of the answer's form fits together."""
    if request.response_format is None and request.tools is None and request.tool_choice is None:
        return  # nearly all
    tools, choice = request.tools or (), request.tool_choice
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise RequestError.invalid_request("tools", "tools has two functions of one name: rename one.")
    if not tools and choice not in (None, "none"):
        raise RequestError.invalid_request("tool_choice", "tool_choice is only allowed with tools: add them.")
    if isinstance(choice, FunctionChoice) and choice.function.name not in names:
        raise RequestError.invalid_request(
            "tool_choice.function.name", "tool_choice.function.name is none of the tools' names: choose one of them."
        )
    calls = bool(tools) and choice != "none"
    formatted = request.response_format is not None and request.response_format.type != "text"
    if calls and formatted:
        raise RequestError.invalid_request(
            "response_format", 'response_format does not go with tools: leave it out, or set tool_choice to "none".'
        )
    for field in ("ignore_eos", "min_tokens"):
        if (calls or formatted) and getattr(request, field):
            raise RequestError.invalid_request(
                field,
                f"{field} does not go with response_format or tools, whose answer ends when it is whole: drop it.",
            )


def _refusal(body: Mapping[str, Any], problem: ErrorDetails) -> RequestError:
    path = _path(body, problem)
    # What isn't in the table is one of `topics.messages`' own errors, already in these words.
    code, must = _PROBLEMS.get(problem["type"], ("invalid_value", problem["msg"]))
    given = problem["input"]
    # Only numbers and truth values are repeated: a string may be the caller's secret.
    value = f", not {str(given).lower()}" if isinstance(given, int | float) else ""
    return RequestError.invalid_request(path, f"{path} {must.format(**problem.get('ctx', {}))}{value}.", code)


def _path(body: Mapping[str, Any], problem: ErrorDetails) -> str:
    """OpenAI's dotted path. Pydantic's also names union members and checks: what isn't in the body is left out."""
    here: Any = body
    path: list[str] = []
    for place, step in enumerate(problem["loc"], start=1):
        if isinstance(here, dict) and step in here:
            here = here[step]
        elif isinstance(here, list) and isinstance(step, int):
            here = here[step] if step < len(here) else None
        elif problem["type"] != "missing" or place < len(problem["loc"]):
            continue
        path.append(_shortened(str(step)))
    return ".".join(path)


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_CHARACTERS else f"{name[:_NAME_CHARACTERS]}…"
