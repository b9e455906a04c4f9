"""`docs/metrics.md`, out of the catalogue: `python -m workers.telemetry.metrics_page > docs/metrics.md`.

Knows Markdown. Does not know what a metric is for: its declaration says it.
"""

from collections.abc import Iterable

from workers.telemetry.metric import Kind, Metric
from workers.telemetry.metric_catalogue import OURS
from workers.telemetry.metric_compat import COMPAT
from workers.telemetry.metric_conventions import CONVENTIONS

__all__ = ["metrics_page"]

_HEAD = """\
# Metrics

*Made of `workers/telemetry/metric_catalogue.py` by `python -m workers.telemetry.metrics_page`; a test compares.*

`headrace serve --metrics-port 9464` (or `telemetry.metrics_port`) opens an endpoint for Prometheus at
`http://127.0.0.1:9464/metrics`; with `OTEL_EXPORTER_OTLP_ENDPOINT` set, the same is pushed over OTLP. Names are
Prometheus's; over OTLP a name has dots for underscores, and no unit or `_total` behind it. A histogram's series end in
`_bucket`, `_sum` and `_count`.

`class` is p0 … p3: the origin class (the topic's), where a meaning doesn't say service class. `tenant` is one of the
first `telemetry.max_tenants` or `other`. What is counted "when it has ended" is counted when the terminal reply is on
the broker: sums over it are those of the clients.
"""

_COMPAT_HEADS = {
    "vllm": "vLLM's names, with `telemetry.compat: vllm`",
    "llm-scheduler": "Names of published write-ups, with `telemetry.compat: llm-scheduler`",
}


def metrics_page() -> str:
    parts = [
        _HEAD,
        _section("OpenTelemetry's semantic conventions", CONVENTIONS),
        _section("Headrace's own", OURS),
        *(_section(_COMPAT_HEADS[name], metrics) for name, metrics in COMPAT.items()),
        _buckets((*CONVENTIONS, *OURS)),
    ]
    return "\n".join(parts)


def _section(title: str, metrics: Iterable[Metric]) -> str:
    rows = [f"## {title}", "", "| name | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.prometheus_labels) or "–"
        unit = f" ({metric.unit})" if metric.unit.startswith("{") else ""
        rows.append(f"| `{metric.prometheus_name}` | {metric.kind.value} | {labels} | {metric.meaning}{unit} |")
    return "\n".join([*rows, ""])


def _buckets(metrics: Iterable[Metric]) -> str:
    rows = ["## Bounds of the histograms", "", "| name | upper bounds |", "|---|---|"]
    for metric in metrics:
        if metric.kind is Kind.HISTOGRAM:
            bounds = ", ".join(f"{bound:g}" for bound in metric.bounds)
            rows.append(f"| `{metric.prometheus_name}` | {bounds} |")
    return "\n".join([*rows, ""])


if __name__ == "__main__":
    print(metrics_page(), end="")
