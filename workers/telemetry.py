"""The OpenTelemetry SDK of a process: who it says it is, where its spans go.

Knows the provider's set-up by the standard `OTEL_*` variables:

    OTEL_TRACES_EXPORTER          `none`: nowhere. `otlp`: over OTLP. Absent: over OTLP where an endpoint is set
                                  (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT), else nowhere
    OTEL_EXPORTER_OTLP_PROTOCOL   `http/protobuf` (the default), or `grpc` where its exporter is installed;
                                  OTEL_EXPORTER_OTLP_TRACES_PROTOCOL comes first
    OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and so on are the SDK's own

A value that can't be honoured is a warning, never the end of a worker: so the specification wants it. Does not know
which spans there are (`workers.tracing`). The SDK comes with the worker extra and is imported when it is used.
"""

import importlib
import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["export_is_wanted", "tracer_provider"]

log = logging.getLogger(__name__)

_EXPORTERS = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
}
_GRPC_PACKAGE = "opentelemetry-exporter-otlp-proto-grpc"


def export_is_wanted() -> bool:
    """Whether the environment asks for spans over OTLP. Warns of exporters that are not to be had."""
    asked = [name for part in os.environ.get("OTEL_TRACES_EXPORTER", "").split(",") if (name := part.strip().lower())]
    for name in asked:
        if name not in ("otlp", "none"):
            log.warning("OTEL_TRACES_EXPORTER = %s: no such exporter here; write otlp or none", name)
    if asked:
        return "otlp" in asked
    return any(os.environ.get(f"OTEL_EXPORTER_OTLP_{what}") for what in ("ENDPOINT", "TRACES_ENDPOINT"))


def tracer_provider(*processors: "SpanProcessor", service_name: str = "headrace") -> "TracerProvider":
    """A provider of its own (no process-wide global). `shutdown()` it: that flushes what is not exported yet.

    `service_name` holds where the environment names none. The default sampler honours the producer's sampling flag.
    """
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # What is given to `create` wins over the environment, so it is given only where the environment is silent.
    named = OTELResourceDetector().detect().attributes.get(SERVICE_NAME)
    provider = TracerProvider(resource=Resource.create(None if named else {SERVICE_NAME: service_name}))
    for processor in processors:
        provider.add_span_processor(processor)
    if export_is_wanted() and (exporter := _otlp_exporter()) is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _otlp_exporter() -> "SpanExporter | None":
    """None, with a warning that says why, for a protocol that is not to be had."""
    protocol = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    if protocol not in _EXPORTERS:
        log.warning(
            "spans are not exported: OTLP over %r is not supported; choose %s", protocol, " or ".join(_EXPORTERS)
        )
        return None
    try:
        module = importlib.import_module(_EXPORTERS[protocol])
    except ModuleNotFoundError as error:
        if protocol != "grpc":
            raise
        log.warning(
            "spans are not exported: OTLP over grpc needs the package %s (%s); install it, or set "
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf and the endpoint's HTTP port",
            _GRPC_PACKAGE,
            error,
        )
        return None
    exporter: SpanExporter = module.OTLPSpanExporter()
    return exporter
