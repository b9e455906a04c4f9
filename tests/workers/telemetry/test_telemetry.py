"""Where spans go, by the standard variables: a collector on this machine takes them."""

from importlib.util import find_spec

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.workers.telemetry.otlp_collector import Collector
from workers.telemetry.telemetry import otlp_is_wanted, tracer_provider


def span_and_flush(service_name: str = "headrace") -> None:
    provider = tracer_provider(service_name=service_name)
    provider.get_tracer("test").start_span("one").end()
    provider.shutdown()


def service_name(provided: str = "headrace") -> object:
    provider = tracer_provider(service_name=provided)
    name = provider.resource.attributes["service.name"]
    provider.shutdown()
    return name


def test_spans_go_to_the_endpoint_that_is_set(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    span_and_flush()
    path, body = collector.received.get(timeout=10)
    assert path == "/v1/traces"
    request = ExportTraceServiceRequest.FromString(body)
    assert request.resource_spans[0].scope_spans[0].spans[0].name == "one"


def test_none_exports_nothing_whatever_endpoint_is_set(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    span_and_flush()
    assert collector.received.empty()


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": " OTLP "}, True),
        ({"OTEL_TRACES_EXPORTER": ""}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_spans_are_exported_where_the_environment_asks(
    variables: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert otlp_is_wanted("TRACES") is wanted


def test_an_unknown_exporter_is_a_warning(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    span_and_flush()
    assert collector.received.empty()
    assert "OTEL_TRACES_EXPORTER = zipkin" in caplog.text


@pytest.mark.skipif(find_spec("grpc") is not None, reason="grpc is installed, so its exporter may be there")
@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_grpc_without_its_exporter_is_a_warning_and_not_http(
    variable: str, collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    monkeypatch.setenv(variable, "grpc")
    span_and_flush()
    assert collector.received.empty()
    assert "opentelemetry-exporter-otlp-proto-grpc" in caplog.text


def test_an_unknown_protocol_is_a_warning(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    span_and_flush()
    assert collector.received.empty()
    assert "'http/json' is not supported" in caplog.text


def test_the_traces_protocol_comes_before_the_general_one(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    span_and_flush()
    collector.received.get(timeout=10)


def test_a_process_has_its_own_name_where_the_environment_gives_none() -> None:
    assert service_name("headrace-send") == "headrace-send"


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=team-a,deployment.environment=test")
    assert service_name() == "team-a"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "team-b")
    assert service_name() == "team-b"
