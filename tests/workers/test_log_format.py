"""Log lines as JSON."""

import logging
import sys

import orjson
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from workers.log_format import JsonFormatter

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def line(message: str, *arguments: object, **options: object) -> dict[str, str]:
    record = logging.getLogger("workers.test").makeRecord(
        "workers.test",
        logging.WARNING,
        __file__,
        1,
        message,
        arguments,
        options.pop("exc_info", None),  # type: ignore[arg-type]
        extra=options,
    )
    text = JsonFormatter().format(record)
    assert "\n" not in text
    parsed = orjson.loads(text)
    assert isinstance(parsed, dict)
    return parsed


def test_a_line_is_one_object() -> None:
    parsed = line("no memory for %d blocks", 7)
    assert parsed.pop("time").endswith("+00:00")
    assert parsed == {"level": "warning", "logger": "workers.test", "message": "no memory for 7 blocks"}


def test_a_line_about_a_request_carries_its_trace() -> None:
    parsed = line("staging failed", traceparent=TRACEPARENT)
    assert (parsed["trace_id"], parsed["span_id"]) == (TRACEPARENT[3:35], TRACEPARENT[36:52])
    assert "trace_id" not in line("staging failed", traceparent=None)
    assert "trace_id" not in line("staging failed", traceparent="no trace")


def test_else_the_current_spans() -> None:
    span = TracerProvider().get_tracer("test").start_span("now")
    with trace.use_span(span):
        assert line("here")["span_id"] == f"{span.get_span_context().span_id:016x}"


def test_an_exception_stays_on_its_line() -> None:
    try:
        raise ValueError("bad\nnews")
    except ValueError:
        parsed = line("it broke", exc_info=sys.exc_info())
    assert "ValueError: bad\nnews" in parsed["exception"]
