"""Metrics of requests: recorded when a stream's first delta and when its terminal reply is on the broker, and when a
request is refused at ingress.

Knows timelines, endings and the names under which they are counted. Runs on the event loop, some tens of microseconds a
request. Does not know windows or the engine.
"""

from collections.abc import Mapping

from topics.replies import OutboundRecord
from workers.answers.terminal_writer import Settled
from workers.intake.ingress import Refusal
from workers.intake.prompt import RequestKind
from workers.intake.request import Arrival, Ending, Moved
from workers.telemetry import metric_catalogue as ours
from workers.telemetry import metric_compat as theirs
from workers.telemetry import metric_conventions as conventions
from workers.telemetry.generation_attributes import OPERATION_NAMES, PROVIDER
from workers.telemetry.metric_store import MetricStore
from workers.telemetry.tenant_labels import TenantLabels
from workers.telemetry.wall_clock import WallClock

__all__ = ["RequestMetrics"]

_SYSTEM = "kafka"
_COMPLETED = "completed"
_REFUSED = "refused"
_MOVED = "moved"
_NOBODY = ""
_MANY_ATTEMPTS = 3


class RequestMetrics:
    def __init__(self, store: MetricStore, tenants: TenantLabels, model: str, dead_letters: str) -> None:
        """`model`: the name the metrics carry. `dead_letters`: the topic."""
        self._store = store
        self._tenants = tenants
        self._model = model
        self._dead_letters = dead_letters
        self._clock = WallClock()
        self._vllm = store.declares(theirs.VLLM_TTFT)
        self._write_ups = store.declares(theirs.LLM_WAIT)

    def refused(self, refusal: Refusal) -> None:
        """Ingress refused a record."""
        code = refusal.error.code or str(refusal.error.status_code)
        self._store.add(ours.REJECTED, 1, refusal.origin_class.label, code)

    def begun(self, arrival: Arrival, acknowledged_s: float) -> None:
        """The broker has the first delta of its stream."""
        if arrival.timestamp_ms < 0:
            return  # a record without a time stamp
        # Two machines' clocks may differ: less than nothing is nothing.
        since_ms = max(0.0, self._clock.ns(acknowledged_s) / 1e6 - arrival.sent_ms)
        self._store.observe(ours.FIRST_DELTA_TIME, since_ms / 1000, arrival.origin_class.label)

    def settled(self, settled: Settled, met: Mapping[str, bool]) -> None:
        """A terminal reply is on the broker. `met`: the request's objectives."""
        terminal = settled.terminal
        label, topic = terminal.origin_class.label, terminal.reply.topic
        add, observe = self._store.add, self._store.observe
        add(conventions.SENT_MESSAGES, 1, _SYSTEM, "send", topic)
        observe(conventions.OPERATION_DURATION, settled.acknowledged_s - settled.sent_s, _SYSTEM, "send", topic)
        for record in terminal.records:
            if record.topic == self._dead_letters:
                add(ours.DEAD_LETTERS, 1, label)
        publication = terminal.publication
        if publication is None:
            add(ours.REQUESTS, 1, label, _NOBODY, _REFUSED)
            return
        assert publication.ending is not None, f"{publication.arrival.id} is settled and has not ended"
        if isinstance(publication.ending.reason, Moved):
            tenant = self._tenants.of(publication.arrival.tenant)
            add(ours.REQUESTS, 1, label, tenant, _MOVED)
            return
        kind = RequestKind.CHAT if publication.prepared is None else publication.prepared.kind
        self._ended(publication.arrival, kind, publication.ending, settled.acknowledged_s)
        add(ours.ATTEMPTS, 1, label, _attempt_label(terminal.reply))
        for name, was_met in met.items():
            add(ours.SLO_REQUESTS, 1, label, name, "true" if was_met else "false")

    def _ended(self, arrival: Arrival, kind: RequestKind, ending: Ending, acknowledged_s: float) -> None:
        add, observe = self._store.add, self._store.observe
        label, tenant = arrival.origin_class.label, self._tenants.of(arrival.tenant)
        timeline, error = ending.timeline, ending.error
        code = "" if error is None else error.code or str(error.status_code)
        add(ours.REQUESTS, 1, label, tenant, code or _COMPLETED)
        for of, tokens in (
            ("prompt", ending.prompt_tokens),
            ("cached", ending.cached_tokens),
            ("output", ending.output_tokens),
        ):
            add(ours.TOKENS, tokens, label, tenant, of)
        assert timeline.ended_s is not None, f"{arrival.id} has no end"
        duration_s = timeline.ended_s - arrival.arrived_s
        generation = PROVIDER, OPERATION_NAMES[kind], self._model, label
        observe(conventions.REQUEST_DURATION, duration_s, *generation, code)
        if self._vllm and error is None:
            observe(theirs.VLLM_E2E, duration_s, self._model)
        if timeline.admitted_s is None:
            if error is not None:
                add(ours.REJECTED, 1, label, code)
            return
        wait_s = timeline.admitted_s - arrival.arrived_s
        observe(ours.WAIT_TIME, wait_s, label, tenant)
        if self._write_ups:
            observe(theirs.SCHEDULER_WAIT, wait_s, tenant, label)
        observe(
            conventions.PROCESS_DURATION, acknowledged_s - timeline.admitted_s, _SYSTEM, "process", arrival.id.topic
        )
        if timeline.suspensions:
            observe(ours.SUSPENDED_TIME, timeline.suspended_s, label)
        if timeline.first_token_s is not None and kind is not RequestKind.EMBEDDING:
            self._first_token(timeline.first_token_s - arrival.arrived_s, label, generation)
        if (token_s := timeline.token_s) is not None:
            observe(conventions.TIME_PER_OUTPUT_TOKEN, token_s, *generation)

    def _first_token(self, ttft_s: float, label: str, generation: tuple[str, ...]) -> None:
        observe = self._store.observe
        observe(conventions.TIME_TO_FIRST_TOKEN, ttft_s, *generation)
        if self._vllm:
            observe(theirs.VLLM_TTFT, ttft_s, self._model)
        if self._write_ups:
            observe(theirs.LLM_WAIT, ttft_s, label)


def _attempt_label(reply: OutboundRecord) -> str:
    attempt = reply.attempt
    return str(attempt) if attempt < _MANY_ATTEMPTS else f"{_MANY_ATTEMPTS}+"
