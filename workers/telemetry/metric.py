"""What a metric is: its name, unit, kind, labels and meaning, declared once.

Knows declarations. Does not know which there are (`workers.telemetry.metric_catalogue`), what their values are
(`workers.telemetry.metric_store`) or where they go (`workers.telemetry.metric_export`).
"""

from dataclasses import dataclass
from enum import Enum

from opentelemetry.exporter.prometheus._mapping import map_unit, sanitize_attribute, sanitize_full_name

__all__ = ["Kind", "Metric"]


class Kind(Enum):
    COUNTER = "counter"
    """Only grows, from the worker's start."""
    GAUGE = "gauge"
    """As it is now."""
    HISTOGRAM = "histogram"
    """How often a value fell between two bounds, from the worker's start, and the sum of the values."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """Equal to nothing but itself: what records a value names the declaration, not a text."""

    name: str
    """In OpenTelemetry's style; dots become underscores for Prometheus, with unit and `_total` behind."""
    unit: str
    """As UCUM writes it: `s`, `By`, `1`, `{request}`. Empty: none, and no suffix in Prometheus."""
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    bounds: tuple[float, ...] = ()
    """Of a histogram: upper ends of its buckets, in its unit; one without end comes on top."""

    def __post_init__(self) -> None:
        assert bool(self.bounds) is (self.kind is Kind.HISTOGRAM), (
            f"{self.name}: a histogram, and only that, has bounds"
        )
        assert list(self.bounds) == sorted(set(self.bounds)), f"{self.name}: bounds rise"

    @property
    def prometheus_name(self) -> str:
        """As a query has it. A histogram's series have `_bucket`, `_sum` or `_count` behind."""
        name, unit = sanitize_full_name(self.name), map_unit(self.unit)
        if unit and not name.endswith(f"_{unit}"):
            name = f"{name}_{unit}"
        return f"{name}_total" if self.kind is Kind.COUNTER else name

    @property
    def prometheus_labels(self) -> tuple[str, ...]:
        return tuple(sanitize_attribute(label) for label in self.labels)
