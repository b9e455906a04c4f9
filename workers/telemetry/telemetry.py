"""The OpenTelemetry SDK of a process: who it says it is, where its spans and metrics go.

Knows the set-up by the standard `OTEL_*` variables, where SIGNAL is TRACES or METRICS:

    OTEL_{SIGNAL}_EXPORTER        `none`: nowhere. `otlp`: over OTLP. Absent: over OTLP where an endpoint is set
                                  (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_{SIGNAL}_ENDPOINT), else nowhere
    OTEL_EXPORTER_OTLP_PROTOCOL   `http/protobuf` (the default), or `grpc` where its exporter is installed;
                                  OTEL_EXPORTER_OTLP_{SIGNAL}_PROTOCOL comes first
    OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and so on are the SDK's own

A value that can't be honoured is a warning, never the end of a worker: so the specification wants it. Does not know
which spans there are (`workers.telemetry.tracing`) or which metrics (`workers.telemetry.metric_catalogue`). The SDK
comes with the worker extra and is imported when it is used.
"""

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["otlp_is_wanted", "otlp_metric_exporter", "otlp_span_exporter", "resource", "tracer_provider"]

log = logging.getLogger(__name__)

Signal = Literal["TRACES", "METRICS"]
_PACKAGES = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
}
_GRPC_PACKAGE = "opentelemetry-exporter-otlp-proto-grpc"
_WHAT = {"TRACES": "spans", "METRICS": "metrics"}


def otlp_is_wanted(signal: Signal) -> bool:
    """Whether the environment asks for this signal over OTLP. Warns of exporters that are not to be had."""
    variable = f"OTEL_{signal}_EXPORTER"
    asked = [name for part in os.environ.get(variable, "").split(",") if (name := part.strip().lower())]
    for name in asked:
        if name not in ("otlp", "none"):
            log.warning("%s = %s: no such exporter here; write otlp or none", variable, name)
    if asked:
        return "otlp" in asked
    return any(os.environ.get(f"OTEL_EXPORTER_OTLP_{what}") for what in ("ENDPOINT", f"{signal}_ENDPOINT"))


def resource(service_name: str) -> "Resource":
    """Who this process is. `service_name` holds where the environment names none."""
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource

    # What is given to `create` wins over the environment, so it is given only where the environment is silent.
    named = OTELResourceDetector().detect().attributes.get(SERVICE_NAME)
    return Resource.create(None if named else {SERVICE_NAME: service_name})


def tracer_provider(*processors: "SpanProcessor", service_name: str = "headrace") -> "TracerProvider":
    """A provider of its own (no process-wide global). `shutdown()` it: that flushes what is not exported yet.

    `service_name` holds where the environment names none. The default sampler honours the producer's sampling flag;
    what is marked to be kept is kept all the same (`workers.telemetry.trace_identity`). Where nobody takes spans, none
    is made: they would cost more than everything else about an answer.
    """
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    from workers.telemetry.trace_identity import DerivedIds, KeepsFaults

    provider = TracerProvider(resource=resource(service_name), id_generator=DerivedIds())
    # The sampler that the environment configures, by default that of the parent; but faults are kept.
    provider.sampler = KeepsFaults(provider.sampler)
    for processor in processors:
        provider.add_span_processor(processor)
    if otlp_is_wanted("TRACES") and (exporter := otlp_span_exporter()) is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    elif not processors:
        provider.sampler = ALWAYS_OFF
    return provider


def otlp_span_exporter() -> "SpanExporter | None":
    """None, with a warning that says why, for a protocol that is not to be had."""
    module = _exporters("TRACES", "trace_exporter")
    exporter: SpanExporter | None = None if module is None else module.OTLPSpanExporter()
    return exporter


def otlp_metric_exporter() -> "MetricExporter | None":
    """None, with a warning that says why, for a protocol that is not to be had."""
    module = _exporters("METRICS", "metric_exporter")
    exporter: MetricExporter | None = None if module is None else module.OTLPMetricExporter()
    return exporter


def _exporters(signal: Signal, name: str) -> Any:
    protocol = (
        os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    what = _WHAT[signal]
    if protocol not in _PACKAGES:
        log.warning(
            "%s are not exported: OTLP over %r is not supported; choose %s", what, protocol, " or ".join(_PACKAGES)
        )
        return None
    try:
        return importlib.import_module(f"{_PACKAGES[protocol]}.{name}")
    except ModuleNotFoundError as error:
        if protocol != "grpc":
            raise
        log.warning(
            "%s are not exported: OTLP over grpc needs the package %s (%s); install it, or set "
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf and the endpoint's HTTP port",
            what,
            _GRPC_PACKAGE,
            error,
        )
        return None
