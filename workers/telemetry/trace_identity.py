"""Which traces are kept against their sampling, and spans whose ids can be told before they exist.

Knows the SDK's samplers and id generators. Does not know which spans there are (`workers.telemetry.tracing`).

- **Kept**: a span that says why (attribute `headrace.kept`) is recorded whatever the sampler thinks. Spans of a request
  are made when it has ended, so it is known by then that it failed or missed an objective.
- **Derived ids**: the process span of an attempt has an id that follows from the record and the attempt's number, so
  that the next attempt, on another worker, after a crash, can link to it without having been told.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from topics.record import RecordId

__all__ = ["KEPT", "DerivedIds", "KeepsFaults", "attempt_span_id", "request_trace_id"]

KEPT = "headrace.kept"
"""Why a trace is kept that was not sampled: `error`, or `slo`."""


def request_trace_id(record: RecordId, timestamp_ms: int) -> int:
    """Of a request whose producer began no trace."""
    return _number(f"{record.topic}\0{record.partition}\0{record.offset}\0{timestamp_ms}", 16)


def attempt_span_id(record: RecordId, timestamp_ms: int, attempt: int) -> int:
    """Of the process span of an attempt at a request."""
    return _number(f"{record.topic}\0{record.partition}\0{record.offset}\0{timestamp_ms}\0{attempt}", 8)


def _number(text: str, size: int) -> int:
    # An id of nought is none; the chance is what it is for random ids.
    return int.from_bytes(blake2b(text.encode(), digest_size=size).digest(), "big") or 1


class DerivedIds(RandomIdGenerator):
    """Random ids, but for a span that is begun inside `naming`. Owned by one thread."""

    def __init__(self) -> None:
        self._trace_id: int | None = None
        self._span_id: int | None = None

    @contextmanager
    def naming(self, *, trace_id: int | None = None, span_id: int | None = None) -> Iterator[None]:
        """The next span has this id; if it begins a trace, the trace has this one."""
        self._trace_id, self._span_id = trace_id, span_id
        try:
            yield
        finally:
            self._trace_id = self._span_id = None

    def generate_span_id(self) -> int:
        span_id, self._span_id = self._span_id, None
        return super().generate_span_id() if span_id is None else span_id

    def generate_trace_id(self) -> int:
        trace_id, self._trace_id = self._trace_id, None
        return super().generate_trace_id() if trace_id is None else trace_id


class KeepsFaults(Sampler):
    """Asks the sampler that is configured, but keeps what says that it is to be kept."""

    def __init__(self, configured: Sampler) -> None:
        self._configured = configured

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        if attributes and KEPT in attributes:
            state = get_current_span(parent_context).get_span_context().trace_state
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, state)
        return self._configured.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return f"KeepsFaults({self._configured.get_description()})"
