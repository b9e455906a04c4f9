"""The state of a job, as OpenAI's batch object."""

import warnings
from typing import Any

import pytest
from openai.types import Batch

from benchmarks.batch_format import BATCH, schema_of
from tests.topics.jobs.job_rig import cancelled_job, job, order, run
from topics.jobs.board import Job
from topics.jobs.records import JobUsage, OrderProblem
from topics.jobs.state import JobState, Standing, batch_object, state_of


def standing(**counts: Any) -> Standing:
    fields = {"total": 10, "completed": 0, "failed": 0, "expired": 0, "cancelled": 0}
    return Standing(**fields | {"usage": JobUsage(), "model": None, "last_reply_ms": 30_000} | counts)


def failed_job() -> Job:
    problem = OrderProblem(code="invalid_json_line", line=3, message="line is not JSON.", param="line")
    return Job(order(problems=(problem,), problem_count=1))


CASES = {
    JobState.VALIDATING: (Job(order(None)), standing(total=0)),
    JobState.FAILED: (failed_job(), standing()),
    JobState.IN_PROGRESS: (job(), standing(completed=9)),
    JobState.CANCELLING: (cancelled_job(), standing(completed=3)),
    JobState.FINALIZING: (job(), standing(completed=10, finalizing_at_ms=40_000)),
    JobState.COMPLETED: (job(), standing(completed=8, failed=2)),
    JobState.EXPIRED: (job(), standing(completed=8, failed=1, expired=1)),
    JobState.CANCELLED: (cancelled_job(), standing(completed=7, cancelled=2, expired=1)),
}


@pytest.mark.parametrize("state", CASES)
def test_each_state_follows_from_what_is_written(state: JobState) -> None:
    assert state_of(*CASES[state]) is state


def test_a_job_of_which_every_row_failed_is_completed() -> None:
    assert state_of(job(), standing(failed=10)) is JobState.COMPLETED


def test_a_job_whose_rows_were_cancelled_one_by_one_is_cancelled() -> None:
    assert state_of(job(), standing(completed=8, cancelled=2)) is JobState.CANCELLED


def test_a_job_that_was_cancelled_before_its_first_row_is_so_at_once() -> None:
    ordered = cancelled_job()
    ordered.runs.clear()
    assert state_of(ordered, standing(total=0)) is JobState.CANCELLED


def test_a_job_that_is_resumed_is_not_cancelled_any_more() -> None:
    resumed = cancelled_job()
    resumed.runs[2] = run(2, begun_ms=30_000)
    batch = batch_object(resumed, standing(completed=3))
    assert (batch["status"], batch["cancelling_at"]) == ("in_progress", None)


def test_a_job_that_was_refused_and_ordered_anew_is_another_one() -> None:
    again = cancelled_job()
    again.order = order(created_at_ms=5_000)
    assert state_of(again, standing(completed=3)) is JobState.IN_PROGRESS


@pytest.mark.parametrize("state", CASES)
def test_openais_package_reads_every_state(state: JobState) -> None:
    batch = batch_object(*CASES[state])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = Batch.model_validate(batch, strict=True)
    assert read.status == state.value
    assert read.model_extra in (None, {})
    assert read.to_dict(exclude_unset=True) == batch


@pytest.mark.parametrize("state", CASES)
def test_every_state_is_in_openais_format(state: JobState) -> None:
    schema_of(BATCH).validate(batch_object(*CASES[state]))


def test_times_belong_to_states() -> None:
    begun = run(begun_ms=2_000)
    done = batch_object(job(10, begun), standing(completed=10, finalizing_at_ms=40_000, ended_at_ms=41_000))
    assert (done["in_progress_at"], done["expires_at"]) == (2, 62)
    assert (done["finalizing_at"], done["completed_at"], done["expired_at"]) == (40, 41, None)
    expired = batch_object(job(10, begun), standing(completed=9, expired=1))
    assert (expired["completed_at"], expired["expired_at"]) == (None, 62)
    cancelled = batch_object(cancelled_job(10, begun), standing(completed=9, cancelled=1))
    assert (cancelled["cancelling_at"], cancelled["cancelled_at"], cancelled["completed_at"]) == (20, 30, None)


def test_counts_add_up() -> None:
    counts = batch_object(job(), standing(completed=5, failed=2, expired=3))["request_counts"]
    assert counts == {"total": 10, "completed": 5, "failed": 5}
