"""Settings of telemetry: metrics, usage records, and what may be a label.

Knows names and bounds. Where spans and metrics are pushed is set by OpenTelemetry's own variables
(`workers.telemetry.telemetry`).
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from workers.configuration.section import Section, split_commas

__all__ = ["TelemetryConfig"]

Compat = Annotated[tuple[Literal["vllm", "llm-scheduler"], ...], BeforeValidator(split_commas)]


class TelemetryConfig(Section):
    enabled: bool = True
    """False: nothing is measured and no endpoint is opened. Spans are OpenTelemetry's matter (OTEL_TRACES_EXPORTER)."""
    metrics_port: int | None = Field(None, ge=0, le=65_535)
    """Prometheus reads http://HOST:PORT/metrics; 0 is any port that is free. Absent: no endpoint."""
    metrics_host: str = "127.0.0.1"
    """Who may read: 127.0.0.1 is this machine alone, 0.0.0.0 whoever reaches it. There is no password."""
    compat: Compat = ()
    """Also export under other names: vllm, llm-scheduler."""
    usage_records: bool = True
    """Write what each request used to PREFIX.usage, in the transaction of its terminal reply."""
    max_tenants: int = Field(50, ge=0)
    """So many tenants get series of their own, those with a weight first; all others are `other`."""
