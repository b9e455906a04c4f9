"""The contract as an AsyncAPI 3 document: topics, records, headers and values, made from the code that uses them.

Knows which records stand on which topic, and the format. Does not know where the document is written. Described is a
worker: it receives requests and sends replies; a client does the opposite.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topics.catalogue import CLASS_LABELS, Catalogue, TopicSpec
from topics.header_contract import (
    DEAD_LETTER_HEADERS,
    REQUEST_HEADERS,
    HeaderRow,
    delta_headers,
    headers_schema,
    mark_headers,
    terminal_headers,
)
from topics.headers import ReplyEvent
from topics.schemas import component_schemas

__all__ = ["MESSAGES", "Message", "asyncapi_document", "messages_of"]

_REFERENCE = "#/components/schemas/"
_KAFKA_BINDING = "0.5.0"


@dataclass(frozen=True, slots=True)
class Message:
    """A kind of record."""

    name: str
    title: str
    summary: str
    key: str | None
    """What the key says; None: there is none."""
    values: tuple[str, ...] = ()
    """Names of models, any of which the value may be; empty: bytes that only workers, or nobody, can read."""
    headers: Sequence[HeaderRow] = ()


MESSAGES: Mapping[str, Message] = {
    message.name: message
    for message in (
        Message(
            "request",
            "Request",
            "An OpenAI chat-completions, completions or embeddings body. The topic is the class.",
            "Affinity: requests with one key go to one partition and find each other's prefixes in the cache.",
            ("ChatCompletionRequest", "CompletionRequest", "EmbeddingRequest"),
            REQUEST_HEADERS,
        ),
        Message(
            "delta",
            "Delta",
            "A piece of a streamed answer (`stream: true`), outside transactions.",
            "The request id.",
            ("ChatCompletionChunk", "CompletionChunk"),
            delta_headers(),
        ),
        Message(
            "mark",
            "Mark in a stream",
            "`attempt`: what earlier attempts write behind it is void. `reset`: so it is, and the stream begins again.",
            "The request id.",
            headers=mark_headers(),
        ),
        Message(
            "final",
            "Final",
            "The whole answer. Of finals and errors each request gets exactly one; read with read_committed.",
            "The request id.",
            ("ChatCompletion", "Completion", "EmbeddingList"),
            terminal_headers(ReplyEvent.FINAL),
        ),
        Message(
            "error",
            "Error",
            "No answer will come, and why.",
            "The request id.",
            ("ErrorBody",),
            terminal_headers(ReplyEvent.ERROR),
        ),
        Message(
            "dead-letter",
            "Dead letter",
            "A record that nobody can be answered for, with its own key, value and headers.",
            "The record's own.",
            headers=DEAD_LETTER_HEADERS,
        ),
        Message("job-order", "Job", "What was ordered.", "order/JOB", ("JobOrder",)),
        Message(
            "job-run",
            "Run of a job",
            "Which rows are sent, and how far the sending has come.",
            "run/JOB/N",
            ("JobRun",),
        ),
        Message("job-cancel", "Cancel of a job", "The run that is to end.", "cancel/JOB", ("JobCancel",)),
        Message("job-memo", "Memo of a job", "What has become of the rows, as of an offset.", "memo/JOB", ("JobMemo",)),
        Message(
            "collector-beat", "Collector", "It lives, and has these partitions.", "collector/ID", ("CollectorBeat",)
        ),
        Message(
            "usage",
            "Usage",
            "What a request used: one for each that came as far as the scheduler, with its terminal reply.",
            "The request's identity: TOPIC/PARTITION/OFFSET of its record.",
            ("UsageRecord",),
        ),
        Message(
            "worker-report",
            "Report of a worker",
            "What it does, once a second. Totals count from its start.",
            "The worker's name.",
            ("WorkerReport",),
        ),
        Message(
            "cancel-order",
            "Cancel",
            "What was sent before it ends, with the error `cancelled`.",
            "cancel/SCOPE/NAME",
            ("CancelOrder",),
        ),
        Message("requeue-order", "Requeue", "If it waits: in another class.", "requeue/ID", ("RequeueOrder",)),
        Message("pause-order", "Pause", "Nothing of it starts.", "pause/SCOPE/NAME", ("PauseOrder",)),
        Message("quota-order", "Quota", "Instead of the configured one.", "quota/SCOPE[/TENANT]", ("QuotaOrder",)),
        Message("policy-order", "Policy", "Who goes next, instead of as configured.", "policy", ("PolicyOrder",)),
        Message("drain-order", "Drain", "This worker ends in order.", "drain/WORKER", ("DrainOrder",)),
        Message("worker-state", "State of a worker", "Which orders it has applied.", "worker/WORKER", ("WorkerState",)),
        Message(
            "attempt", "Attempt", "Written and read by workers alone.", "The consumer group, partition and offset."
        ),
        Message(
            "offset-map",
            "Map of completed offsets",
            "One that outgrew its commit's metadata. Written and read by workers alone.",
            "The consumer group and partition.",
        ),
    )
}


def messages_of(catalogue: Catalogue) -> dict[str, tuple[str, ...]]:
    """Topic → names of the messages that may stand on it. Every topic of the catalogue is there."""
    named = {catalogue.requests(label): ("request",) for label in CLASS_LABELS}
    return named | {
        catalogue.deltas: ("delta", "mark"),
        catalogue.replies: ("final", "error"),
        catalogue.dead_letters: ("dead-letter",),
        catalogue.control: (
            "cancel-order",
            "requeue-order",
            "pause-order",
            "quota-order",
            "policy-order",
            "drain-order",
            "worker-state",
        ),
        catalogue.progress: ("attempt",),
        catalogue.offsets: ("offset-map",),
        catalogue.usage: ("usage",),
        catalogue.reports: ("worker-report",),
        catalogue.jobs: ("job-order", "job-run", "job-cancel", "job-memo", "collector-beat"),
    }


def asyncapi_document(catalogue: Catalogue, version: str) -> dict[str, Any]:
    """`version`: of the package."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Headrace",
            "version": version,
            "description": "LLM requests on Kafka topics, one topic a class; answers on reply topics.\n\n"
            f"Names are those of the topic prefix `{catalogue.prefix}`. Partitions and retention are what `headrace "
            "topics create` gives.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "kafka": {
                "host": "127.0.0.1:9092",
                "protocol": "kafka",
                "description": "The broker of `docker compose up`, seen from its host.",
            }
        },
        "channels": dict(_channels(catalogue)),
        "operations": dict(_operations(catalogue)),
        "components": {
            "messages": {name: _message(message) for name, message in MESSAGES.items()},
            "schemas": component_schemas(_REFERENCE),
        },
    }


def _channels(catalogue: Catalogue) -> Iterator[tuple[str, Any]]:
    messages = messages_of(catalogue)
    for spec in catalogue.specs():
        yield (
            _channel_name(catalogue, spec.name),
            {
                "address": spec.name,
                "description": spec.purpose.capitalize() + ".",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages[spec.name]},
                "bindings": {"kafka": _topic_binding(spec)},
            },
        )


def _channel_name(catalogue: Catalogue, topic: str) -> str:
    return topic.removeprefix(f"{catalogue.prefix}.")


def _topic_binding(spec: TopicSpec) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in spec.configs.items():
        settings[name] = value.split(",") if name == "cleanup.policy" else int(value) if value.isdigit() else value
    return {"partitions": spec.partitions, "topicConfiguration": settings, "bindingVersion": _KAFKA_BINDING}


def _operations(catalogue: Catalogue) -> Iterator[tuple[str, Any]]:
    for label in CLASS_LABELS:
        yield (
            f"serve-{label}",
            {
                "action": "receive",
                "channel": {"$ref": f"#/channels/{label}"},
                "summary": f"Take a request of class {label} and answer it.",
                "bindings": {
                    "kafka": {
                        "groupId": {"type": "string", "const": catalogue.group(label)},
                        "bindingVersion": _KAFKA_BINDING,
                    }
                },
                "reply": {
                    "channel": {"$ref": "#/channels/replies"},
                    "messages": [{"$ref": f"#/channels/replies/messages/{name}"} for name in ("final", "error")],
                },
            },
        )
    yield (
        "stream",
        {
            "action": "send",
            "channel": {"$ref": "#/channels/deltas"},
            "summary": "Stream an answer that was asked for with `stream: true`.",
        },
    )
    yield (
        "give-up",
        {
            "action": "send",
            "channel": {"$ref": "#/channels/dlq"},
            "summary": "Keep a record that nobody can be answered for.",
        },
    )


def _message(message: Message) -> dict[str, Any]:
    described: dict[str, Any] = {"name": message.name, "title": message.title, "summary": message.summary}
    if message.headers:
        described["headers"] = headers_schema(message.headers)
    if message.values:
        references = [{"$ref": _REFERENCE + name} for name in message.values]
        described["payload"] = references[0] if len(references) == 1 else {"oneOf": references}
    else:
        described["contentType"] = "application/octet-stream"
    if message.key is not None:
        key = {"type": "string", "description": message.key}
        described["bindings"] = {"kafka": {"key": key, "bindingVersion": _KAFKA_BINDING}}
    return described
