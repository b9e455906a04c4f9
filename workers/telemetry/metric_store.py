"""The values of the declared metrics, and their reading.

Knows which metrics are declared, their labels and what they hold. Does not know what they mean, or who reads
(`workers.telemetry.metric_export`). What is not declared, or has other labels than declared, is an assertion.

Two ways in. *Recorded*: `add` and `observe`, about a microsecond each, from the event loop alone. *Read*: a source is
called once for each reading, in the reader's thread, and states what its components' frozen statistics say. Nothing
here takes a lock that a step or the event loop could wait for.
"""

from collections.abc import Callable, Iterable, Mapping

from workers.telemetry.distribution import Distribution, DistributionSnapshot
from workers.telemetry.metric import Kind, Metric

__all__ = ["Labels", "MetricStore", "Reading", "Value"]

Labels = tuple[str, ...]
"""Values, in the order of `Metric.labels`."""
Value = float | DistributionSnapshot


class Reading:
    """All values at one moment, by metric and labels."""

    def __init__(self, declared: frozenset[Metric]) -> None:
        self._declared = declared
        self.values: dict[Metric, dict[Labels, Value]] = {}

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        assert metric.kind is not Kind.HISTOGRAM, f"{metric.name} is a histogram"
        self._put(metric, labels, value)

    def distribution(self, metric: Metric, snapshot: DistributionSnapshot, *labels: str) -> None:
        assert metric.kind is Kind.HISTOGRAM, f"{metric.name} is no histogram"
        assert snapshot.bounds == metric.bounds, f"{metric.name} has other bounds"
        self._put(metric, labels, snapshot)

    def declares(self, metric: Metric) -> bool:
        return metric in self._declared

    def of(self, metric: Metric) -> Mapping[Labels, Value]:
        return self.values.get(metric, {})

    def _put(self, metric: Metric, labels: Labels, value: Value) -> None:
        assert metric in self._declared, f"{metric.name} is not in the catalogue"
        assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}, not {labels}"
        self.values.setdefault(metric, {})[labels] = value


class MetricStore:
    def __init__(self, declared: Iterable[Metric]) -> None:
        self.declared = frozenset(declared)
        self._counts: dict[Metric, dict[Labels, float]] = {}
        self._distributions: dict[Metric, dict[Labels, Distribution]] = {}
        self._sources: list[Callable[[Reading], None]] = []

    def declares(self, metric: Metric) -> bool:
        """Whether it is exported: those of `telemetry.compat` may not be."""
        return metric in self.declared

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Count so much more."""
        try:
            self._counts[metric][labels] += value
        except KeyError:
            self._check(metric, Kind.COUNTER, labels)
            self._counts.setdefault(metric, {})[labels] = value

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """One value of a histogram."""
        try:
            self._distributions[metric][labels].observe(value)
        except KeyError:
            self._check(metric, Kind.HISTOGRAM, labels)
            cell = self._distributions.setdefault(metric, {})[labels] = Distribution(metric.bounds)
            cell.observe(value)

    def read_from(self, source: Callable[[Reading], None]) -> None:
        """Ask `source` at each reading, after those before it: it may look at what they stated."""
        self._sources.append(source)

    def read(self) -> Reading:
        """From any thread."""
        reading = Reading(self.declared)
        # A copy of a dictionary is one act under the interpreter's lock; its cells go on changing.
        for metric, counts in self._counts.copy().items():
            for labels, value in counts.copy().items():
                reading.set(metric, value, *labels)
        for metric, cells in self._distributions.copy().items():
            for labels, cell in cells.copy().items():
                reading.distribution(metric, cell.snapshot(), *labels)
        for source in self._sources:
            source(reading)
        return reading

    def _check(self, metric: Metric, kind: Kind, labels: Labels) -> None:
        assert metric in self.declared, f"{metric.name} is not in the catalogue"
        assert metric.kind is kind, f"{metric.name} is a {metric.kind.value}"
        assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}, not {labels}"
