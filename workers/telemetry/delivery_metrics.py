"""Metrics of what comes from Kafka and goes back: read from the worker's statistics.

Knows consumers, the residency and producers by their statistics, and the names their figures go under.
"""

from workers.telemetry import metric_catalogue as ours
from workers.telemetry import metric_conventions as conventions
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
        reading.set(ours.LOOKAHEAD_ROWS, share.rows, label)
        reading.set(ours.LOOKAHEAD_ROWS_LIMIT, share.max_rows, label)
        reading.set(ours.LOOKAHEAD_BYTES, share.bytes, label)
        reading.set(ours.LOOKAHEAD_BYTES_LIMIT, share.max_bytes, label)
        reading.set(ours.LOOKAHEAD_PAUSED, int(share.paused), label)
    reading.set(conventions.SENT_MESSAGES, statistics.deltas.acknowledged, _SYSTEM, "send", deltas_topic)
    reading.set(ours.UNDELIVERED, statistics.undelivered_bytes)
