"""What is said of a job in words, and as JSON.

Knows words. Does not know where states come from, or bars and tables
(`workers.commands.job_bars`). Not a command itself.
"""

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from topics.jobs.board import Job
from topics.jobs.state import Standing, batch_object, state_of

__all__ = ["job_table", "print_batch", "print_json", "summary"]


def print_json(document: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(document) + b"\n")
    sys.stdout.buffer.flush()


def summary(job: Job, standing: Standing) -> str:
    """`batch_…: completed, 1,980 done, 20 failed of 2,000; 31,234 + 12,345 tokens`."""
    parts = [f"{standing.completed:,} done"]
    for count, word in (
        (standing.failed, "failed"),
        (standing.expired, "expired"),
        (standing.cancelled, "cancelled"),
        (standing.pending, "to go"),
    ):
        if count:
            parts.append(f"{count:,} {word}")
    usage = standing.usage
    return (
        f"{job.order.job_id}: {state_of(job, standing)}, {', '.join(parts)} of {standing.total:,}; "
        f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens"
    )


def print_batch(job: Job, standing: Standing) -> None:
    """All that is known of a job, field by field."""
    batch = batch_object(job, standing)
    print(summary(job, standing))
    for name, value in batch.items():
        if name in ("id", "object", "request_counts", "usage", "errors", "status") or value in (None, {}):
            continue
        print(f"  {name:<18} {_shown(name, value)}")
    for problem in (batch["errors"] or {}).get("data", ()):
        print(f"  line {problem['line']}: {problem['message']}")


def job_table(jobs: Iterable[tuple[Job, Standing]]) -> str:
    """A line a job, newest first."""
    rows: list[tuple[str, ...]] = [("JOB", "STATE", "CLASS", "TENANT", "CREATED", "ROWS", "DONE", "FAILED", "TO GO")]
    for job, standing in sorted(jobs, key=lambda pair: -pair[0].order.created_at_ms):
        order = job.order
        bad = standing.failed + standing.expired + standing.cancelled
        counts = (standing.total, standing.completed, bad, standing.pending)
        created = _time(order.created_at_ms // 1000)
        state = state_of(job, standing).value
        rows.append(
            (order.job_id, state, order.priority, order.tenant or "-", created, *(f"{count:,}" for count in counts))
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = len(widths) - 4
    lines = (
        "  ".join(
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(lines)


def _shown(name: str, value: Any) -> str:
    if name.endswith("_at"):
        return _time(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text}" for key, text in value.items())
    return str(value)


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
