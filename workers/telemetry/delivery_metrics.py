"""Metrics of what comes from Kafka and goes back: read from the worker's statistics.

Knows consumers, the residency, payloads and producers by their statistics, and the names their figures go under.
"""

from workers.intake.residency import Bound
from workers.telemetry import metric_catalogue as ours
from workers.telemetry import metric_conventions as conventions
from workers.telemetry import metric_lookahead as lookahead
from workers.telemetry.metric_store import Reading
from workers.worker_statistics import WorkerStatistics

__all__ = ["read_delivery"]

_SYSTEM = "kafka"


def read_delivery(reading: Reading, statistics: WorkerStatistics, deltas_topic: str) -> None:
    for priority, consumer in statistics.consumers.items():
        label = priority.label
        reading.set(conventions.CONSUMED_MESSAGES, consumer.records, _SYSTEM, "poll", consumer.topic)
        reading.set(ours.COMMIT_LAG, consumer.unread + consumer.resident, label)
        reading.set(ours.BEYOND_BASE, consumer.completed_beyond_base, label)
        reading.set(ours.REBALANCES, consumer.rebalances, label)
        transactions = statistics.transactions.get(priority)
        made, rejected = consumer.commits, consumer.commits_rejected
        if transactions is not None:
            made, rejected = made + transactions.committed, rejected + transactions.fenced
        for outcome, count in (("made", made), ("rejected", rejected), ("failed", consumer.commits_failed)):
            reading.set(ours.COMMITS, count, label, outcome)
    for priority, share in statistics.residency.items():
        label = priority.label
        reading.set(lookahead.ROWS, share.rows, label)
        reading.set(lookahead.ROWS_LIMIT, share.max_rows, label)
        reading.set(lookahead.PAUSED, int(share.paused), label)
        for bound in Bound:
            reading.set(lookahead.BOUND, int(share.paused_by is bound), label, bound.value)
    for priority, source in statistics.payloads.items():
        label, held = priority.label, source.payloads
        reading.set(lookahead.BYTES, held.bytes, label)
        reading.set(lookahead.BYTES_LIMIT, held.max_bytes, label)
        reading.set(lookahead.BOUND, int(held.evicted > 0), label, "payload bytes")
        reading.set(lookahead.EVICTED, held.evicted, label)
        reading.set(lookahead.EVICTIONS, held.evictions, label)
        for outcome, count in (("asked", source.fetched), ("beside", source.restored), ("gone", source.gone)):
            reading.set(lookahead.REFETCHES, count, label, outcome)
        reading.distribution(lookahead.REFETCH_TIME, source.fetch_time, label)
    reading.set(conventions.SENT_MESSAGES, statistics.deltas.acknowledged, _SYSTEM, "send", deltas_topic)
    reading.set(ours.UNDELIVERED, statistics.undelivered_bytes)
