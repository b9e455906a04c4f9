"""The metrics of what a worker has read ahead: a part of the catalogue (`workers.telemetry.metric_catalogue`).

Two bounds: rows, at which a class's partitions pause, and bytes of payloads, at which payloads are evicted and read
again before their requests run.
"""

from workers.telemetry.metric import Kind, Metric

__all__ = ["LOOKAHEAD"]

_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_CLASS = ("class",)

ROWS = Metric("headrace.lookahead.rows", "{request}", _GAUGE, _CLASS, "Requests read from Kafka and not answered.")
ROWS_LIMIT = Metric(
    "headrace.lookahead.rows.limit", "{request}", _GAUGE, _CLASS, "At so many the class's partitions pause."
)
BYTES = Metric("headrace.lookahead.size", "By", _GAUGE, _CLASS, "Their payloads in memory.")
BYTES_LIMIT = Metric(
    "headrace.lookahead.size.limit",
    "By",
    _GAUGE,
    _CLASS,
    "At so many payloads are evicted, those first that will run last, and read again before they are needed.",
)
PAUSED = Metric("headrace.lookahead.paused", "1", _GAUGE, _CLASS, "1 while the class's partitions are paused, else 0.")
BOUND = Metric(
    "headrace.lookahead.bound",
    "1",
    _GAUGE,
    ("class", "bound"),
    "1 while this bound holds, else 0. `rows`: paused. `payload bytes`: requests wait whose payloads are evicted. "
    "`held bytes`: paused, for dead letters that the broker has not taken yet.",
)
EVICTED = Metric(
    "headrace.payload.evicted", "{request}", _GAUGE, _CLASS, "Requests that wait and whose payload is not in memory."
)
EVICTIONS = Metric("headrace.payload.evictions", "{payload}", _COUNTER, _CLASS, "Payloads evicted.")
REFETCHES = Metric(
    "headrace.payload.refetches",
    "{payload}",
    _COUNTER,
    ("class", "outcome"),
    "Payloads read again: `asked` for by a request whose turn came, `beside` such a one in the log, or `gone` from the "
    "topic by retention or compaction: that request is answered with an error (`record_gone`).",
)
REFETCH_TIME = Metric(
    "headrace.payload.refetch.time",
    "s",
    _HISTOGRAM,
    _CLASS,
    "From asking for an evicted payload to having it. It is asked for when its prompt is to be prepared, which is "
    "ahead of when it runs.",
    (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0),
)

LOOKAHEAD = (
    ROWS,
    ROWS_LIMIT,
    BYTES,
    BYTES_LIMIT,
    PAUSED,
    BOUND,
    EVICTED,
    EVICTIONS,
    REFETCHES,
    REFETCH_TIME,
)
