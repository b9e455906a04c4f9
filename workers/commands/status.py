"""How a job goes: its state, counts, times and usage, in the fields of OpenAI's batch object.

headrace status JOB             once
headrace status JOB --watch     with a bar, rate and time left, until it has ended
"""

import argparse
import asyncio

from topics.jobs.follower import standings
from topics.jobs.state import Standing, batch_object, state_of
from workers.commands.connection import add_kafka_arguments
from workers.commands.job_connection import JobDesk, explained_jobs, job_desk, known_job
from workers.commands.job_view import print_batch, print_json

__all__ = ["add_arguments", "run"]

_LOOK_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    parser.add_argument("job", help="its id, as `headrace submit` printed it")
    parser.add_argument("--watch", action="store_true", help="until it has ended")
    parser.add_argument("--json", action="store_true", help="print the batch object; with --watch a line a change")


def run(arguments: argparse.Namespace) -> int:
    with explained_jobs():
        return asyncio.run(_status(arguments))


async def _status(arguments: argparse.Namespace) -> int:
    async with job_desk(arguments, "status") as desk:
        standing = await _standing(desk, arguments.job)
        if arguments.watch:
            standing = await _watch(desk, arguments.job, standing, as_json=arguments.json)
        job = desk.board.jobs[arguments.job]
        if not arguments.json:
            print_batch(job, standing)
        elif not arguments.watch:
            print_json(batch_object(job, standing))
    return 0


async def _watch(desk: JobDesk, job_id: str, standing: Standing, *, as_json: bool) -> Standing:
    """Until the job has ended."""
    from workers.commands.job_bars import answered_bar, progress, stderr  # rich takes longer to load than a status

    told: Standing | None = None
    with progress(stderr()) as bars:
        show = answered_bar(bars)
        while True:
            job = desk.board.jobs[job_id]
            show(standing)
            if as_json and standing != told:
                print_json(batch_object(job, standing))
                told = standing
            if state_of(job, standing).ended:
                return standing
            # A display: this is how often it is drawn anew.
            await asyncio.sleep(_LOOK_S)
            standing = await _standing(desk, job_id)


async def _standing(desk: JobDesk, job_id: str) -> Standing:
    await desk.board.refresh()
    job = known_job(desk.board, job_id)
    return (await standings(desk.settings, desk.catalogue, desk.board, [job]))[job_id]
