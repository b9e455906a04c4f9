"""The parts of a chat request that ask for a form of the answer: `response_format`, `tools` and `tool_choice`.

Knows OpenAI's fields. Does not know grammars: a schema that can't be held is refused by `workers.intake.answer_form`,
with the keyword's name.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from topics.wire_model import Text, WireModel

__all__ = [
    "FunctionCall",
    "FunctionChoice",
    "FunctionTool",
    "JsonSchemaFormat",
    "ResponseFormat",
    "ToolCall",
    "ToolChoice",
]

MAX_TOOLS = 128
MAX_NAME_CHARACTERS = 64
MAX_ID_CHARACTERS = 256


def _plain(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise PydanticCustomError("plain_name", "must have letters, digits, _, . and - only")
    return name


Name = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS), AfterValidator(_plain)]
Schema = dict[str, Any]


class JsonSchema(WireModel):
    name: Name
    description: Text | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    """None: any JSON document."""
    strict: bool | None = None
    """It is held either way."""


class TextFormat(WireModel):
    type: Literal["text"]


class JsonObjectFormat(WireModel):
    type: Literal["json_object"]


class JsonSchemaFormat(WireModel):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class Function(WireModel):
    name: Name
    description: Text | None = None
    parameters: Schema | None = None
    """A JSON Schema of the arguments. None: none are expected."""
    strict: bool | None = None
    """It is held either way."""


class FunctionTool(WireModel):
    type: Literal["function"]
    function: Function


class FunctionName(WireModel):
    name: Name


class FunctionChoice(WireModel):
    type: Literal["function"]
    function: FunctionName


def _choice_kind(choice: object) -> str | None:
    if isinstance(choice, str):
        return "mode"
    return "function" if isinstance(choice, dict | FunctionChoice) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")] | Annotated[FunctionChoice, Tag("function")],
    Discriminator(
        _choice_kind,
        custom_error_type="choice_kind",
        custom_error_message='must be "none", "auto", "required" or an object that names a function',
    ),
]


class FunctionCall(WireModel):
    name: Name
    arguments: Text
    """JSON, as a string."""


class ToolCall(WireModel):
    id: Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS)]
    type: Literal["function"]
    function: FunctionCall
