"""One trace a request, from the producer's span to the reply."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.integration.worker.conftest import RunWorker
from topics.client import HeadraceClient
from workers.configuration.config import WorkerConfig

pytestmark = [pytest.mark.broker, pytest.mark.model]


async def test_the_spans_of_a_request_hang_on_its_producers_span(
    worker_config: WorkerConfig, run_worker: RunWorker
) -> None:
    exporter = InMemorySpanExporter()
    producers = TracerProvider()
    producers.add_span_processor(SimpleSpanProcessor(exporter))
    kafka = worker_config.kafka
    async with (
        run_worker(worker_config, SimpleSpanProcessor(exporter)),
        HeadraceClient(
            kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix, tracer=producers.get_tracer("test")
        ) as client,
    ):
        answer = await client.complete(
            "Say hello.", priority="p0", tenant="acme", max_tokens=3, temperature=0, stream=True
        )
    spans = {span.name: span for span in exporter.get_finished_spans()}
    prefix = kafka.topic_prefix
    poll = spans.pop(f"poll {prefix}.p0")
    assert [link.context.span_id for link in poll.links] == [_context(spans[f"send {prefix}.p0"]).span_id]
    send = spans[f"send {prefix}.p0"]
    assert {span.context.trace_id for span in spans.values() if span.context} == {_context(send).trace_id}
    tree = {name: _parent(span, spans) for name, span in spans.items()}
    assert tree == {
        f"send {prefix}.p0": None,
        "queue p0": f"send {prefix}.p0",
        "schedule p0": f"send {prefix}.p0",
        f"process {prefix}.p0": f"send {prefix}.p0",
        "chat smollm2": f"process {prefix}.p0",
        "prefill": "chat smollm2",
        "decode": "chat smollm2",
        f"send {prefix}.replies": f"process {prefix}.p0",
        f"commit {prefix}.p0": f"process {prefix}.p0",
    }
    process, chat = spans[f"process {prefix}.p0"], spans["chat smollm2"]
    assert _attributes(process, "messaging.") == {
        "messaging.system": "kafka",
        "messaging.destination.name": f"{prefix}.p0",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": f"headrace.{prefix}.p0",
        "messaging.client.id": "headrace-worker",
        "messaging.message.id": answer.request_id,
        "messaging.kafka.offset": 0,
    } | {
        name: (process.attributes or {})[name]
        for name in ("messaging.destination.partition.id", "messaging.message.body.size")
    }
    assert (process.attributes or {})["headrace.tenant"] == "acme"
    generation = _attributes(chat, "gen_ai.")
    assert generation["gen_ai.operation.name"] == "chat"
    assert generation["gen_ai.request.max_tokens"] == 3
    assert generation["gen_ai.request.temperature"] == 0
    assert generation["gen_ai.response.id"] == answer.body["id"]
    assert generation["gen_ai.response.finish_reasons"] == ("length",)
    assert generation["gen_ai.usage.input_tokens"] == answer.usage["prompt_tokens"]
    assert generation["gen_ai.usage.output_tokens"] == 3
    assert 0 < float(str(generation["gen_ai.response.time_to_first_chunk"])) < 60
    ordered = ("queue p0", "schedule p0", f"process {prefix}.p0", "decode", f"send {prefix}.replies")
    starts = [spans[name].start_time or 0 for name in ordered]
    assert starts == sorted(starts)


def _context(span: ReadableSpan):  # type: ignore[no-untyped-def]
    assert span.context is not None
    return span.context


def _parent(span: ReadableSpan, spans: dict[str, ReadableSpan]) -> str | None:
    if span.parent is None:
        return None
    return next(name for name, other in spans.items() if _context(other).span_id == span.parent.span_id)


def _attributes(span: ReadableSpan, prefix: str) -> dict[str, object]:
    return {name: value for name, value in (span.attributes or {}).items() if name.startswith(prefix)}
