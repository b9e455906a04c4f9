"""Tools as text: how they are offered to a model, how its calls are written, and how they are read back.

Knows one format of calls, Hermes' (Qwen's too): a JSON object of name and arguments between `<tool_call>` and
`</tool_call>`. Does not know tokens or how the format is held (`workers.intake.answer_form` has the grammar).

A template that has this format itself is given the tools, and writes them as its model was trained on them. Every other
template is told nothing: the tools stand in the system message, and calls and tools' answers are messages like others.
A small model that never saw a tool then answers in the right form all the same, for the grammar holds it; whether with
the right arguments is another question.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from topics.codec import dumps, loads_object
from topics.errors import RequestError
from topics.messages import ChatCompletionRequest, ChatMessage
from topics.structured import FunctionTool

__all__ = ["CALL_BEGIN", "CALL_END", "CalledTool", "Conversation", "ToolCallReader", "conversation", "offered_tools"]

CALL_BEGIN = "<tool_call>"
CALL_END = "</tool_call>"
_CALL = re.compile(r'\s*\{"name": "([^"\\]*)", "arguments": (.*)\}\s*', re.DOTALL)
"""As the grammar has it written."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat template is given."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    """None: the template is not told of any."""


@dataclass(frozen=True, slots=True)
class CalledTool:
    name: str
    arguments: str
    """JSON, as the model wrote it."""

    def call_id(self, request_id: str, choice: int, place: int) -> str:
        """The same in every attempt."""
        whose = f"{request_id}/{choice}/{place}"
        return f"call_{blake2b(whose.encode(), digest_size=12).hexdigest()}"


def offered_tools(request: ChatCompletionRequest) -> tuple[FunctionTool, ...]:
    """Those that the model may call."""
    return () if request.tool_choice == "none" else request.tools or ()


def conversation(request: ChatCompletionRequest, template: object) -> Conversation:
    """The messages as `template` (a chat template's text) wants them. Raises `RequestError`."""
    tools = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in offered_tools(request)]
    if isinstance(template, str) and CALL_BEGIN in template and "tools" in template:
        messages = [_native(message, place) for place, message in enumerate(request.messages)]
        return Conversation(messages, tools or None)
    messages = [{"role": _role(message), "content": _plain(message)} for message in request.messages]
    if tools:
        if messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": _offer(tools)})
        else:
            messages[0]["content"] += f"\n\n{_offer(tools)}"
    return Conversation(messages, None)


def _role(message: ChatMessage) -> str:
    # `developer` is OpenAI's newer name of the system's role; templates know only the old one.
    return {"developer": "system", "tool": "user"}.get(message.role, message.role)


def _native(message: ChatMessage, place: int) -> dict[str, Any]:
    role = "tool" if message.role == "tool" else _role(message)
    written: dict[str, Any] = {"role": role, "content": message.text}
    if message.tool_calls:
        written["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments, f"messages.{place}.tool_calls.{number}"),
                },
            }
            for number, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    return written


def _arguments(text: str, path: str) -> dict[str, Any]:
    """Templates write them themselves, as JSON of an object."""
    try:
        return loads_object(text.encode())
    except RequestError:
        pass
    field = f"{path}.function.arguments"
    raise RequestError.invalid_request(field, f"{field} must be a JSON object, as a string.", "invalid_value")


def _plain(message: ChatMessage) -> str:
    """A call, or a tool's answer, as a model without templates for them reads it."""
    if message.role == "tool":
        return f"<tool_response>\n{message.text}\n</tool_response>"
    calls = [
        f'{CALL_BEGIN}\n{{"name": "{call.function.name}", "arguments": {call.function.arguments}}}\n{CALL_END}'
        for call in message.tool_calls or ()
    ]
    return "\n".join([message.text, *calls] if message.text else calls) if calls else message.text


def _offer(tools: Sequence[dict[str, Any]]) -> str:
    lines = "\n".join(dumps(tool).decode() for tool in tools)
    return (
        f"You can call these functions, described between <tools> and </tools>:\n<tools>\n{lines}\n</tools>\n"
        "To call one, write its name and its arguments as a JSON object, like this:\n"
        f'{CALL_BEGIN}\n{{"name": "…", "arguments": {{…}}}}\n{CALL_END}'
    )


class ToolCallReader:
    """Splits an answer, as it comes, into what is said and what is called. A function of the text alone."""

    def __init__(self) -> None:
        self._held = ""
        """What may be the beginning of a call, or is one that hasn't ended."""
        self._inside = False
        self._called = False

    def feed(self, piece: str) -> list[str | CalledTool]:
        """What this piece of the answer completes, in order."""
        parts: list[str | CalledTool] = []
        text = self._held + piece
        while True:
            mark = CALL_END if self._inside else CALL_BEGIN
            before, found, after = text.partition(mark)
            if not found:
                break
            parts.append(self._call(before) if self._inside else self._said(before))
            self._inside = not self._inside
            text = after
        held = len(text) if self._inside else _overlap(text, CALL_BEGIN)
        parts.append(self._said(text[: len(text) - held]))
        self._held = text[len(text) - held :]
        return [part for part in parts if part != ""]

    def flush(self) -> str:
        """The answer has ended: what was held back is text, and so is a call that was cut off."""
        held, self._held = self._held, ""
        return f"{CALL_BEGIN}{held}" if self._inside else self._said(held)

    def _said(self, text: str) -> str:
        # Between calls stands a line break that nobody says.
        return text.strip() if self._called else text

    def _call(self, text: str) -> str | CalledTool:
        written = _CALL.fullmatch(text)
        self._called = written is not None
        return f"{CALL_BEGIN}{text}{CALL_END}" if written is None else CalledTool(written[1], written[2])


def _overlap(text: str, mark: str) -> int:
    """The length of the longest end of `text` that begins `mark`."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-size:])), 0)
