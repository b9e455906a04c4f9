"""One trace a request, from the producer's span to the last reply.

Knows span names, attributes (OpenTelemetry semantic conventions ≈ 1.44, in the one table below) and how a request's
timeline becomes spans. Does not know how spans leave the process: that is the SDK's, set by the standard `OTEL_*`
variables.

Spans are made once, when the terminal reply is on the broker, from times noted on the way: tracing costs the engine
thread nothing but the notes. A request comes alone in its record, so the process span is a *child* of the
producer's span (the conventions allow a parent for single messages; a link is for batches).

    send inference.p0            producer, another process
    ├─ queue p0                  arrival → staged: waiting in the index, then tokenised
    ├─ schedule p0               staged → admitted: what the scheduler made it wait for share, slot or blocks
    └─ process inference.p0      admitted → reply acknowledged
       ├─ chat SmolLM2           admitted → last token
       │  ├─ prefill             admitted → first token
       │  ├─ suspended           for each preemption: evicted → as far again as it was
       │  └─ decode              first → last token
       └─ send inference.replies
"""

from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from workers.prompt import PreparedRequest, RequestKind
from workers.request import Arrival, Ending, FinishReason
from workers.timeline import Suspension
from workers.wall_clock import WallClock

__all__ = ["NAMES", "ReplySent", "RequestTracer"]

NAMES = {
    "system": "messaging.system",
    "destination": "messaging.destination.name",
    "partition": "messaging.destination.partition.id",
    "group": "messaging.consumer.group.name",
    "client": "messaging.client.id",
    "operation": "messaging.operation.name",
    "operation_type": "messaging.operation.type",
    "offset": "messaging.kafka.offset",
    "message_id": "messaging.message.id",
    "conversation_id": "messaging.message.conversation_id",
    "body_size": "messaging.message.body.size",
    "error_type": "error.type",
    "gen_operation": "gen_ai.operation.name",
    "gen_provider": "gen_ai.provider.name",
    "gen_request_model": "gen_ai.request.model",
    "gen_max_tokens": "gen_ai.request.max_tokens",
    "gen_temperature": "gen_ai.request.temperature",
    "gen_top_p": "gen_ai.request.top_p",
    "gen_top_k": "gen_ai.request.top_k",
    "gen_seed": "gen_ai.request.seed",
    "gen_stream": "gen_ai.request.stream",
    "gen_stop": "gen_ai.request.stop_sequences",
    "gen_output_type": "gen_ai.output.type",
    "gen_response_id": "gen_ai.response.id",
    "gen_response_model": "gen_ai.response.model",
    "gen_finish_reasons": "gen_ai.response.finish_reasons",
    "gen_first_chunk": "gen_ai.response.time_to_first_chunk",
    "gen_input_tokens": "gen_ai.usage.input_tokens",
    "gen_output_tokens": "gen_ai.usage.output_tokens",
    # Ours.
    "class": "headrace.class",
    "tenant": "headrace.tenant",
    "flow": "headrace.flow",
    "wait": "headrace.wait",
    "preemptions": "headrace.preemptions",
    "suspended": "headrace.suspended",
    # Of one suspension. Times are in seconds.
    "swapped": "headrace.suspension.swapped",
    "usable": "headrace.suspension.room_usable",
    "resume_queue": "headrace.suspension.resume_queue",
    "swap_estimate": "headrace.suspension.swap_estimate",
    "recompute_estimate": "headrace.suspension.recompute_estimate",
    "suspension_cost": "headrace.suspension.cost",
    "recomputed_tokens": "headrace.suspension.recomputed_tokens",
    "steps": "headrace.steps",
}
"""The one table of attribute names: the conventions still move."""

Value = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplySent:
    """The terminal reply's way out. Times are monotonic seconds."""

    topic: str
    sent_s: float
    acknowledged_s: float
    bytes: int


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
        self._clock = clock
        self._group_of = group_of
        self._client_id = client_id

    def record(
        self, arrival: Arrival, prepared: PreparedRequest | None, ending: Ending, reply: ReplySent, response_id: str
    ) -> None:
        headers, timeline = arrival.headers, ending.timeline
        carrier = {
            name: value
            for name, value in (
                ("traceparent", headers.traceparent),
                ("tracestate", headers.tracestate),
                ("baggage", headers.baggage),
            )
            if value is not None
        }
        parent = propagate.extract(carrier)
        label, topic = arrival.origin_class.label, arrival.id.topic
        ended_s = timeline.ended_s if timeline.ended_s is not None else reply.sent_s
        staged_s = timeline.staged_s if timeline.staged_s is not None else ended_s
        admitted_s = timeline.admitted_s if timeline.admitted_s is not None else ended_s
        whose = {NAMES["class"]: label, NAMES["tenant"]: arrival.tenant, NAMES["flow"]: arrival.flow}
        self._span(f"queue {label}", parent, timeline.arrived_s, staged_s, whose)
        if prepared is not None:
            waited = {NAMES["wait"]: admitted_s - timeline.arrived_s}
            self._span(f"schedule {label}", parent, staged_s, admitted_s, {**whose, **waited})
        process = self._start(f"process {topic}", parent, admitted_s, self._message(arrival) | whose, SpanKind.CONSUMER)
        inside = trace.set_span_in_context(process)
        if prepared is not None:
            self._chat(arrival, prepared, ending, inside, admitted_s, ended_s, response_id)
        self._span(
            f"send {reply.topic}",
            inside,
            reply.sent_s,
            reply.acknowledged_s,
            {
                NAMES["system"]: "kafka",
                NAMES["destination"]: reply.topic,
                NAMES["operation"]: "send",
                NAMES["operation_type"]: "send",
                NAMES["client"]: self._client_id,
                NAMES["body_size"]: reply.bytes,
            },
            SpanKind.PRODUCER,
        )
        self._fail_if(process, ending)
        process.end(self._clock.ns(reply.acknowledged_s))

    def _chat(
        self,
        arrival: Arrival,
        prepared: PreparedRequest,
        ending: Ending,
        parent: Context,
        admitted_s: float,
        ended_s: float,
        response_id: str,
    ) -> None:
        timeline = ending.timeline
        last_s = timeline.last_token_s if timeline.last_token_s is not None else ended_s
        chat = self._start(f"chat {prepared.model}", parent, admitted_s, self._generation(prepared))
        chat.set_attribute(NAMES["gen_response_id"], response_id)
        chat.set_attribute(NAMES["gen_input_tokens"], ending.prompt_tokens)
        chat.set_attribute(NAMES["gen_output_tokens"], ending.output_tokens)
        chat.set_attribute(NAMES["preemptions"], timeline.preemptions)
        chat.set_attribute(NAMES["steps"], timeline.steps)
        if timeline.suspensions:
            chat.set_attribute(NAMES["suspended"], timeline.suspended_s)
        if ending.error is None:
            assert isinstance(ending.reason, FinishReason)
            chat.set_attribute(NAMES["gen_finish_reasons"], (ending.reason.value,))
        inside = trace.set_span_in_context(chat)
        for suspension in timeline.suspensions:
            back_s = ended_s if suspension.resumed_s is None else suspension.resumed_s
            self._span("suspended", inside, suspension.started_s, back_s, _suspension(suspension))
        if timeline.first_token_s is not None:
            chat.set_attribute(NAMES["gen_first_chunk"], timeline.first_token_s - arrival.arrived_s)
            self._span(
                "prefill",
                inside,
                admitted_s,
                timeline.first_token_s,
                {NAMES["gen_input_tokens"]: ending.prompt_tokens},
            )
            self._span(
                "decode", inside, timeline.first_token_s, last_s, {NAMES["gen_output_tokens"]: ending.output_tokens}
            )
        self._fail_if(chat, ending)
        chat.end(self._clock.ns(last_s))

    def _message(self, arrival: Arrival) -> dict[str, Value]:
        topic = arrival.id.topic
        attributes: dict[str, Value] = {
            NAMES["system"]: "kafka",
            NAMES["destination"]: topic,
            NAMES["partition"]: str(arrival.id.partition),
            NAMES["offset"]: arrival.id.offset,
            NAMES["group"]: self._group_of[topic],
            NAMES["client"]: self._client_id,
            NAMES["operation"]: "process",
            NAMES["operation_type"]: "process",
            NAMES["message_id"]: arrival.headers.request_id,
            NAMES["body_size"]: arrival.body_bytes,
        }
        if (correlation := arrival.headers.correlation_id) is not None:
            attributes[NAMES["conversation_id"]] = correlation.decode(errors="backslashreplace")
        return attributes

    @staticmethod
    def _generation(prepared: PreparedRequest) -> dict[str, Value]:
        sampling = prepared.sampling
        attributes: dict[str, Value] = {
            NAMES["gen_operation"]: "chat" if prepared.kind is RequestKind.CHAT else "text_completion",
            NAMES["gen_provider"]: "headrace",
            NAMES["gen_request_model"]: prepared.model,
            NAMES["gen_response_model"]: prepared.model,
            NAMES["gen_max_tokens"]: prepared.max_output_tokens,
            NAMES["gen_temperature"]: sampling.temperature,
            NAMES["gen_top_p"]: sampling.top_p,
            NAMES["gen_seed"]: _signed(sampling.seed),
            NAMES["gen_stream"]: prepared.stream,
            NAMES["gen_output_type"]: "text",
        }
        if sampling.top_k is not None:
            attributes[NAMES["gen_top_k"]] = sampling.top_k
        if prepared.stop:
            attributes[NAMES["gen_stop"]] = tuple(prepared.stop)
        return attributes

    @staticmethod
    def _fail_if(span: Span, ending: Ending) -> None:
        if (error := ending.error) is not None:
            span.set_attribute(NAMES["error_type"], error.code or str(error.status_code))
            span.set_status(Status(StatusCode.ERROR, error.code))

    def _start(
        self,
        name: str,
        parent: Context,
        start_s: float,
        attributes: Mapping[str, Value],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        return self._tracer.start_span(name, parent, kind, attributes, start_time=self._clock.ns(start_s))

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


def _signed(seed: int) -> int:
    """The 64 bits as a signed number, as the request's body has it: OTLP's integers are signed."""
    return seed - (1 << 64) if seed >> 63 else seed
