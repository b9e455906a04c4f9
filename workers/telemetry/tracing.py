"""One trace a request, from the producer's span to the last reply.

Knows spans, their attributes (`workers.telemetry.span_names`) and how a request's
timeline becomes spans. Does not know how spans leave the process: that is the SDK's, set by the standard `OTEL_*`
variables.

Spans are made once, when the terminal reply is on the broker, from times noted on the way: tracing costs the engine
thread nothing but the notes, and what failed or missed an objective is known by then: it is kept whatever its sampling
(`workers.telemetry.trace_identity`). Of what is not kept nothing is made.

A request comes alone in its record, so the process span is a *child* of the producer's span (the conventions allow a
parent for single messages; a link is for batches). A row of a job begins a trace of its own, linked to what submitted
it, for fifty thousand rows are no trace to look at; so does a request whose producer has none. In both cases a span
`request` stands in the producer's place. What submitted a job and is not sampled has rows that are not either.

    send inference.p0            producer, another process
    ├─ queue p0                  arrival → staged: waiting in the index, then tokenised
    ├─ schedule p0               staged → admitted: what the scheduler made it wait for share, slot or blocks
    └─ process inference.p0      admitted → reply acknowledged
       ├─ chat SmolLM2           admitted → last token; or `text_completion …`, `embeddings …` (without decode)
       │  ├─ prefill             admitted → first token
       │  ├─ suspended           for each preemption: evicted → as far again as it was
       │  └─ decode              first → last token
       ├─ send inference.replies
       └─ commit inference.p0    the transaction, where delivery is exactly once
    poll inference.p0            by itself, linked to each sampled message of a fetched batch
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer

from topics.record import InboundRecord
from topics.reply_messages import reply_id
from workers.engine.timeline import Suspension
from workers.intake.prompt import PreparedRequest, RequestKind
from workers.intake.request import Arrival, Ending, FinishReason
from workers.telemetry.generation_attributes import OPERATION_NAMES, Value, request_attributes
from workers.telemetry.span_names import NAMES
from workers.telemetry.trace_identity import DerivedIds, attempt_span_id, request_trace_id
from workers.telemetry.wall_clock import WallClock

__all__ = ["ReplySent", "RequestTracer"]

_LOST = "partition_lost"
"""Answered, but another worker's to answer by then."""
_MOST_LINKS = 128
"""The SDK's own limit of a span."""
_SAMPLED = tuple(digit.encode() for digit in "13579bdf")
"""How a sampled `traceparent` ends: the lowest bit of its flags is set."""


@dataclass(frozen=True, slots=True)
class ReplySent:
    """The terminal reply's way out. Times are monotonic seconds."""

    topic: str
    sent_s: float
    acknowledged_s: float
    bytes: int
    attempt: int = 1
    committed: bool = True
    """It is on the broker, and its request complete. False: the partition had gone, and another worker answers."""
    transactional: bool = False
    """Its acknowledgement is the end of the transaction that holds its request's commit as well."""


def _suspension(suspension: Suspension) -> dict[str, Value]:
    """Which way was taken, what either was estimated to take and what it took; absent: no choice, or not yet."""
    attributes: dict[str, Value | None] = {
        NAMES["swapped"]: suspension.swapped,
        NAMES["usable"]: suspension.usable_s,
        NAMES["resume_queue"]: suspension.queued_s,
        NAMES["swap_estimate"]: suspension.swap_s,
        NAMES["recompute_estimate"]: suspension.recompute_s,
        NAMES["suspension_cost"]: suspension.cost_s,
        NAMES["recomputed_tokens"]: suspension.recomputed_tokens,
    }
    return {name: value for name, value in attributes.items() if value is not None}


class RequestTracer:
    """Makes the spans of ended requests. Owned by the event loop."""

    def __init__(self, tracer: Tracer, clock: WallClock, group_of: Mapping[str, str], client_id: str) -> None:
        """`group_of`: the consumer group of each request topic."""
        self._tracer = tracer
        self.makes_spans = getattr(tracer, "sampler", None) is not ALWAYS_OFF
        """False: nobody takes them (`workers.telemetry.telemetry`), and working out what they would say takes longer
        than sending the answer."""
        ids = getattr(tracer, "id_generator", None)
        self._ids = ids if isinstance(ids, DerivedIds) else DerivedIds()
        """The provider's own, if it can be told what id comes next (`workers.telemetry.telemetry`)."""
        self._clock = clock
        self._group_of = group_of
        self._client_id = client_id
        self._kept: dict[str, Value] = {}
        """Goes on each span of the request at hand."""

    def polled(self, topic: str, records: Sequence[InboundRecord]) -> None:
        """A batch was fetched. A span of it, linked to each message whose producer's trace is sampled, if there are.

        It is of no length: what a fetch takes is mostly waiting for records, in the background.
        """
        if not self.makes_spans:
            return
        links = [Link(context) for record in records if (context := _sampled_producer(record)) is not None]
        if not links:
            return
        self._kept = {}
        attributes = self._consuming(topic, "poll", "receive") | {NAMES["batch_count"]: len(records)}
        now = time.monotonic()
        self._start(f"poll {topic}", Context(), now, attributes, SpanKind.CLIENT, links[:_MOST_LINKS]).end(
            self._clock.ns(now)
        )

    def record(
        self,
        arrival: Arrival,
        prepared: PreparedRequest | None,
        ending: Ending,
        reply: ReplySent,
        met: Mapping[str, bool] = MappingProxyType({}),
    ) -> None:
        """`met`: the request's objectives, and whether it met them."""
        if not self.makes_spans:
            return
        missed = tuple(name for name, was_met in met.items() if not was_met)
        self._kept = {} if (why := _why_kept(ending, reply, missed)) is None else {NAMES["kept"]: why}
        timeline = ending.timeline
        ended_s = timeline.ended_s if timeline.ended_s is not None else reply.sent_s
        staged_s = timeline.staged_s if timeline.staged_s is not None else ended_s
        admitted_s = timeline.admitted_s if timeline.admitted_s is not None else ended_s
        label = arrival.origin_class.label
        whose: dict[str, Value] = {
            NAMES["class"]: label,
            NAMES["tenant"]: arrival.tenant,
            NAMES["flow"]: arrival.flow,
        }
        root, parent = self._begin(arrival, whose)
        process = self._process(arrival, parent, admitted_s, whose, reply, missed)
        if not process.is_recording():
            return
        self._span(f"queue {label}", parent, timeline.arrived_s, staged_s, whose)
        if prepared is not None:
            self._schedule(arrival, ending, parent, staged_s, admitted_s, whose)
        inside = trace.set_span_in_context(process)
        if prepared is not None:
            self._model(arrival, prepared, ending, inside, admitted_s, ended_s)
        self._sent(arrival, reply, inside)
        self._fail_if(process, ending, reply)
        process.end(self._clock.ns(reply.acknowledged_s))
        if root is not None:
            self._fail_if(root, ending, reply)
            root.end(self._clock.ns(reply.acknowledged_s))

    # --- the spans ------------------------------------------------------------------------------------------------

    def _begin(self, arrival: Arrival, whose: Mapping[str, Value]) -> tuple[Span | None, Context]:
        """What the request's spans hang on: the producer's span, or one of ours in its place."""
        producer = propagate.extract(_carrier(arrival))
        context = trace.get_current_span(producer).get_span_context()
        of_a_job = arrival.headers.job_id is not None
        if context.is_valid and not of_a_job:
            return None, producer
        trace_id = request_trace_id(arrival.id, arrival.timestamp_ms)
        if context.is_valid and not context.trace_flags.sampled and not self._kept:
            own = SpanContext(trace_id, context.span_id, is_remote=True, trace_flags=context.trace_flags)
            return None, trace.set_span_in_context(trace.NonRecordingSpan(own))
        links = [Link(context)] if context.is_valid else []
        with self._ids.naming(trace_id=trace_id):
            root = self._start(
                f"request {arrival.origin_class.label}", Context(), arrival.arrived_s, whose, links=links
            )
        return root, trace.set_span_in_context(root)

    def _process(
        self,
        arrival: Arrival,
        parent: Context,
        admitted_s: float,
        whose: Mapping[str, Value],
        reply: ReplySent,
        missed: tuple[str, ...],
    ) -> Span:
        topic, stamp, attempt = arrival.id.topic, arrival.timestamp_ms, reply.attempt
        attributes = {**self._message(arrival), **whose, NAMES["attempt"]: attempt}
        if missed:
            attributes[NAMES["missed"]] = missed
        links = []
        if attempt > 1:
            last = attempt_span_id(arrival.id, stamp, attempt - 1)
            trace_id = trace.get_current_span(parent).get_span_context().trace_id
            links = [Link(SpanContext(trace_id, last, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)))]
        with self._ids.naming(span_id=attempt_span_id(arrival.id, stamp, attempt)):
            return self._start(f"process {topic}", parent, admitted_s, attributes, SpanKind.CONSUMER, links)

    def _schedule(
        self,
        arrival: Arrival,
        ending: Ending,
        parent: Context,
        staged_s: float,
        admitted_s: float,
        whose: Mapping[str, Value],
    ) -> None:
        """Its events answer why the request waited: who went before, by what right it went, who had to go for it."""
        timeline = ending.timeline
        attributes = {**whose, NAMES["wait"]: admitted_s - timeline.arrived_s}
        span = self._start(f"schedule {arrival.origin_class.label}", parent, staged_s, attributes)
        if timeline.chosen_s is not None:
            span.add_event("waits for a slot or blocks", {}, self._clock.ns(timeline.chosen_s))
        if (dispatch := timeline.dispatch) is not None:
            passed = {
                f"{NAMES['dispatch_passed']}.p{number}": count for number, count in enumerate(dispatch.passed) if count
            }
            told: dict[str, Value] = {
                NAMES["dispatch_reason"]: dispatch.reason,
                NAMES["dispatch_victims"]: dispatch.victims,
                **passed,
            }
            span.add_event("dispatched", told, self._clock.ns(admitted_s))
        span.end(self._clock.ns(max(staged_s, admitted_s)))

    def _sent(self, arrival: Arrival, reply: ReplySent, inside: Context) -> None:
        sending: dict[str, Value] = {
            NAMES["system"]: "kafka",
            NAMES["destination"]: reply.topic,
            NAMES["operation"]: "send",
            NAMES["operation_type"]: "send",
            NAMES["client"]: self._client_id,
            NAMES["body_size"]: reply.bytes,
        }
        self._span(f"send {reply.topic}", inside, reply.sent_s, reply.acknowledged_s, sending, SpanKind.PRODUCER)
        if reply.transactional and reply.committed:
            topic = arrival.id.topic
            committing = self._consuming(topic, "commit", "settle")
            self._span(f"commit {topic}", inside, reply.sent_s, reply.acknowledged_s, committing, SpanKind.CLIENT)

    def _model(
        self,
        arrival: Arrival,
        prepared: PreparedRequest,
        ending: Ending,
        parent: Context,
        admitted_s: float,
        ended_s: float,
    ) -> None:
        timeline = ending.timeline
        last_s = timeline.last_token_s if timeline.last_token_s is not None else ended_s
        name = f"{OPERATION_NAMES[prepared.kind]} {prepared.model}"
        generates = prepared.embedding is None
        span = self._start(name, parent, admitted_s, request_attributes(prepared))
        span.set_attribute(NAMES["gen_input_tokens"], ending.prompt_tokens)
        if generates:
            chat = prepared.kind is RequestKind.CHAT
            span.set_attribute(NAMES["gen_response_id"], reply_id(arrival.headers.request_id, chat=chat))
            span.set_attribute(NAMES["gen_output_tokens"], ending.output_tokens)
        span.set_attribute(NAMES["gen_cached_tokens"], ending.cached_tokens)
        span.set_attribute(NAMES["preemptions"], timeline.preemptions)
        span.set_attribute(NAMES["steps"], timeline.steps)
        if timeline.suspensions:
            span.set_attribute(NAMES["suspended"], timeline.suspended_s)
        if ending.error is None and generates:
            assert isinstance(ending.reason, FinishReason)
            span.set_attribute(NAMES["gen_finish_reasons"], (ending.reason.value,))
        inside = trace.set_span_in_context(span)
        for suspension in timeline.suspensions:
            back_s = ended_s if suspension.resumed_s is None else suspension.resumed_s
            self._span("suspended", inside, suspension.started_s, back_s, _suspension(suspension))
        if timeline.first_token_s is not None:
            prompt: dict[str, Value] = {NAMES["gen_input_tokens"]: ending.prompt_tokens}
            self._span("prefill", inside, admitted_s, timeline.first_token_s, prompt)
        if timeline.first_token_s is not None and generates:
            span.set_attribute(NAMES["gen_first_chunk"], timeline.first_token_s - arrival.arrived_s)
            output: dict[str, Value] = {NAMES["gen_output_tokens"]: ending.output_tokens}
            self._span("decode", inside, timeline.first_token_s, last_s, output)
        self._fail_if(span, ending)
        span.end(self._clock.ns(last_s))

    def _consuming(self, topic: str, operation: str, kind: str) -> dict[str, Value]:
        return {
            NAMES["system"]: "kafka",
            NAMES["destination"]: topic,
            NAMES["group"]: self._group_of[topic],
            NAMES["client"]: self._client_id,
            NAMES["operation"]: operation,
            NAMES["operation_type"]: kind,
        }

    def _message(self, arrival: Arrival) -> dict[str, Value]:
        attributes: dict[str, Value] = {
            **self._consuming(arrival.id.topic, "process", "process"),
            NAMES["partition"]: str(arrival.id.partition),
            NAMES["offset"]: arrival.id.offset,
            NAMES["message_id"]: arrival.headers.request_id,
            NAMES["body_size"]: arrival.body_bytes,
        }
        if (correlation := arrival.headers.correlation_id) is not None:
            attributes[NAMES["conversation_id"]] = correlation.decode(errors="backslashreplace")
        return attributes

    @staticmethod
    def _fail_if(span: Span, ending: Ending, reply: ReplySent | None = None) -> None:
        if (error := ending.error) is not None:
            span.set_attribute(NAMES["error_type"], error.code or str(error.status_code))
            span.set_status(Status(StatusCode.ERROR, error.code))
        elif reply is not None and not reply.committed:
            span.set_attribute(NAMES["error_type"], _LOST)
            span.set_status(Status(StatusCode.ERROR, _LOST))

    def _start(
        self,
        name: str,
        parent: Context,
        start_s: float,
        attributes: Mapping[str, Value],
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> Span:
        marked = {**attributes, **self._kept}
        return self._tracer.start_span(name, parent, kind, marked, links, start_time=self._clock.ns(start_s))

    def _span(
        self,
        name: str,
        parent: Context,
        start_s: float,
        end_s: float,
        attributes: Mapping[str, Value],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        self._start(name, parent, start_s, attributes, kind).end(self._clock.ns(max(start_s, end_s)))


def _why_kept(ending: Ending, reply: ReplySent, missed: Sequence[str]) -> str | None:
    """None: for no reason of its own. Who is cancelled is no fault, and is seldom alone."""
    failed = ending.error is not None and ending.error.code != "cancelled"
    if failed or not reply.committed:
        return "error"
    return "slo" if missed else None


def _carrier(arrival: Arrival) -> dict[str, str]:
    headers = arrival.headers
    return {
        name: value
        for name, value in (
            ("traceparent", headers.traceparent),
            ("tracestate", headers.tracestate),
            ("baggage", headers.baggage),
        )
        if value is not None
    }


def _sampled_producer(record: InboundRecord) -> SpanContext | None:
    """Cheap for the many that have none."""
    for name, value in record.headers:
        if name == "traceparent" and value.endswith(_SAMPLED):
            carrier = {"traceparent": value.decode(errors="replace")}
            context = trace.get_current_span(propagate.extract(carrier)).get_span_context()
            return context if context.is_valid else None
    return None
