"""What every model of a body is: immutable, strict, closed; and JSON arrays in it.

Types are strict, as OpenAI's own are: `"0.5"` is not a number and `1` is not `true`.
"""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict

__all__ = ["MAX_TEXT_CHARACTERS", "Items", "Text", "WireModel"]

MAX_TEXT_CHARACTERS = 4_000_000
"""Of one string. Far above what the cap on a record's bytes lets through; a bound all the same."""

T = TypeVar("T")

Items = Annotated[tuple[T, ...], Strict(False), Field(fail_fast=True)]
"""A JSON array. Strictness would ask for a Python tuple; the items stay strict. The first bad item ends the check:
half a million of them must not become half a million errors.
"""
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]


class WireModel(BaseModel):
    """An unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
