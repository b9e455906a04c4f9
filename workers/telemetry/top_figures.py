"""What `top` shows, out of the workers' reports: rates between two reports, sums over workers.

Knows reports. Does not know screens. A rate is what changed over the time between a worker's newest report and the one
about `WINDOW_S` older; a worker that was started anew, or is gone, counts from nothing.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from topics.worker_reports import ClassReport, RequestReport, TenantReport, TimeToFirstToken, WorkerReport

__all__ = ["GONE_S", "HISTORY_S", "STAGES", "WINDOW_S", "ClassFigures", "ReportBook", "TenantFigures", "TopFigures"]

WINDOW_S = 10.0
HISTORY_S = 60.0
"""Of the reports that are kept: answers, objectives and the time to the first token are those of the last minute."""
GONE_S = 10.0
"""A worker that has said nothing for so long is gone."""

STAGES = ("ingress", "queue", "slot", "prefill", "reply")


@dataclass(frozen=True, slots=True)
class ClassFigures:
    label: str
    waiting: int
    oldest_s: float | None
    running: int
    suspended: int
    kv_blocks: int
    units_s: float
    """Dispatched cost a second."""
    promised_units_s: float | None
    borrowed: float
    """Part of the dispatched cost."""
    preempted: int
    answered: int
    met: float | None
    """Part of those answered in the last minute that met every objective. None: none was answered."""
    ttft_requests: int
    ttft_split_s: dict[str, float]
    """Mean seconds by stage over the last minute; empty of no requests."""


@dataclass(frozen=True, slots=True)
class TenantFigures:
    label: str
    tenant: str
    waiting: int
    running: int
    tokens_s: float
    answered: int


@dataclass(frozen=True, slots=True)
class TopFigures:
    workers: int
    policies: tuple[str, ...]
    models: tuple[str, ...]
    slots: int
    steps_s: float
    busy: float
    """Mean part of the time that the workers spent in forward passes."""
    prefill_tokens_s: float
    decode_tokens_s: float
    capacity_units_s: float
    kv_blocks: int
    kv_free: int
    kv_cached: int
    kv_swapped: int
    classes: tuple[ClassFigures, ...]
    tenants: tuple[TenantFigures, ...]
    more_tenants: int
    requests: tuple[RequestReport, ...]
    more_requests: int


class ReportBook:
    """The reports of the last minute, by worker. Bounded: a worker reports once a second, and is forgotten."""

    def __init__(self) -> None:
        self._reports: dict[str, deque[WorkerReport]] = {}

    def take(self, report: WorkerReport) -> None:
        kept = self._reports.setdefault(report.worker, deque())
        if kept and report.up_s < kept[-1].up_s:
            kept.clear()  # started anew: its totals are too
        kept.append(report)
        while len(kept) > 1 and (report.at_ms - kept[0].at_ms) / 1000 > HISTORY_S:
            kept.popleft()

    def forget_gone(self, now_ms: int) -> None:
        for worker, kept in list(self._reports.items()):
            if (now_ms - kept[-1].at_ms) / 1000 > GONE_S:
                del self._reports[worker]

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(sorted(self._reports))

    def figures(self) -> TopFigures:
        spans = [_Span(kept) for _, kept in sorted(self._reports.items())]
        newest = [span.newest for span in spans]
        requests = [request for report in newest for request in report.requests]
        return TopFigures(
            workers=len(spans),
            policies=_distinct(report.policy for report in newest),
            models=_distinct(report.model for report in newest),
            slots=sum(report.slots for report in newest),
            steps_s=sum(span.rate(lambda report: report.engine.steps) for span in spans),
            # A step is counted when it ends, and may have begun before the window.
            busy=_mean([min(1.0, span.rate(lambda report: report.engine.step_seconds)) for span in spans]),
            prefill_tokens_s=sum(span.rate(lambda report: report.engine.prefill_tokens) for span in spans),
            decode_tokens_s=sum(span.rate(lambda report: report.engine.decode_tokens) for span in spans),
            capacity_units_s=sum(report.engine.capacity_units_s for report in newest),
            kv_blocks=sum(report.kv.blocks for report in newest),
            kv_free=sum(report.kv.free for report in newest),
            kv_cached=sum(report.kv.cached for report in newest),
            kv_swapped=sum(report.kv.swapped for report in newest),
            classes=tuple(_class(spans, label) for label in _labels(newest)),
            tenants=_tenants(spans),
            more_tenants=sum(report.more_tenants for report in newest),
            requests=tuple(requests),
            more_requests=sum(report.more_requests for report in newest),
        )


class _Span:
    """A worker's newest report, and the older ones to compare it with."""

    def __init__(self, kept: Sequence[WorkerReport]) -> None:
        self.newest = kept[-1]
        self.minute_ago = kept[0]
        since_ms = self.newest.at_ms - WINDOW_S * 1000
        self._window = next(report for report in kept if report.at_ms >= since_ms)

    def rate(self, total: Callable[[WorkerReport], float]) -> float:
        """A total's change a second."""
        seconds = (self.newest.at_ms - self._window.at_ms) / 1000
        return 0.0 if seconds <= 0 else (total(self.newest) - total(self._window)) / seconds

    def minute(self, total: Callable[[WorkerReport], float]) -> float:
        """A total's change over the last minute; since the start, of a worker that has reported once."""
        if self.minute_ago is self.newest:
            return total(self.newest)
        return total(self.newest) - total(self.minute_ago)


def _class(spans: Sequence[_Span], label: str) -> ClassFigures:
    newest = [found for span in spans if (found := _of_class(span.newest, label)) is not None]
    oldest = [found.oldest_s for found in newest if found.oldest_s is not None]
    promised = [found.rate_units_s for found in newest if found.rate_units_s is not None]

    def rate(field: str) -> float:
        return sum(span.rate(lambda report: _total(report, label, field)) for span in spans)

    def minute(field: str) -> float:
        return sum(span.minute(lambda report: _total(report, label, field)) for span in spans)

    def stage(name: str) -> float:
        return sum(span.minute(lambda report: _stage(report, label, name)) for span in spans)

    units_s, answered, requests = rate("dispatched_units"), minute("answered"), int(stage("requests"))
    return ClassFigures(
        label=label,
        waiting=sum(found.waiting for found in newest),
        oldest_s=max(oldest, default=None),
        running=sum(found.running for found in newest),
        suspended=sum(found.suspended for found in newest),
        kv_blocks=sum(found.kv_blocks for found in newest),
        units_s=max(0.0, units_s),
        promised_units_s=sum(promised) if promised else None,
        borrowed=min(1.0, max(0.0, rate("borrowed_units") / units_s)) if units_s > 0 else 0.0,
        preempted=sum(found.preempted for found in newest),
        answered=sum(found.answered for found in newest),
        met=1 - minute("missed") / answered if answered else None,
        ttft_requests=requests,
        ttft_split_s={name: stage(name) / requests for name in STAGES} if requests else {},
    )


def _tenants(spans: Sequence[_Span]) -> tuple[TenantFigures, ...]:
    names = sorted({(found.label, found.tenant) for span in spans for found in span.newest.tenants})
    figures = []
    for label, tenant in names:
        newest = [found for span in spans if (found := _of_tenant(span.newest, label, tenant)) is not None]

        def tokens(report: WorkerReport, label: str = label, tenant: str = tenant) -> float:
            found = _of_tenant(report, label, tenant)
            return 0 if found is None else found.output_tokens

        running = sum(found.running for found in newest)
        figures.append(
            TenantFigures(
                label=label,
                tenant=tenant,
                waiting=sum(found.known for found in newest) - running,
                running=running,
                tokens_s=sum(span.rate(tokens) for span in spans),
                answered=sum(found.answered for found in newest),
            )
        )
    return tuple(figures)


def _of_class(report: WorkerReport, label: str) -> ClassReport | None:
    return next((found for found in report.classes if found.label == label), None)


def _of_tenant(report: WorkerReport, label: str, tenant: str) -> TenantReport | None:
    return next((found for found in report.tenants if (found.label, found.tenant) == (label, tenant)), None)


def _total(report: WorkerReport, label: str, field: str) -> float:
    found = _of_class(report, label)
    value: Any = 0 if found is None else getattr(found, field)
    return float(value)


def _stage(report: WorkerReport, label: str, name: str) -> float:
    found = _of_class(report, label)
    ttft = TimeToFirstToken() if found is None else found.ttft
    return float(getattr(ttft, name))


def _labels(reports: Iterable[WorkerReport]) -> list[str]:
    return sorted({found.label for report in reports for found in report.classes})


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(values)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
