"""Everything that part A calls bad input, as a table: a record, and what must become of it.

Two tests read it: `tests/workers/intake/test_bad_input.py` (ingress and prompt alone) and one against the real broker.
A case with a `request-id` header is answered by an `error` reply on the default replies topic; one without goes to the
dead letters with its bytes. The model has at most 8,192 tokens of context, and is not called `gpt-4`.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from tests.topics.raw_batches import RawName
from topics.headers import REQUEST_ID

__all__ = ["CASES", "MODEL", "BadInput", "ErrorReply"]

MODEL = "smollm2"


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """What the reply must say. `message` is a regular expression to be found in it."""

    status_code: int
    param: str | None
    message: str
    code: str | None


@dataclass(frozen=True, slots=True)
class BadInput:
    name: str
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    expected: ErrorReply | None
    """None: the record goes to the dead letters as it is."""
    key: bytes | None = b"bad-input"

    @property
    def request_id(self) -> str | None:
        """What the reply is known by."""
        return next((value.decode() for name, value in self.headers if name == REQUEST_ID), None)


def _chat(**fields: Any) -> bytes:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    return orjson.dumps(body | fields)


def _answered(
    name: str,
    value: bytes | None,
    *expected: Any,
    headers: tuple[tuple[str, bytes], ...] = (),
) -> BadInput:
    """`expected`: status, param, code, regular expression of the message."""
    status, param, code, message = expected
    identity = (REQUEST_ID, f"bad-{name.replace(' ', '-')}".encode())
    return BadInput(name, value, (identity, *headers), ErrorReply(status, param, message, code))


_NOT_JSON = (400, "body", "invalid_json", "not JSON.*line 1, column")

_BODIES = [
    _answered("not json", b"Say hello.", *_NOT_JSON),
    _answered("empty value", b"", *_NOT_JSON),
    _answered("json cut off", _chat()[:-5], *_NOT_JSON),
    _answered("not utf-8", b'{"model": "\xff"}', *_NOT_JSON),
    _answered("json array", b"[]", 400, "body", None, "is an array: send a JSON object"),
    _answered("json null", b"null", 400, "body", None, "is null: send a JSON object"),
    _answered("tombstone", None, 400, "body", None, "no value.*send a JSON body"),
    _answered("no messages", orjson.dumps({"model": MODEL}), 400, "messages", "missing_required_parameter", "add"),
    _answered("messages of the wrong shape", _chat(messages="hi"), 400, "messages", "invalid_type", "must be a list"),
    _answered("a message of the wrong shape", _chat(messages=[3]), 400, "messages.0", "invalid_type", "an object"),
    _answered("empty messages", _chat(messages=[]), 400, "messages", "invalid_value", "must not be empty"),
    _answered(
        "unknown role",
        _chat(messages=[{"role": "robot", "content": "hi"}]),
        *(400, "messages.0.role", "invalid_value", "must be 'system', 'developer', 'user', 'assistant' or 'tool'"),
    ),
    _answered(
        "null content",
        _chat(messages=[{"role": "user", "content": None}]),
        *(400, "messages.0", "invalid_value", "must have a content: add it"),
    ),
    _answered("unknown field", _chat(temprature=1), 400, "temprature", "unknown_parameter", "remove it"),
]

_LENGTHS = [
    _answered(
        "prompt longer than the context",
        _chat(messages=[{"role": "user", "content": "word " * 20_000}]),
        *(400, "messages", "context_length_exceeded", "maximum context length is .* reduce the length"),
    ),
    _answered(
        "prompt and answer longer than the context",
        orjson.dumps({"model": MODEL, "prompt": "word " * 200, "max_tokens": 8_190}),
        *(400, "prompt", "context_length_exceeded", "8190 in the completion.*reduce the length"),
    ),
    _answered(
        "body just under one megabyte",
        _chat(messages=[{"role": "user", "content": "word " * 199_900}]),
        *(400, "messages", "context_length_exceeded", "maximum context length"),
    ),
    _answered(
        "one megabyte body",
        _chat(messages=[{"role": "user", "content": "word " * 204_000}]),
        *(413, "body", "request_too_large", "limit is 1000000: shorten"),
    ),
    _answered("max_tokens zero", _chat(max_tokens=0), 400, "max_tokens", "invalid_value", "at least 1, not 0"),
    _answered("max_tokens negative", _chat(max_tokens=-1), 400, "max_tokens", "invalid_value", "at least 1, not -1"),
    _answered("max_tokens absurd", _chat(max_tokens=10**9), 400, "max_tokens", "invalid_value", "too large"),
    _answered("max_tokens beyond reason", _chat(max_tokens=10**15), 400, "max_tokens", "invalid_value", "at most"),
    _answered("max_tokens text", _chat(max_tokens="4"), 400, "max_tokens", "invalid_type", "must be a whole number"),
]

_SAMPLING = [
    _answered("temperature high", _chat(temperature=2.5), 400, "temperature", "invalid_value", "at most 2.*not 2.5"),
    _answered("temperature low", _chat(temperature=-1), 400, "temperature", "invalid_value", "at least 0.*not -1"),
    _answered("top_p zero", _chat(top_p=0), 400, "top_p", "invalid_value", "greater than 0"),
    _answered(
        "a schema that can't be held",
        _chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"not": {}}}}),
        *(
            400,
            "response_format.json_schema.schema",
            "invalid_schema",
            r'can\'t be held: Unimplemented keys: \["not"\]',
        ),
    ),
    _answered("too many answers", _chat(n=129), 400, "n", "invalid_value", "at most 128, not 129"),
    _answered("empty stop", _chat(stop=["x", ""]), 400, "stop.1", "invalid_value", "must not be empty"),
]

_UNSUPPORTED = [
    _answered(f"{name} asked for", _chat(**{field: value}), 400, field, "unsupported_parameter", "not supported yet:")
    for name, field, value in [
        ("audio", "audio", {"voice": "alloy", "format": "wav"}),
        ("web search", "web_search_options", {}),
    ]
] + [
    _answered(
        "an image",
        _chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
        *(400, "messages.0.content.0.type", "invalid_value", "other modalities are not supported yet"),
    ),
    _answered(
        "another model", _chat(model="gpt-4"), 404, "model", "model_not_found", "`gpt-4` is not served.*set model"
    ),
]

_HEADERS = [
    _answered(
        f"{name} not utf-8",
        _chat(),
        *(400, name, "invalid_header", f"header {name} is not UTF-8.*encode"),
        headers=((name, b"\xc3\x28"),),
    )
    for name in ("tenant", "flow", "tier", "job-id", "kafka_replyTopic")
] + [
    _answered(
        "header name not utf-8",
        b"not json",
        *_NOT_JSON,
        headers=((RawName(b"tenant\xc3\x28"), b"acme"),),
    ),
    _answered(
        "deadline is no number",
        _chat(),
        *(400, "deadline-ms", "invalid_header", "not a whole number.*digits"),
        headers=(("deadline-ms", b"tomorrow"),),
    ),
    _answered(
        "deadline has passed",
        _chat(),
        *(504, "deadline-ms", "expired", "deadline passed .* ms before"),
        headers=(("deadline-ms", b"1700000000000"),),
    ),
    _answered(
        "reply topic not allowed",
        _chat(),
        *(403, "kafka_replyTopic", "reply_topic_not_allowed", "not on the allow-list.*leave the header out"),
        headers=(("kafka_replyTopic", b"somebody.elses.topic"),),
    ),
    _answered(
        "reply topic is no topic",
        _chat(),
        *(400, "kafka_replyTopic", "invalid_header", "not a topic's name"),
        headers=(("kafka_replyTopic", b"../secret"),),
    ),
    _answered(
        "reply partition is no partition",
        _chat(),
        *(400, "kafka_replyPartition", "invalid_header", "no partition|not a whole number"),
        headers=(("kafka_replyTopic", b"somebody.elses.topic"), ("kafka_replyPartition", b"\xff\xff\xff\xff")),
    ),
]

_UNANSWERABLE = [
    BadInput("tombstone of nobody", None, (), None),
    BadInput("tombstone without a key", None, (), None, key=None),
    BadInput("not json, of nobody", b"\x00\x01\x02 not json", (), None),
    BadInput("request id not utf-8 and nothing else", b"not json", ((REQUEST_ID, b"\xff"),), None),
    BadInput("header name not utf-8, of nobody", b"not json", ((RawName(b"\xff"), b"x"),), None),
]

CASES: tuple[BadInput, ...] = (
    *_BODIES,
    *_LENGTHS,
    *_SAMPLING,
    *_UNSUPPORTED,
    *_HEADERS,
    *_UNANSWERABLE,
)
