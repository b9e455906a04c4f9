"""Running some rows of an ended job again: what `resume` and `retry` share.

Does not know which rows each of them means (`topics.jobs.rerunning`). Not a command itself.

The rows' bodies are not kept in Kafka for ever, so the input is read again; it must be the same.
"""

import argparse
import asyncio
import time
from functools import partial

from rich.console import Console

from topics.jobs.board import Job
from topics.jobs.input_file import InputFile, open_input
from topics.jobs.records import RunKind
from topics.jobs.rerunning import RowsAgain, rows_again
from topics.jobs.row_set import RowSet
from workers.cli import UsageError
from workers.commands.connection import add_kafka_arguments
from workers.commands.job_bars import stderr
from workers.commands.job_connection import JobDesk, duration_s, explained_jobs, job_desk, known_job
from workers.commands.job_input import add_table_arguments, checked_input, row_template
from workers.commands.job_sending import (
    add_waiting_arguments,
    check_waiting,
    send_rows,
    submitting,
    tell_sent,
    wait_and_tell,
)

__all__ = ["add_rerun_arguments", "rerun"]


def add_rerun_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    parser.add_argument("job", help="its id, as `headrace submit` printed it")
    parser.add_argument("--input", metavar="FILE", help="where the job's input is now (where it was)")
    parser.add_argument("--completion-window", type=duration_s, metavar="24h", help="from now (as it was ordered)")
    add_waiting_arguments(parser)
    add_table_arguments(parser)
    parser.add_argument("--json", action="store_true", help="with --wait, print the batch object as JSON")


def rerun(arguments: argparse.Namespace, kind: RunKind) -> int:
    check_waiting(arguments)
    with explained_jobs():
        return asyncio.run(_rerun(arguments, kind, stderr()))


async def _rerun(arguments: argparse.Namespace, kind: RunKind, console: Console) -> int:
    async with job_desk(arguments, kind) as desk:
        job = known_job(desk.board, arguments.job)
        again = None
        if not _broke_off(job, kind):
            again = await rows_again(desk.settings, desk.catalogue, job, kind, partial(_tell_wait, console))
        location = arguments.input or job.order.input_name
        if location == "-" and arguments.input is None:
            raise UsageError(f"{arguments.job} was read from standard input: give its input again with --input")
        with open_input(location, row_template(arguments)) as file:
            if file.fingerprint != job.order.input_fingerprint:
                raise UsageError(f"{location} is not the input of {arguments.job} (any more): give it with --input")
            job = await _send(arguments, desk, job, kind, again, file, console)
        if arguments.wait:
            return await wait_and_tell(arguments, desk, job, console)
        return 1 if job.cancelled else 0


def _tell_wait(console: Console, rows: int) -> None:
    console.print(f"the workers are asked to end {rows:,} rows of the former run: 20 s at most", soft_wrap=True)


def _broke_off(job: Job, kind: RunKind) -> bool:
    """Whether the sending of just such a run was broken off, and is to be gone on with. Raises `UsageError`."""
    run = job.last_run
    if run is None:
        raise UsageError(f"nothing of {job.order.job_id} was sent: use `headrace submit`")
    if run.sent_at_ms is None and run.kind != kind:
        raise UsageError(f"the sending of {job.order.job_id} was broken off: go on with `headrace {run.kind}`")
    return run.sent_at_ms is None


async def _send(
    arguments: argparse.Namespace,
    desk: JobDesk,
    job: Job,
    kind: RunKind,
    again: RowsAgain | None,
    file: InputFile,
    console: Console,
) -> Job:
    begun_s = time.monotonic()
    async with submitting(desk, console) as (submission, bars):
        if again is not None:
            checked = await checked_input(file, bars)
            submission.know(checked)
            # Rows that were refused at submission can't be sent this time either.
            rows = RowSet(checked.rows, (row for row in again.rows if row in checked.good))
            if again.rows and not len(rows):
                raise UsageError(
                    f"the {len(again.rows):,} failed rows of {job.order.job_id} are invalid: correct the input"
                )
            window_s = arguments.completion_window or job.order.completion_window_s
            await submission.begin(job, kind, rows, window_s, answers_before=again.answers_before)
        sent = await send_rows(submission, desk.board.jobs[job.order.job_id], file, bars)
    job = desk.board.jobs[job.order.job_id]
    if again is not None and again.late_answers:
        late = f"{again.late_answers:,} answers that came after its window count now"
        console.print(f"{job.order.job_id}: {late}", soft_wrap=True)
    tell_sent(job, sent, time.monotonic() - begun_s, console)
    return job
