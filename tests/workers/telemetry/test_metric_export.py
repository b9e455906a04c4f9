"""Metrics on their way out: the Prometheus endpoint as a scraper reads it, and OTLP as a collector gets it."""

import urllib.request

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from tests.workers.telemetry.otlp_collector import Collector
from workers.runners.errors import EndpointError
from workers.telemetry.metric import Kind, Metric
from workers.telemetry.metric_compat import declared
from workers.telemetry.metric_export import MetricExport
from workers.telemetry.metric_store import MetricStore, Reading

COUNT = Metric("some.requests", "{request}", Kind.COUNTER, ("victim.class",), "a count")
TIME = Metric("some.time", "s", Kind.HISTOGRAM, ("class",), "a time", (1.0, 2.0))
LEVEL = Metric("some:level", "", Kind.GAUGE, (), "a level")


def filled() -> MetricStore:
    store = MetricStore([COUNT, TIME, LEVEL])
    store.add(COUNT, 3, "p0")
    store.observe(TIME, 1.5, "p1")
    store.observe(TIME, 9.0, "p1")
    store.read_from(lambda reading: reading.set(LEVEL, 0.5))
    return store


def scraped(port: int | None) -> dict[str, tuple[dict[str, str], float]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        sample.name + sample.labels.get("le", ""): (sample.labels, sample.value)
        for family in families
        for sample in family.samples
    }


def test_the_endpoint_answers_in_prometheus_format() -> None:
    with MetricExport(filled(), host="127.0.0.1", port=0) as export:
        samples = scraped(export.port)
    assert samples["some_requests_total"] == ({"victim_class": "p0"}, 3)
    assert samples["some:level"] == ({}, 0.5)
    assert samples["some_time_seconds_bucket2.0"] == ({"class": "p1", "le": "2.0"}, 1)
    assert samples["some_time_seconds_bucket+Inf"][1] == samples["some_time_seconds_count"][1] == 2
    assert samples["some_time_seconds_sum"][1] == 10.5


def test_names_are_exported_as_the_catalogue_says() -> None:
    """Over all that could be exported: the rules of unit and suffix are the exporter's, and the page repeats them."""
    metrics = declared(("vllm", "llm-scheduler"))
    store = MetricStore(metrics)
    for metric in metrics:
        labels = tuple("x" for _ in metric.labels)
        if metric.kind is Kind.COUNTER:
            store.add(metric, 1, *labels)
        elif metric.kind is Kind.HISTOGRAM:
            store.observe(metric, 1, *labels)
    gauges = [metric for metric in metrics if metric.kind is Kind.GAUGE]

    def read(reading: Reading) -> None:
        for gauge in gauges:
            reading.set(gauge, 1, *("x" for _ in gauge.labels))

    store.read_from(read)
    with MetricExport(store, host="127.0.0.1", port=None) as export:
        families = {family.name: family for family in text_string_to_metric_families(export.text().decode())}
    families.pop("target_info", None)
    families.pop("target", None)
    assert set(families) == {metric.prometheus_name.removesuffix("_total") for metric in metrics}
    for metric in metrics:
        samples = families[metric.prometheus_name.removesuffix("_total")].samples
        assert set(samples[0].labels) - {"le"} == set(metric.prometheus_labels)


def test_a_port_that_is_taken_is_said_with_the_remedy() -> None:
    with (
        MetricExport(filled(), host="127.0.0.1", port=0) as first,
        pytest.raises(EndpointError, match=rf"metrics_port = {first.port}: .* choose another port"),
        MetricExport(filled(), host="127.0.0.1", port=first.port),
    ):
        raise AssertionError("two endpoints on one port")


def test_what_is_left_is_pushed_over_otlp_at_the_end(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    with MetricExport(filled(), host="127.0.0.1", port=None):
        pass
    path, body = collector.received.get(timeout=10)
    assert path == "/v1/metrics"
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    assert metrics["some.requests"].sum.data_points[0].as_double == 3
    (point,) = metrics["some.time"].histogram.data_points
    assert (list(point.bucket_counts), point.sum, point.HasField("min")) == ([0, 1, 1], 10.5, False)
    assert metrics["some:level"].gauge.data_points[0].as_double == 0.5


def test_nothing_is_pushed_without_an_endpoint(collector: Collector) -> None:
    with MetricExport(filled(), host="127.0.0.1", port=None):
        pass
    assert collector.received.empty()
