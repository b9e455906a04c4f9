"""JSON on the wire.

Knows bytes and plain Python values. Does not know what the values mean (`topics.messages`).

Duplicate keys: the last one wins. Documents nested deeper than 1,024 levels are refused; so are NaN and infinities,
which are not JSON.
"""

from typing import Any

import orjson

from topics.errors import RequestError

__all__ = ["dumps", "loads", "loads_object"]


def loads(value: bytes) -> Any:
    """Parse one JSON document in UTF-8.

    Raises `RequestError` (400, param `body`) that says where the document goes wrong, and quotes none of it.
    """
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        problem, place = error.msg, f"line {error.lineno}, column {error.colno}"
    # Raised outside the handler, so that the exception doesn't drag the document along as its context.
    raise RequestError.invalid_request(
        "body", f"the request body is not JSON: {problem} ({place}). Send one JSON object in UTF-8.", "invalid_json"
    )


def loads_object(value: bytes) -> dict[str, Any]:
    """Like `loads`, for a document that must be an object."""
    document = loads(value)
    if isinstance(document, dict):
        return document
    kinds = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    found = kinds.get(type(document), "a number")
    raise RequestError.invalid_request(
        "body", f"the request body is {found}: send a JSON object with model and messages (or prompt, or input)."
    )


def dumps(document: Any) -> bytes:
    """Compact UTF-8 JSON; an array of numpy's is an array of numbers, in no more digits than its type needs.

    Raises `TypeError` for what JSON can't carry (a bug of the caller)."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
