"""The commonest chat bodies, told at a glance: in a tenth of the time that the whole check takes.

Knows bodies that can't have a problem: messages of one text each, and plain sampling fields within their ranges. Does
not know what is wrong with a body. One that isn't plain may be a good one all the same: `topics.validation` says so,
and it is the only one that ever refuses. What is plain here passes there; a property test holds the two together.

For who checks tens of thousands of bodies and needs nothing of them but that they pass (`topics.jobs.rows`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from topics.messages import MAX_MESSAGES, MAX_NAME_CHARACTERS, MAX_OUTPUT_TOKENS, MAX_REPETITION_PENALTY
from topics.wire_model import MAX_TEXT_CHARACTERS

__all__ = ["is_plain_chat"]

_Check = Callable[[Any], bool]

_ROLES = ("system", "developer", "user", "assistant")
"""Of messages that are nothing but their text. A tool's has to name its call."""


def is_plain_chat(body: Mapping[str, Any]) -> bool:
    """Whether a decoded body surely is a chat request without a problem. At most one of its output limits is set."""
    for field, value in body.items():
        check = _CHECKS.get(field)
        if check is None or not check(value):
            return False
    return "messages" in body and (body.get("max_tokens") is None or body.get("max_completion_tokens") is None)


def _are_plain(messages: Any) -> bool:
    if type(messages) is not list or not 1 <= len(messages) <= MAX_MESSAGES:
        return False
    for message in messages:
        if type(message) is not dict or len(message) != 2:
            return False
        content = message.get("content")
        if type(content) is not str or len(content) > MAX_TEXT_CHARACTERS or message.get("role") not in _ROLES:
            return False
    return True


def _whole(low: int, high: int) -> _Check:
    return lambda value: value is None or (type(value) is int and low <= value <= high)


def _number(low: float, high: float) -> _Check:
    return lambda value: value is None or (type(value) in (int, float) and low <= value <= high)


def _fraction(value: Any) -> bool:
    """Above 0, and 1 at most."""
    return value is None or (type(value) in (int, float) and 0 < value <= 1)


def _is_name(value: Any) -> bool:
    return value is None or (type(value) is str and 1 <= len(value) <= MAX_NAME_CHARACTERS)


_CHECKS: Mapping[str, _Check] = {
    "messages": _are_plain,
    "model": _is_name,
    "max_tokens": _whole(1, MAX_OUTPUT_TOKENS),
    "max_completion_tokens": _whole(1, MAX_OUTPUT_TOKENS),
    "temperature": _number(0, 2),
    "top_p": _fraction,
    "top_k": _whole(-1, 2**31 - 1),
    "min_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": lambda value: (
        value is None or (type(value) in (int, float) and 0 < value <= MAX_REPETITION_PENALTY)
    ),
    "seed": _whole(-(2**63), 2**63 - 1),
    "stream": lambda value: value is None or value is False,
}
