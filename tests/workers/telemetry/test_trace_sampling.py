"""Which requests have a trace, and how its spans hang together across producers, jobs and attempts."""

from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.workers.engine.engine_rig import Rig
from topics.errors import RequestError
from topics.record import InboundRecord
from workers.engine.timeline import Dispatch, Timeline
from workers.intake.prompt import PreparedRequest, RequestKind
from workers.intake.request import Arrival, Ending, FinishReason
from workers.intake.sampling import SamplingParams
from workers.telemetry.telemetry import tracer_provider
from workers.telemetry.trace_identity import attempt_span_id
from workers.telemetry.tracing import ReplySent, RequestTracer
from workers.telemetry.wall_clock import WallClock

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = SAMPLED[:-2] + "00"
PREPARED = PreparedRequest(
    kind=RequestKind.CHAT,
    model="m",
    created_s=0,
    prompt_token_ids=(1, 2, 3),
    sampling=SamplingParams(seed=1),
    max_output_tokens=4,
    eos_token_ids=frozenset(),
    stop=(),
    stream=True,
    include_usage=False,
)


def arrival(traceparent: str | None, **headers: Any) -> Arrival:
    arrived = Rig().arrive("r1")
    return replace(arrived, headers=replace(arrived.headers, traceparent=traceparent, **headers))


def spans(
    traceparent: str | None = None,
    *,
    error: RequestError | None = None,
    met: dict[str, bool] | None = None,
    reply: ReplySent | None = None,
    dispatch: Dispatch | None = None,
    **headers: str,
) -> dict[str, ReadableSpan]:
    """Of one request that has ended."""
    exporter = InMemorySpanExporter()
    provider = tracer_provider(SimpleSpanProcessor(exporter))
    came = arrival(traceparent, **headers)
    tracer = RequestTracer(provider.get_tracer("test"), WallClock(), {came.id.topic: "group"}, "client")
    timeline = Timeline(arrived_s=1.0, staged_s=1.1, admitted_s=1.3, first_token_s=1.4, last_token_s=1.5, ended_s=1.5)
    timeline.chosen_s, timeline.dispatch = 1.2, dispatch
    ending = Ending(error or FinishReason.LENGTH, timeline, 3, 4)
    sent = reply or ReplySent("inference.replies", 1.5, 1.6, 100, transactional=True)
    tracer.record(came, PREPARED, ending, sent, met or {})
    provider.shutdown()
    return {span.name: span for span in exporter.get_finished_spans()}


def trace_ids(made: dict[str, ReadableSpan]) -> set[str]:
    return {f"{span.context.trace_id:032x}" for span in made.values()}


def test_what_the_producer_samples_hangs_on_its_span() -> None:
    made = spans(SAMPLED)
    assert trace_ids(made) == {SAMPLED[3:35]}
    parent = made["process inference.p1"].parent
    assert parent is not None
    assert f"{parent.span_id:016x}" == SAMPLED[36:52]
    commit, process = made["commit inference.p1"], made["process inference.p1"]
    assert commit.parent is not None
    assert commit.parent.span_id == process.context.span_id
    assert (commit.attributes or {})["messaging.operation.type"] == "settle"


def test_what_the_producer_does_not_sample_has_no_spans() -> None:
    assert spans(UNSAMPLED, met={"ttft": True}) == {}


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("error", {"error": RequestError.internal("It broke.")}),
        ("slo", {"met": {"ttft": False, "e2e": True}}),
        ("error", {"reply": ReplySent("inference.replies", 1.5, 1.6, 100, committed=False)}),
    ],
)
def test_faults_and_missed_objectives_are_kept_all_the_same(why: str, options: dict[str, object]) -> None:
    made = spans(UNSAMPLED, **options)  # type: ignore[arg-type]
    assert {"process inference.p1", "queue p1", "schedule p1", "chat m", "prefill"} <= made.keys()
    assert {(span.attributes or {})["headrace.kept"] for span in made.values()} == {why}
    assert trace_ids(made) == {UNSAMPLED[3:35]}


def test_a_cancelled_request_is_no_fault() -> None:
    assert spans(UNSAMPLED, error=RequestError.cancelled()) == {}
    assert "process inference.p1" in spans(SAMPLED, error=RequestError.cancelled())


def test_where_nobody_takes_spans_none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    span = tracer_provider().get_tracer("test").start_span("one")
    assert not span.is_recording()


def test_what_was_missed_is_named() -> None:
    process = spans(SAMPLED, met={"ttft": False, "e2e": True})["process inference.p1"]
    assert (process.attributes or {})["headrace.slo.missed"] == ("ttft",)


def test_a_request_without_a_trace_begins_one() -> None:
    made = spans(None)
    assert len(trace_ids(made)) == 1
    root = made["request p1"]
    assert root.parent is None
    for name in ("queue p1", "schedule p1", "process inference.p1"):
        parent = made[name].parent
        assert parent is not None
        assert parent.span_id == root.context.span_id


def test_a_row_of_a_job_begins_a_trace_that_is_linked_to_the_submissions() -> None:
    made = spans(SAMPLED, job_id="j1")
    assert SAMPLED[3:35] not in trace_ids(made)
    (link,) = made["request p1"].links
    assert f"{link.context.trace_id:032x}" == SAMPLED[3:35]


def test_a_row_of_a_job_whose_submission_is_not_sampled_has_no_spans() -> None:
    assert spans(UNSAMPLED, job_id="j1") == {}


def test_a_row_that_failed_is_kept_in_a_trace_of_its_own() -> None:
    made = spans(UNSAMPLED, job_id="j1", error=RequestError.internal("It broke."))
    assert UNSAMPLED[3:35] not in trace_ids(made)
    assert "request p1" in made


def test_the_next_attempt_links_to_the_last_ones_span_which_nobody_told_it() -> None:
    first = spans(SAMPLED)["process inference.p1"]
    second = spans(SAMPLED, reply=ReplySent("inference.replies", 1.5, 1.6, 100, attempt=2))["process inference.p1"]
    (link,) = second.links
    assert (link.context.trace_id, link.context.span_id) == (first.context.trace_id, first.context.span_id)
    assert second.context.span_id != first.context.span_id


def test_attempts_at_a_request_without_a_trace_share_one() -> None:
    first = spans(None)["process inference.p1"]
    second = spans(None, reply=ReplySent("inference.replies", 1.5, 1.6, 100, attempt=2))["process inference.p1"]
    assert second.context.trace_id == first.context.trace_id
    assert second.links[0].context.span_id == first.context.span_id


def test_another_records_attempt_has_another_id() -> None:
    record = arrival(None).id
    ids = {attempt_span_id(record, stamp, attempt) for stamp in (0, 1) for attempt in (1, 2)}
    assert len(ids) == 4


def test_the_trace_says_why_the_request_waited() -> None:
    schedule = spans(SAMPLED, dispatch=Dispatch("borrowed from root", (3, 0, 0, 12), 1))["schedule p1"]
    chosen, dispatched = schedule.events
    assert chosen.name == "waits for a slot or blocks"
    assert dict(dispatched.attributes or {}) == {
        "headrace.dispatch.reason": "borrowed from root",
        "headrace.dispatch.victims": 1,
        "headrace.dispatch.passed.p0": 3,
        "headrace.dispatch.passed.p3": 12,
    }
    assert (schedule.attributes or {})["headrace.wait"] == pytest.approx(0.3)


def test_a_fetched_batch_is_linked_to_the_sampled_of_its_messages() -> None:
    exporter = InMemorySpanExporter()
    provider = tracer_provider(SimpleSpanProcessor(exporter))
    came = arrival(None)
    tracer = RequestTracer(provider.get_tracer("test"), WallClock(), {came.id.topic: "group"}, "client")

    def record(*headers: tuple[str, bytes]) -> InboundRecord:
        return InboundRecord(came.id, came.timestamp_ms, None, b"{}", headers)

    tracer.polled(came.id.topic, [record(), record(("traceparent", UNSAMPLED.encode()))])
    assert not exporter.get_finished_spans()
    tracer.polled(
        came.id.topic, [record(), record(("traceparent", SAMPLED.encode())), record(("traceparent", b"no trace 1"))]
    )
    (poll,) = exporter.get_finished_spans()
    assert [f"{link.context.span_id:016x}" for link in poll.links] == [SAMPLED[36:52]]
    assert (poll.attributes or {})["messaging.batch.message_count"] == 3
