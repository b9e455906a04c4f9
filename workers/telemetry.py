"""The OpenTelemetry SDK of a worker process: who it says it is, where spans go.

Knows the provider's set-up. Exporters follow the standard `OTEL_*` variables: spans are exported over OTLP where
`OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set, and nowhere else. Does not know which
spans there are (`workers.tracing`).
"""

import os

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

__all__ = ["tracer_provider"]


def tracer_provider(*processors: SpanProcessor) -> TracerProvider:
    """A provider of its own (no process-wide global). `shutdown()` it: that flushes what is not exported yet.

    Sampling, limits and resource attributes are the SDK's `OTEL_TRACES_SAMPLER`, `OTEL_RESOURCE_ATTRIBUTES` and so on;
    the default sampler honours the producer's sampling flag.
    """
    provider = TracerProvider(
        resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "headrace")})
    )
    for processor in processors:
        provider.add_span_processor(processor)
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
