"""Spans out of a request's timeline: what can be told without a broker."""

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.workers.engine.engine_rig import Rig
from workers.engine.timeline import Suspension, Timeline
from workers.intake.embedding import EmbeddingForm
from workers.intake.prompt import PreparedRequest, RequestKind
from workers.intake.request import Ending, FinishReason
from workers.intake.sampling import SamplingParams
from workers.telemetry.tracing import ReplySent, RequestTracer
from workers.telemetry.wall_clock import WallClock


def spans_of(
    sampling: SamplingParams,
    *suspensions: Suspension,
    kind: RequestKind = RequestKind.CHAT,
    embedding: EmbeddingForm | None = None,
) -> dict[str, ReadableSpan]:
    arrival = Rig().arrive("r1")
    prepared = PreparedRequest(
        kind=kind if embedding is None else RequestKind.EMBEDDING,
        model="m",
        created_s=0,
        prompt_token_ids=(1, 2, 3),
        sampling=sampling,
        max_output_tokens=4,
        eos_token_ids=frozenset(),
        stop=(),
        stream=True,
        include_usage=False,
        embedding=embedding,
    )
    timeline = Timeline(
        arrived_s=1.0,
        staged_s=1.1,
        admitted_s=1.2,
        first_token_s=1.3,
        last_token_s=1.4,
        ended_s=1.4,
        suspensions=list(suspensions),
    )
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = RequestTracer(provider.get_tracer("test"), WallClock(), {arrival.id.topic: "group"}, "client")
    tracer.record(
        arrival,
        prepared,
        Ending(FinishReason.LENGTH, timeline, 3, 4),
        ReplySent("inference.replies", 1.4, 1.5, 100),
    )
    return {span.name: span for span in exporter.get_finished_spans()}


@pytest.mark.parametrize(
    ("kind", "name", "response_id"),
    [(RequestKind.CHAT, "chat m", "chatcmpl-r1"), (RequestKind.COMPLETION, "text_completion m", "cmpl-r1")],
)
def test_a_generation_names_its_operation_and_the_reply(kind: RequestKind, name: str, response_id: str) -> None:
    attributes = spans_of(SamplingParams(), kind=kind)[name].attributes or {}
    assert attributes["gen_ai.operation.name"] == name.split()[0]
    assert attributes["gen_ai.response.id"] == response_id


def test_the_generation_carries_the_seed_that_repeats_it() -> None:
    chat = spans_of(SamplingParams(seed=42))["chat m"]
    assert (chat.attributes or {})["gen_ai.request.seed"] == 42


@pytest.mark.parametrize(("seed", "shown"), [(2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)])
def test_a_seed_of_64_bits_fits_the_signed_numbers_of_otlp(seed: int, shown: int) -> None:
    chat = spans_of(SamplingParams(seed=seed))["chat m"]
    assert (chat.attributes or {})["gen_ai.request.seed"] == shown
    (encoded,) = encode_spans([chat]).resource_spans[0].scope_spans[0].spans
    values = {pair.key: pair.value.int_value for pair in encoded.attributes}
    assert values["gen_ai.request.seed"] == shown


def test_embeddings_are_an_operation_of_their_own_without_a_decode() -> None:
    spans = spans_of(SamplingParams(), embedding=EmbeddingForm(256, base64=True))
    assert "prefill" in spans
    assert "decode" not in spans
    attributes = {
        name: value for name, value in (spans["embeddings m"].attributes or {}).items() if name.startswith("gen_ai")
    }
    assert attributes == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.embeddings.dimension.count": 256,
        "gen_ai.request.encoding_formats": ("base64",),
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
    }


def test_a_suspension_is_a_span_with_what_it_was_estimated_to_cost_and_what_it_cost() -> None:
    swapped = Suspension(
        started_s=1.25,
        swapped=True,
        computed_tokens=40,
        swap_s=0.01,
        recompute_s=0.05,
        usable_s=0.004,
        readmitted_s=1.27,
        resumed_s=1.3,
        recomputed_tokens=0,
        copied_s=0.012,
    )
    spans = spans_of(SamplingParams(), swapped)
    suspended, chat = spans["suspended"], spans["chat m"]
    assert suspended.parent is not None
    assert chat.context is not None
    assert suspended.parent.span_id == chat.context.span_id
    assert suspended.start_time is not None
    assert suspended.end_time is not None
    assert suspended.end_time - suspended.start_time == pytest.approx(0.05e9, rel=1e-3)
    attributes = dict(suspended.attributes or {})
    assert attributes.pop("headrace.suspension.resume_queue") == pytest.approx(0.02)
    assert attributes == {
        "headrace.suspension.swapped": True,
        "headrace.suspension.room_usable": 0.004,
        "headrace.suspension.swap_estimate": 0.01,
        "headrace.suspension.recompute_estimate": 0.05,
        "headrace.suspension.cost": 0.012,
        "headrace.suspension.recomputed_tokens": 0,
    }
    assert (chat.attributes or {})["headrace.suspended"] == pytest.approx(0.05)
