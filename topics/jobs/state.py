"""The state of a job, as a function of what is written of it: OpenAI's batch object.

Knows states, times and counts. Does not know where the numbers come from: a tally of the replies or a collector's memo.
Pure; time is an argument.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from topics.jobs.board import Job
from topics.jobs.records import JobMemo, JobUsage
from topics.jobs.tally import Tallied

__all__ = ["JobState", "Standing", "batch_object", "standing_of_memo", "standing_of_tally", "state_of"]


class JobState(StrEnum):
    VALIDATING = "validating"
    """The input is being checked; nothing has been sent."""
    FAILED = "failed"
    """The input was refused; nothing was sent."""
    IN_PROGRESS = "in_progress"
    """Rows are sent and answered."""
    CANCELLING = "cancelling"
    """Somebody cancelled it; some rows are not known to have ended yet."""
    FINALIZING = "finalizing"
    """Every row has its fate; the result files are being written."""
    COMPLETED = "completed"
    """Every row was answered, be it with an error."""
    EXPIRED = "expired"
    """The window closed before every row was run. What was done by then is there."""
    CANCELLED = "cancelled"
    """It was cancelled, or all rows that it didn't run were. What was done by then is there."""

    @property
    def ended(self) -> bool:
        return self in (JobState.FAILED, JobState.COMPLETED, JobState.EXPIRED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a job has come."""

    total: int
    completed: int
    failed: int
    """Answered with an error."""
    expired: int
    cancelled: int
    usage: JobUsage
    model: str | None
    last_reply_ms: int | None
    finalizing_at_ms: int | None = None
    ended_at_ms: int | None = None
    """When the files were written; None where no collector writes them."""
    output: str | None = None
    errors: str | None = None

    @property
    def pending(self) -> int:
        return self.total - self.completed - self.failed - self.expired - self.cancelled


def standing_of_tally(total: int, tallied: Tallied) -> Standing:
    return Standing(
        total=total,
        completed=tallied.completed,
        failed=tallied.failed,
        expired=tallied.expired,
        cancelled=tallied.cancelled,
        usage=tallied.usage,
        model=tallied.model,
        last_reply_ms=tallied.last_reply_ms,
    )


def standing_of_memo(total: int, memo: JobMemo) -> Standing:
    return Standing(
        total=total,
        completed=memo.completed,
        failed=memo.failed,
        expired=memo.expired,
        cancelled=memo.cancelled,
        usage=memo.usage,
        model=memo.model,
        last_reply_ms=memo.last_reply_ms,
        finalizing_at_ms=memo.finalizing_at_ms,
        ended_at_ms=memo.ended_at_ms,
        output=memo.output,
        errors=memo.errors,
    )


def state_of(job: Job, standing: Standing) -> JobState:
    if job.order.problem_count:
        return JobState.FAILED
    if not job.runs:
        return JobState.CANCELLED if job.cancelled else JobState.VALIDATING
    if standing.pending:
        return JobState.CANCELLING if job.cancelled else JobState.IN_PROGRESS
    if standing.finalizing_at_ms is not None and standing.ended_at_ms is None:
        return JobState.FINALIZING
    if job.cancelled:
        return JobState.CANCELLED
    if standing.expired:
        return JobState.EXPIRED
    return JobState.CANCELLED if standing.cancelled else JobState.COMPLETED


def batch_object(job: Job, standing: Standing) -> dict[str, Any]:
    """OpenAI's batch object. `failed` in its counts are all rows without an answer of status 200."""
    order, state, run = job.order, state_of(job, standing), job.last_run
    ended_ms = standing.ended_at_ms or standing.last_reply_ms
    if state is JobState.EXPIRED and run is not None:
        ended_ms = max(ended_ms or 0, run.expires_at_ms)
    asked_ms = job.cancel.asked_at_ms if job.cancel is not None and job.cancelled else None
    if state is JobState.CANCELLED and asked_ms is not None:
        ended_ms = max(ended_ms or 0, asked_ms)
    usage = standing.usage
    return {
        "id": order.job_id,
        "object": "batch",
        "endpoint": order.endpoint or "",
        "model": standing.model,
        "errors": _errors(job),
        "input_file_id": order.input_name,
        "completion_window": window_text(order.completion_window_s),
        "status": state.value,
        "output_file_id": standing.output,
        "error_file_id": standing.errors,
        "created_at": order.created_at_ms // 1000,
        "in_progress_at": _seconds(job.runs[1].created_at_ms if job.runs else None),
        "expires_at": _seconds(None if run is None else run.expires_at_ms),
        "finalizing_at": _seconds(standing.finalizing_at_ms),
        "completed_at": _seconds(ended_ms if state is JobState.COMPLETED else None),
        "failed_at": _seconds(order.created_at_ms if state is JobState.FAILED else None),
        "expired_at": _seconds(ended_ms if state is JobState.EXPIRED else None),
        "cancelling_at": _seconds(asked_ms),
        "cancelled_at": _seconds(ended_ms if state is JobState.CANCELLED else None),
        "request_counts": {
            "total": standing.total,
            "completed": standing.completed,
            "failed": standing.failed + standing.expired + standing.cancelled,
        },
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
        "metadata": order.metadata,
    }


def window_text(seconds: int) -> str:
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _errors(job: Job) -> dict[str, Any] | None:
    if not job.order.problem_count:
        return None
    data = [problem.model_dump() for problem in job.order.problems]
    return {"object": "list", "data": data}


def _seconds(ms: int | None) -> int | None:
    return None if ms is None else ms // 1000
