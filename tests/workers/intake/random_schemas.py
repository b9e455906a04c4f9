"""Bounded JSON Schemas drawn at random: whatever fits one is short."""

import random
from typing import Any

__all__ = ["bounded_schema"]

_NAMES = ("name", "age", "tags", "place", "ok", "size", "kind", "note")
_WORDS = ("red", "green", "blue", "Ü", "a b", '"', "")
_PATTERNS = ("^[a-z]{1,6}$", "^[A-Z][a-z]{0,5}$", "^[0-9]{3}-[0-9]{2}$", "^(yes|no|maybe)$")
_FORMATS = ("date", "time", "ipv4", "uuid")


def bounded_schema(draw: random.Random, depth: int = 2) -> dict[str, Any]:
    """With definitions and references where it is an object at the root."""
    schema = _schema(draw, depth)
    if schema.get("type") == "object" and draw.random() < 0.3:
        schema["$defs"] = {"word": {"type": "string", "maxLength": 8}}
        schema["properties"]["again"] = {"$ref": "#/$defs/word"}
        schema["required"] = [*schema["required"], "again"]
    return schema


def _schema(draw: random.Random, depth: int) -> dict[str, Any]:
    leaves = (_string, _integer, _number, _boolean, _enumeration, _constant)
    branches = (_object, _array, _alternatives, _object)
    make = draw.choice(branches if depth and draw.random() < 0.7 else leaves)
    return make(draw, depth - 1)


def _string(draw: random.Random, _depth: int) -> dict[str, Any]:
    kind = draw.randrange(3)
    if kind == 0:
        least = draw.randrange(4)
        return {"type": "string", "minLength": least, "maxLength": least + draw.randrange(12)}
    if kind == 1:
        return {"type": "string", "pattern": draw.choice(_PATTERNS)}
    return {"type": "string", "format": draw.choice(_FORMATS)}


def _integer(draw: random.Random, _depth: int) -> dict[str, Any]:
    least = draw.randrange(-1000, 1000)
    return {"type": "integer", "minimum": least, "maximum": least + draw.randrange(5000)}


def _number(draw: random.Random, _depth: int) -> dict[str, Any]:
    # JSON has no longest number: what is bounded is a set of them.
    return {"type": "number", "enum": [draw.randrange(100) / 4 for _ in range(draw.randrange(1, 5))]}


def _boolean(_draw: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": ["boolean", "null"]}


def _enumeration(draw: random.Random, _depth: int) -> dict[str, Any]:
    return {"enum": [*draw.sample(_WORDS, draw.randrange(1, 4)), draw.randrange(9), None]}


def _constant(draw: random.Random, _depth: int) -> dict[str, Any]:
    return {"const": draw.choice([*_WORDS, True, 17, {"a": [1]}])}


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(_NAMES, draw.randrange(1, 5))
    return {
        "type": "object",
        "properties": {name: _schema(draw, depth) for name in names},
        "required": [name for name in names if draw.random() < 0.7],
        "additionalProperties": False,
    }


def _array(draw: random.Random, depth: int) -> dict[str, Any]:
    least = draw.randrange(3)
    return {"type": "array", "items": _schema(draw, depth), "minItems": least, "maxItems": least + draw.randrange(3)}


def _alternatives(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_schema(draw, depth) for _ in range(draw.randrange(2, 4))]}
