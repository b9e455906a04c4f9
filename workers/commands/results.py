"""Write what a job has answered so far, whole or partial, read from the reply topic.

headrace results JOB --output out.jsonl --errors bad.jsonl
headrace results JOB --output - --in-order

Answered rows go to --output, the others to --errors; rows that have no answer yet are in neither. Exit code 3 while
rows are still to come.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from topics.jobs.state import batch_object, state_of
from workers.cli import UsageError
from workers.commands.connection import add_kafka_arguments
from workers.commands.job_connection import explained_jobs, job_desk, known_job
from workers.commands.job_view import print_json, summary
from workers.commands.job_waiting import collect_now

__all__ = ["add_arguments", "run"]

_PARTIAL = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    parser.add_argument("job", help="its id, as `headrace submit` printed it")
    parser.add_argument("--output", metavar="FILE", help="of the answered rows; - is standard output")
    parser.add_argument("--errors", type=Path, metavar="FILE", help="of the others")
    parser.add_argument("--in-order", action="store_true", help="in the order of the input")
    parser.add_argument("--json", action="store_true", help="print the batch object as JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.output is None and arguments.errors is None:
        raise UsageError("say where the results go: --output FILE, --errors FILE, or both")
    if arguments.output == "-" and arguments.json:
        raise UsageError("--output - and --json would both print on standard output: choose one")
    with explained_jobs():
        return asyncio.run(_results(arguments))


async def _results(arguments: argparse.Namespace) -> int:
    async with job_desk(arguments, "results") as desk:
        job = known_job(desk.board, arguments.job)
        if job.order.rows is None or not job.runs:
            raise UsageError(f"{arguments.job} has no results: none of its rows was sent")
        with tempfile.TemporaryDirectory(prefix="headrace-output-") as folder:
            to_stdout = arguments.output == "-"
            output = Path(folder) / "output" if to_stdout else arguments.output and Path(arguments.output)
            standing, _ = await collect_now(
                desk, job, output=output, errors=arguments.errors, in_order=arguments.in_order
            )
            if to_stdout and output is not None:
                with output.open("rb") as lines:
                    shutil.copyfileobj(lines, sys.stdout.buffer)
                sys.stdout.buffer.flush()
    if arguments.json:
        print_json(batch_object(job, standing))
    else:
        print(summary(job, standing), file=sys.stderr)
    return 0 if state_of(job, standing).ended else _PARTIAL
