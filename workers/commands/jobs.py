"""List the jobs, newest first."""

import argparse
import asyncio

from topics.jobs.follower import standings
from topics.jobs.state import batch_object
from workers.commands.connection import add_kafka_arguments
from workers.commands.job_connection import explained_jobs, job_desk
from workers.commands.job_view import job_table, print_json

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    parser.add_argument("--tenant", help="only this one's")
    parser.add_argument("--json", action="store_true", help="print one batch object a line")


def run(arguments: argparse.Namespace) -> int:
    with explained_jobs():
        return asyncio.run(_jobs(arguments))


async def _jobs(arguments: argparse.Namespace) -> int:
    async with job_desk(arguments, "jobs") as desk:
        jobs = [job for job in desk.board.jobs.values() if arguments.tenant in (None, job.order.tenant)]
        found = await standings(desk.settings, desk.catalogue, desk.board, jobs)
    pairs = [(job, found[job.order.job_id]) for job in jobs]
    if arguments.json:
        for job, standing in sorted(pairs, key=lambda pair: -pair[0].order.created_at_ms):
            print_json(batch_object(job, standing))
    elif pairs:
        print(job_table(pairs))
    else:
        print("there are no jobs: `headrace submit` makes one")
    return 0
