"""How log lines look: as text, or one JSON object a line (`--log-format json`).

Knows the standard library's records. A line about a request carries `trace_id` and `span_id` where its trace is known:
of the span that is current, or of the `traceparent` that the caller gave as `extra`. Prompts and answers are in no
line: what is logged of a request is its place in its topic.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

import orjson

__all__ = ["LOG_FORMATS", "JsonFormatter", "LogFormat", "keep_records_out_of_logs", "set_up_logging"]

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logging(level: str | None, form: LogFormat) -> None:
    """Of the process, to standard error. `level`: None is warnings, without those of the Kafka library."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=(level or "warning").upper(), handlers=[handler])
    if level == "debug":
        keep_records_out_of_logs()
    if level is None:
        # aiokafka logs each failed connection as an error; what comes of it is ours to say, once, in our words.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def keep_records_out_of_logs() -> None:
    """Debug lines of these quote whole records and answers of brokers: no request's text belongs into a log."""
    for name in ("aiokafka.conn", "aiokafka.producer.producer"):
        logging.getLogger(name).setLevel(logging.INFO)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_trace_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return orjson.dumps(line, default=str).decode()


def _trace_of(record: logging.LogRecord) -> dict[str, str]:
    from opentelemetry import propagate, trace  # takes longer to load than many a command that logs nothing

    traceparent = getattr(record, "traceparent", None)
    if isinstance(traceparent, str):
        span = trace.get_current_span(propagate.extract({"traceparent": traceparent}))
    else:
        span = trace.get_current_span()
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
