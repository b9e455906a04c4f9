"""OpenAI's batch format as JSON Schemas: a line of the input, a line of the result files, the batch itself.

Knows the documented fields (OpenAI's API reference, "Batch" and "The request input/output object"). Does not know
what a line's body has to be: that is the endpoint's.
"""

from collections.abc import Mapping
from typing import Any

import jsonschema

__all__ = ["BATCH", "INPUT_LINE", "RESULT_LINE", "schema_of"]

_TIME = {"type": ["integer", "null"]}
_TEXT = {"type": ["string", "null"]}
_COUNT = {"type": "integer", "minimum": 0}

INPUT_LINE = {
    "type": "object",
    "required": ["custom_id", "method", "url", "body"],
    "additionalProperties": False,
    "properties": {
        "custom_id": {"type": "string", "minLength": 1},
        "method": {"const": "POST"},
        "url": {"enum": ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]},
        "body": {"type": "object"},
    },
}

RESULT_LINE = {
    "type": "object",
    "required": ["id", "custom_id", "response", "error"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "custom_id": {"type": "string"},
        "response": {
            "type": ["object", "null"],
            "required": ["status_code", "request_id", "body"],
            "additionalProperties": False,
            "properties": {
                "status_code": {"type": "integer"},
                "request_id": {"type": "string"},
                "body": {"type": "object"},
            },
        },
        "error": {
            "type": ["object", "null"],
            "required": ["code", "message"],
            "additionalProperties": False,
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        },
    },
    "oneOf": [{"properties": {"response": {"type": "null"}}}, {"properties": {"error": {"type": "null"}}}],
}
"""Of the output and of the error file."""

_STATES = [
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
_TIMES = [f"{state}_at" for state in _STATES if state != "validating"]

BATCH = {
    "type": "object",
    "required": ["id", "object", "endpoint", "input_file_id", "completion_window", "status", "created_at"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "batch"},
        "endpoint": {"type": "string"},
        "model": _TEXT,
        "errors": {
            "type": ["object", "null"],
            "properties": {
                "object": {"const": "list"},
                "data": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "code": {"type": "string"},
                            "line": {"type": ["integer", "null"]},
                            "message": {"type": "string"},
                            "param": _TEXT,
                        },
                    },
                },
            },
        },
        "input_file_id": {"type": "string"},
        "completion_window": {"type": "string", "pattern": "^[0-9]+[smh]$"},
        "status": {"enum": _STATES},
        "output_file_id": _TEXT,
        "error_file_id": _TEXT,
        "created_at": {"type": "integer"},
        "expires_at": _TIME,
        **dict.fromkeys(_TIMES, _TIME),
        "request_counts": {
            "type": "object",
            "required": ["total", "completed", "failed"],
            "additionalProperties": False,
            "properties": dict.fromkeys(("total", "completed", "failed"), _COUNT),
        },
        "usage": {
            "type": "object",
            "required": [
                "input_tokens",
                "input_tokens_details",
                "output_tokens",
                "output_tokens_details",
                "total_tokens",
            ],
        },
        "metadata": {"type": ["object", "null"], "maxProperties": 16, "additionalProperties": {"type": "string"}},
    },
}


def schema_of(schema: Mapping[str, Any]) -> jsonschema.Draft202012Validator:
    """Its `validate` raises `jsonschema.ValidationError`."""
    return jsonschema.Draft202012Validator(schema)
