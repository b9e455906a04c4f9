"""Submit a file of requests as an offline job.

  headrace submit rows.jsonl --tenant acme                     OpenAI's batch format, one request a line
  headrace submit rows.jsonl --wait --output out.jsonl --errors bad.jsonl
  zcat rows.gz | headrace submit - --job-id nightly-1
  headrace submit reviews.csv --prompt-template "Sentiment of: {text}" --max-tokens 8
  headrace submit rows.jsonl --dry-run

The whole input is checked first, and all that is wrong with it is said with line numbers; --skip-invalid sends the
good rows and answers the bad ones with error lines. Submitting the same input again, after a crash or by mistake, sends
only what is missing. Rows are requests of their class like any other; the job is one flow of its tenant, so it takes
turns with other jobs. When the completion window closes, rows that have not run are not run any more.
"""

import argparse
import asyncio
import time

from rich.console import Console

from topics.admin import KafkaAdmin
from topics.jobs.board import Job
from topics.jobs.checked_input import InvalidInputError
from topics.jobs.input_file import InputFile, open_input
from topics.jobs.records import JobUsage
from topics.jobs.row_ids import check_job_id, derived_job_id
from topics.jobs.state import Standing, batch_object
from topics.jobs.submission import OrderForm, retention_warnings
from workers.cli import UsageError
from workers.commands.connection import add_kafka_arguments
from workers.commands.job_bars import progress, stderr
from workers.commands.job_connection import JobDesk, duration_s, explained_jobs, job_desk
from workers.commands.job_estimate import estimate, print_estimate
from workers.commands.job_input import add_table_arguments, checked_input, row_template
from workers.commands.job_sending import (
    add_waiting_arguments,
    check_waiting,
    send_rows,
    submitting,
    tell_sent,
    wait_and_tell,
)
from workers.commands.job_view import print_json

__all__ = ["add_arguments", "run"]

_MAX_METADATA_PAIRS = 16
_MAX_WEIGHT = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    parser.add_argument("input", help="JSON lines, CSV or Parquet, also gzip or zstd; a path, a URL, or -")
    parser.add_argument("--class", dest="priority", choices=("p0", "p1", "p2", "p3"), default="p3", help="(p3)")
    parser.add_argument("--tenant", help="who pays")
    parser.add_argument("--job-id", metavar="ID", help="(made from the input, the class and the tenant)")
    parser.add_argument("--job-weight", type=int, default=1, metavar="N", help="shares beside the tenant's jobs (1)")
    parser.add_argument("--completion-window", type=duration_s, default=86_400, metavar="24h", help="(24h)")
    parser.add_argument("--metadata", action="append", default=[], metavar="K=V", help="up to 16 pairs")
    parser.add_argument("--skip-invalid", action="store_true", help="answer bad rows as error lines, send the others")
    parser.add_argument("--dry-run", action="store_true", help="say rows, tokens, cost and time; send nothing")
    add_waiting_arguments(parser)
    add_table_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the batch object as JSON")


def run(arguments: argparse.Namespace) -> int:
    check_waiting(arguments)
    if not 1 <= arguments.job_weight <= _MAX_WEIGHT:
        raise UsageError(f"--job-weight {arguments.job_weight}: use 1 to {_MAX_WEIGHT}")
    metadata = _metadata(arguments.metadata)
    console = stderr()
    with explained_jobs(), open_input(arguments.input, row_template(arguments)) as file:
        form = OrderForm(
            job_id=check_job_id(
                arguments.job_id or derived_job_id(file.fingerprint, arguments.priority, arguments.tenant)
            ),
            priority=arguments.priority,
            tenant=arguments.tenant,
            weight=arguments.job_weight,
            completion_window_s=arguments.completion_window,
            metadata=metadata,
        )
        try:
            return asyncio.run(_submit(arguments, form, file, console))
        except InvalidInputError as error:
            _print_problems(error, console)
            return 2


async def _submit(arguments: argparse.Namespace, form: OrderForm, file: InputFile, console: Console) -> int:
    async with job_desk(arguments, "submit") as desk:
        if arguments.dry_run:
            await _dry_run(arguments, desk, form, file, console)
            return 0
        async with KafkaAdmin(desk.settings) as admin:
            for warning in await retention_warnings(admin, desk.catalogue, form.priority, form.completion_window_s):
                console.print(f"warning: {warning}", soft_wrap=True)
        begun_s = time.monotonic()
        async with submitting(desk, console) as (submission, bars):
            job = await submission.order(
                form, file, lambda: checked_input(file, bars), skip_invalid=arguments.skip_invalid
            )
            sent = await send_rows(submission, job, file, bars)
        job = desk.board.jobs[form.job_id]
        tell_sent(job, sent, time.monotonic() - begun_s, console)
        if not arguments.wait:
            if arguments.json:
                print_json(batch_object(job, _unanswered(job)))
            else:
                print(form.job_id)
                console.print(f"See how it goes:  headrace status {form.job_id} --watch", soft_wrap=True)
            return 1 if job.cancelled else 0
        return await wait_and_tell(arguments, desk, job, console)


async def _dry_run(
    arguments: argparse.Namespace, desk: JobDesk, form: OrderForm, file: InputFile, console: Console
) -> None:
    with progress(console) as bars:
        checked = await checked_input(file, bars)
    if checked.problems and not arguments.skip_invalid:
        raise InvalidInputError(checked)
    print_estimate(await estimate(desk, checked), form.job_id, as_json=arguments.json)


def _unanswered(job: Job) -> Standing:
    return Standing(job.order.rows or 0, 0, 0, 0, 0, JobUsage(), None, None)


def _metadata(pairs: list[str]) -> dict[str, str]:
    metadata = dict(pair.partition("=")[::2] for pair in pairs)
    if len(metadata) > _MAX_METADATA_PAIRS:
        raise UsageError(f"--metadata: {len(metadata)} pairs, at most {_MAX_METADATA_PAIRS}")
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not 1 <= len(key) <= 64 or len(value) > 512:
            raise UsageError(f"--metadata {pair[:80]!r}: write key=value, of up to 64 and up to 512 characters")
    return metadata


def _print_problems(error: InvalidInputError, console: Console) -> None:
    for problem in error.problems:
        console.print(f"line {problem.line}: {problem.message}", soft_wrap=True, markup=False)
    if error.count > len(error.problems):
        console.print(f"… and {error.count - len(error.problems):,} more")
    console.print(f"headrace: {error}: correct them, or answer them as error lines with --skip-invalid", soft_wrap=True)
