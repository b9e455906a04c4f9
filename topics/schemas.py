"""JSON Schemas of every value that crosses the wire as JSON, made from the models that read and write them.

Knows which model is the value of which kind of record. Does not know topics or headers (`topics.asyncapi`), nor where
the schemas are written.

The request schemas also name the fields of OpenAI's and vLLM's that are accepted with a value that changes nothing.
What a schema can't say (the body's size, a prompt within the context, `min_tokens` below `max_tokens`) a worker
answers with an `error`.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from topics.control_records import (
    CancelOrder,
    DrainOrder,
    PauseOrder,
    PolicyOrder,
    QuotaOrder,
    RequeueOrder,
    WorkerState,
)
from topics.embeddings import EmbeddingList, EmbeddingRequest
from topics.jobs.records import CollectorBeat, JobCancel, JobMemo, JobOrder, JobRun
from topics.messages import ChatCompletionRequest, ChatMessage, CompletionRequest
from topics.reply_messages import ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk, ErrorBody
from topics.usage import UsageRecord
from topics.validation import accepted_without_effect
from topics.worker_reports import WorkerReport

__all__ = ["DIALECT", "RECORD_VALUES", "component_schemas", "record_schema"]

DIALECT = GenerateJsonSchema.schema_dialect

RECORD_VALUES: Mapping[str, type[BaseModel]] = {
    "chat-completion-request": ChatCompletionRequest,
    "completion-request": CompletionRequest,
    "embedding-request": EmbeddingRequest,
    "chat-completion-chunk": ChatCompletionChunk,
    "completion-chunk": CompletionChunk,
    "chat-completion": ChatCompletion,
    "completion": Completion,
    "embedding-list": EmbeddingList,
    "error": ErrorBody,
    "job-order": JobOrder,
    "job-run": JobRun,
    "job-cancel": JobCancel,
    "job-memo": JobMemo,
    "collector-beat": CollectorBeat,
    "usage": UsageRecord,
    "worker-report": WorkerReport,
    "cancel-order": CancelOrder,
    "requeue-order": RequeueOrder,
    "pause-order": PauseOrder,
    "quota-order": QuotaOrder,
    "policy-order": PolicyOrder,
    "drain-order": DrainOrder,
    "worker-state": WorkerState,
}
"""File name → model."""

_WITH_EXTRAS: tuple[type[BaseModel], ...] = (ChatCompletionRequest, CompletionRequest, EmbeddingRequest, ChatMessage)


def record_schema(model: type[BaseModel]) -> dict[str, Any]:
    """A schema that stands alone."""
    schema = model.model_json_schema()
    _add_accepted(model.__name__, schema)
    for name, definition in schema.get("$defs", {}).items():
        _add_accepted(name, definition)
    return {"$schema": DIALECT, **schema}


def component_schemas(ref_prefix: str) -> dict[str, dict[str, Any]]:
    """All of them, and what they share, by the model's name; references begin with `ref_prefix`."""
    components: dict[str, dict[str, Any]] = {}
    for model in RECORD_VALUES.values():
        schema = model.model_json_schema(ref_template=ref_prefix + "{model}")
        for name, definition in (*schema.pop("$defs", {}).items(), (model.__name__, schema)):
            _add_accepted(name, definition)
            assert components.setdefault(name, definition) == definition, f"two models are named {name}"
    return components


def _add_accepted(name: str, schema: dict[str, Any]) -> None:
    for model in _WITH_EXTRAS:
        if model.__name__ == name:
            for field, values in accepted_without_effect(model).items():
                schema["properties"][field] = {
                    "enum": list(values),
                    "description": "Accepted with a value that changes nothing; any other is refused.",
                }
