"""Gather the results of all jobs into files, until Ctrl-C.

  headrace collect --output-dir results
  headrace collect --output-dir s3://bucket/results --spool /var/spool/headrace

Each job gets a folder with output.jsonl, errors.jsonl and batch.json, which appear whole when it has ended. Several
collectors share the work. A job's state is kept by its collector, so `headrace status` need not count.
"""

import argparse
import asyncio
from pathlib import Path

from topics.catalogue import Catalogue
from topics.jobs.board import Job
from topics.jobs.collector import Collector
from topics.jobs.records import JobMemo
from topics.jobs.result_store import ResultStore
from topics.jobs.state import batch_object, standing_of_memo
from workers.commands.connection import add_kafka_arguments, connection, kafka_config
from workers.commands.job_connection import explained_jobs
from workers.commands.job_view import print_json, summary
from workers.commands.serving import stop_on_signals

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="a folder, or a URL that fsspec knows")
    parser.add_argument(
        "--spool",
        type=Path,
        default=Path(".state/collect"),
        metavar="DIR",
        help="journals, with a URL (.state/collect)",
    )
    parser.add_argument("--in-order", action="store_true", help="files in the order of the input")
    parser.add_argument("--json", action="store_true", help="print the batch object of each job that ends")


def run(arguments: argparse.Namespace) -> int:
    with explained_jobs():
        asyncio.run(_collect(arguments))
    return 0


async def _collect(arguments: argparse.Namespace) -> None:
    config = kafka_config(arguments)

    def on_ended(job: Job, memo: JobMemo) -> None:
        standing = standing_of_memo(job.order.rows or 0, memo)
        if arguments.json:
            print_json(batch_object(job, standing))
        else:
            print(summary(job, standing), flush=True)

    collector = Collector(
        connection(config, "headrace-collect"),
        Catalogue(prefix=config.topic_prefix, group_prefix=config.group_prefix),
        ResultStore(arguments.output_dir, arguments.spool),
        in_order=arguments.in_order,
        on_ended=on_ended,
    )
    with stop_on_signals() as stop:
        await collector.run(stop)
