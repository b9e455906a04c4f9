"""Sending the rows of a job and waiting for its end, with bars: what `submit`, `resume` and `retry` share.

Not a command itself.
"""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from topics.jobs.board import Job
from topics.jobs.input_file import InputFile
from topics.jobs.row_set import RowSet
from topics.jobs.state import batch_object
from topics.jobs.submission import Submission
from workers.cli import UsageError
from workers.commands.client_tracing import client_tracer
from workers.commands.job_bars import answered_bar, progress
from workers.commands.job_connection import JobDesk
from workers.commands.job_view import print_json, summary
from workers.commands.job_waiting import wait_for_job

__all__ = ["add_waiting_arguments", "check_waiting", "send_rows", "submitting", "tell_sent", "wait_and_tell"]


_PACED_ROWS = 1_000


def add_waiting_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wait", action="store_true", help="until every row is answered")
    parser.add_argument("--output", type=Path, metavar="FILE", help="of the answered rows (with --wait)")
    parser.add_argument("--errors", type=Path, metavar="FILE", help="of the others (with --wait)")
    parser.add_argument("--in-order", action="store_true", help="files in the order of the input")


def check_waiting(arguments: argparse.Namespace) -> None:
    """Raises `UsageError`."""
    if (arguments.output or arguments.errors or arguments.in_order) and not arguments.wait:
        raise UsageError("--output, --errors and --in-order need --wait; `headrace results` writes files later")


@asynccontextmanager
async def submitting(desk: JobDesk, console: Console) -> AsyncIterator[tuple[Submission, Progress]]:
    """A submission, whose span is exported where that is asked for, and its bars."""
    async with client_tracer("headrace-submit") as tracer:
        with progress(console) as bars:
            yield Submission(desk.settings, desk.catalogue, desk.board, tracer), bars


async def send_rows(submission: Submission, job: Job, file: InputFile, bars: Progress) -> int:
    assert job.order.rows is not None
    run = job.last_run
    assert run is not None
    again = None if run.rows is None else RowSet.decode(job.order.rows, run.rows)
    bar = bars.add_task("sending", total=job.order.rows - job.order.invalid_rows if again is None else len(again))
    return await submission.send(job, file, lambda rows: bars.update(bar, completed=rows))


def tell_sent(job: Job, sent: int, seconds: float, console: Console) -> None:
    """`seconds`: since the check of the input began."""
    job_id = job.order.job_id
    # Of a few rows it would say how long it takes to connect.
    pace = f" in {seconds:.1f} s ({sent / seconds:,.0f} rows/s, with the check)" if sent >= _PACED_ROWS else ""
    console.print(f"{job_id}: {sent:,} rows sent{pace}", soft_wrap=True)
    if job.cancelled:
        console.print(f"{job_id} was cancelled: `headrace resume {job_id}` runs the rest later", soft_wrap=True)


async def wait_and_tell(arguments: argparse.Namespace, desk: JobDesk, job: Job, console: Console) -> int:
    with progress(console) as bars:
        standing = await wait_for_job(
            desk,
            job,
            answered_bar(bars),
            output=arguments.output,
            errors=arguments.errors,
            in_order=arguments.in_order,
        )
    job = desk.board.jobs[job.order.job_id]
    if arguments.json:
        print_json(batch_object(job, standing))
    else:
        print(summary(job, standing))
    return 0 if standing.completed == standing.total else 1
