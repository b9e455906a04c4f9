"""Telemetry as a worker has it, beside an engine without Kafka: what it costs.

Knows who is told what of a request, and how to take the processor time inside each of these calls. The metered run is
one by itself: reading the clock twice a call costs about as much as some of the calls do, and is taken off.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from scheduling.priority import PriorityClass
from scheduling.tree import Slo
from topics.replies import OutboundRecord
from topics.terminal_replies import Fate
from workers.answers.terminal_writer import Settled, Terminal
from workers.bench.engine import run_workload
from workers.configuration.config import WorkerConfig
from workers.engine.assembly import Assembly
from workers.engine.observer import EngineObserver
from workers.engine.outbox import Publication
from workers.intake.request import Arrival
from workers.models.loaded_model import LoadedModel
from workers.telemetry.engine_metrics import EngineMetrics
from workers.telemetry.metric_compat import declared
from workers.telemetry.metric_store import MetricStore
from workers.telemetry.request_metrics import RequestMetrics
from workers.telemetry.slo import SloTracker
from workers.telemetry.telemetry import tracer_provider
from workers.telemetry.tenant_labels import TenantLabels
from workers.telemetry.tracing import ReplySent, RequestTracer
from workers.telemetry.wall_clock import WallClock

__all__ = ["measured_run", "metered_run"]

_OBSERVED = ("arrived", "dispatched", "gap", "step", "turn", "copied", "preempted")
_CALIBRATION = 20_000
_READING_S = 15.0
"""Prometheus reads so often."""


class _Nowhere(SpanExporter):
    """Spans are made, batched and handed over: sending them is another thread's matter, and the network's."""

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class _Meter:
    """Thread processor time inside calls."""

    seconds: float = 0.0
    calls: int = 0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def metered(*arguments: Any, **named: Any) -> Any:
            started_s = time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds += time.thread_time() - started_s
                self.calls += 1

        return metered

    @staticmethod
    def call_s() -> float:
        """What a metered call that does nothing is seen to take."""
        empty = _Meter()
        nothing = empty.around(lambda: None)
        for _ in range(_CALIBRATION):
            nothing()
        return empty.seconds / empty.calls


class _Telemetry:
    """Implements `workers.bench.engine.Watcher`, as `workers.worker` tells its own telemetry and tracer."""

    def __init__(self, config: WorkerConfig, model: LoadedModel, parts: Assembly, provider: TracerProvider) -> None:
        assert parts.observer is not None
        self.observer: EngineObserver = parts.observer
        self._parts = parts
        self.store = MetricStore(declared(config.telemetry.compat))
        tenants = TenantLabels(config.telemetry.max_tenants)
        name = model.served_names[0]
        self._requests = RequestMetrics(self.store, tenants, name, "dlq")
        self._engine = EngineMetrics(self.observer, tenants, name, config.engine.max_sequences)
        self.store.read_from(self._engine.read)
        self._slos = SloTracker({PriorityClass.P2: Slo(ttft_s=600.0, e2e_s=600.0)})
        self._tracer = RequestTracer(provider.get_tracer("bench"), WallClock(), {"bench": "bench"}, "bench")
        self._looked_s = self._read_s = time.monotonic()

    def arrived(self, arrival: Arrival) -> None:
        """Counted by tenant in a worker; a dictionary's entry, and no more."""

    def published(self, publication: Publication) -> None:
        now = time.monotonic()
        if now - self._looked_s >= 1.0:
            self._looked_s = now
            self._engine.look(now, self._parts.engine.statistics())
        if now - self._read_s >= _READING_S:
            self._read_s = now
            self.store.read()
        if publication.ending is not None:
            self._settled(publication, now)

    def _settled(self, publication: Publication, now: float) -> None:
        assert publication.ending is not None
        arrival = publication.arrival
        reply = OutboundRecord("replies", None, None, b"{}", (("attempt", b"1"),))
        terminal = Terminal(reply, arrival.id, arrival.epoch, PriorityClass.P2, publication=publication)
        met = self._slos.record(arrival, publication.ending, now)
        self._requests.settled(Settled(terminal, Fate.DELIVERED, now, now), met)
        sent = ReplySent("replies", now, now, 2, transactional=True)
        self._tracer.record(arrival, publication.prepared, publication.ending, sent, met)


def measured_run(
    config: WorkerConfig, model: LoadedModel, requests: list[dict[str, Any]], *, telemetry: bool
) -> dict[str, Any]:
    """One run of the workload, with telemetry or without."""
    if not telemetry:
        return _figures(run_workload(config, model, requests)) | {"telemetry": False}
    provider = tracer_provider(BatchSpanProcessor(_Nowhere()))
    try:
        ran = run_workload(config, model, requests, lambda parts: _Telemetry(config, model, parts, provider))
    finally:
        provider.shutdown()
    return _figures(ran) | {"telemetry": True}


def metered_run(config: WorkerConfig, model: LoadedModel, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """One run with the clock read around each call into telemetry: its processor time beside the steps'."""
    in_engine, on_loop = _Meter(), _Meter()
    provider = tracer_provider(BatchSpanProcessor(_Nowhere()))

    def watch(parts: Assembly) -> _Telemetry:
        telemetry = _Telemetry(config, model, parts, provider)
        for name in _OBSERVED:
            setattr(telemetry.observer, name, in_engine.around(getattr(telemetry.observer, name)))
        telemetry.published = on_loop.around(telemetry.published)  # type: ignore[method-assign]
        return telemetry

    try:
        ran = run_workload(config, model, requests, watch)
    finally:
        provider.shutdown()
    call_s = _Meter.call_s()
    engine_s = max(0.0, in_engine.seconds - in_engine.calls * call_s)
    loop_s = max(0.0, on_loop.seconds - on_loop.calls * call_s)
    return _figures(ran) | {
        "engine_thread_s": engine_s,
        "event_loop_s": loop_s,
        "calls": in_engine.calls + on_loop.calls,
        "share_of_step_time": (engine_s + loop_s) / ran["step_s"],
    }


def _figures(ran: dict[str, Any]) -> dict[str, Any]:
    return {name: ran[name] for name in ("output_tokens_s", "decision_cpu_us", "steps", "step_s", "wall_s")}
