"""Metrics on their way out: an endpoint for Prometheus, and push over OTLP.

Knows OpenTelemetry's data model, its readers and exporters. Does not know what is measured
(`workers.telemetry.metric_store`).

Of the SDK's metrics, readers, exporters and data model are used, its instruments are not: they cost some 15 µs a
value, can't be given counts in bulk, and refuse the colon in vLLM's names. Our store's reading is handed to the SDK's
readers in the form in which a `MeterProvider` hands over its own, so that conversion, temporality and transport are
theirs.

    OTEL_METRICS_EXPORTER         `none`, `otlp`; absent: over OTLP where an endpoint is set for all signals or for
                                  metrics (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT)
    OTEL_METRIC_EXPORT_INTERVAL   milliseconds between pushes (the SDK's, 60,000 by default)
"""

import logging
import time
from dataclasses import dataclass
from threading import Thread
from types import TracebackType
from typing import Self
from wsgiref.simple_server import WSGIServer

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from workers.runners.errors import EndpointError
from workers.telemetry.distribution import DistributionSnapshot
from workers.telemetry.metric import Kind, Metric
from workers.telemetry.metric_store import Labels, MetricStore, Value
from workers.telemetry.telemetry import otlp_is_wanted, otlp_metric_exporter, resource

__all__ = ["CONTENT_TYPE", "MetricExport"]

log = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SCOPE = InstrumentationScope("headrace")


@dataclass(frozen=True, slots=True)
class _Source:
    """What a reader asks in place of a `MeterProvider`."""

    store: MetricStore
    resource: Resource
    started_ns: int

    def collect(self, _reader: sdk.MetricReader, timeout_millis: float = 0) -> sdk.MetricsData:
        now_ns = time.time_ns()
        reading = self.store.read()
        metrics = [
            _metric(metric, values, self.started_ns, now_ns)
            for metric, values in sorted(reading.values.items(), key=lambda item: item[0].name)
        ]
        scope = sdk.ScopeMetrics(_SCOPE, metrics, "")
        return sdk.MetricsData([sdk.ResourceMetrics(self.resource, [scope], "")])


class MetricExport:
    """A context: endpoint and push are open inside."""

    def __init__(self, store: MetricStore, *, host: str, port: int | None, service_name: str = "headrace") -> None:
        """`port`: of the endpoint; 0: any that is free; None: no endpoint."""
        self._source = _Source(store, resource(service_name), time.time_ns())
        self._host = host
        self._port = port
        self._registry = CollectorRegistry(auto_describe=False)
        self._readers: list[sdk.MetricReader] = []
        self._serving: tuple[WSGIServer, Thread] | None = None
        self.port: int | None = None
        """Of the open endpoint."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Raises `EndpointError`."""
        # Scope labels would say the same on every series.
        self._adopt(PrometheusMetricReader(scope_info_enabled=False, registry=self._registry))
        if otlp_is_wanted("METRICS") and (exporter := otlp_metric_exporter()) is not None:
            self._adopt(sdk.PeriodicExportingMetricReader(exporter))
        if self._port is not None:
            try:
                self._serving = start_http_server(self._port, self._host, self._registry)
            except OSError as error:
                self.close()
                raise EndpointError(
                    f"telemetry.metrics_port = {self._port}: no endpoint on {self._host} ({error.strerror}): choose "
                    "another port, or 0 for any that is free"
                ) from error
            self.port = self._serving[0].server_port
            log.info("metrics: http://%s:%d/metrics", self._host, self.port)

    def close(self) -> None:
        """Push what has not been pushed, and end. Blocks while it does."""
        if self._serving is not None:
            server, thread = self._serving
            self._serving = None
            server.shutdown()
            server.server_close()
            thread.join()
        for reader in self._readers:
            reader.shutdown()
        self._readers.clear()

    def text(self) -> bytes:
        """What the endpoint answers, as `CONTENT_TYPE` says. Some milliseconds: not for the event loop."""
        return generate_latest(self._registry)

    def _adopt(self, reader: sdk.MetricReader) -> None:
        # The one seam: what `MeterProvider` calls for each of its readers.
        reader._set_collect_callback(self._source.collect)
        self._readers.append(reader)


def _metric(metric: Metric, values: dict[Labels, Value], started_ns: int, now_ns: int) -> sdk.Metric:
    def attributes(labels: Labels) -> dict[str, str]:
        return dict(zip(metric.labels, labels, strict=True))

    data: sdk.DataT
    if metric.kind is Kind.HISTOGRAM:
        data = sdk.Histogram(
            [
                _histogram_point(attributes(labels), value, started_ns, now_ns)
                for labels, value in values.items()
                if isinstance(value, DistributionSnapshot)
            ],
            sdk.AggregationTemporality.CUMULATIVE,
        )
    else:
        points = [
            sdk.NumberDataPoint(attributes(labels), started_ns, now_ns, float(value))
            for labels, value in values.items()
            if not isinstance(value, DistributionSnapshot)
        ]
        if metric.kind is Kind.COUNTER:
            data = sdk.Sum(points, sdk.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        else:
            data = sdk.Gauge(points)
    return sdk.Metric(metric.name, metric.meaning, metric.unit, data)


def _histogram_point(
    attributes: dict[str, str], value: DistributionSnapshot, started_ns: int, now_ns: int
) -> sdk.HistogramDataPoint:
    return sdk.HistogramDataPoint(
        attributes,
        started_ns,
        now_ns,
        count=value.count,
        sum=value.sum,
        bucket_counts=list(value.counts),
        explicit_bounds=list(value.bounds),
        min=None,  # type: ignore[arg-type] # not kept: OTLP leaves it out then
        max=None,  # type: ignore[arg-type]
    )
