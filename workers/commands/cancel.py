"""End a request, a job, or all that a tenant has sent; what is sent afterwards is served.

  headrace cancel REQUEST
  headrace cancel JOB
  headrace cancel --job JOB
  headrace cancel --tenant TENANT

What waits or runs is answered with the error `cancelled`; what is answered already stays so. Of a job that was
submitted nothing more is sent; `headrace resume` runs the rest later. Returns when every live worker has the order,
with exit code 1 if one has not within --wait seconds (it obeys when it comes back).
"""

import argparse
import asyncio

from topics.catalogue import Catalogue
from topics.control_log import ControlDesk
from topics.control_records import CANCEL_KEPT_S, CancelOrder, cancel_order
from topics.jobs.desk import cancel_submitted
from workers.cli import UsageError
from workers.commands.connection import add_kafka_arguments, connection, kafka_config
from workers.commands.control_view import add_wait_argument, print_applied
from workers.commands.job_connection import explained_jobs

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    parser.add_argument("request", nargs="?", metavar="REQUEST", help="its request id, or a job that was submitted")
    parser.add_argument("--job", metavar="JOB", help="all requests of this job")
    parser.add_argument("--tenant", metavar="TENANT", help="all requests of this tenant")
    parser.add_argument(
        "--keep-s",
        type=float,
        default=CANCEL_KEPT_S,
        metavar="S",
        help="how long workers remember it, for requests that none has read yet (a day; a submitted job's window)",
    )
    add_wait_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        order = cancel_order(arguments.request, job=arguments.job, tenant=arguments.tenant, keep_s=arguments.keep_s)
    except ValueError as error:
        raise UsageError(str(error)) from error
    with explained_jobs():
        return asyncio.run(_cancel(order, arguments))


async def _cancel(order: CancelOrder, arguments: argparse.Namespace) -> int:
    config = kafka_config(arguments)
    catalogue = Catalogue(prefix=config.topic_prefix, group_prefix=config.group_prefix)
    settings = connection(config, "headrace-cancel")
    submitted = None if order.scope == "tenant" else await cancel_submitted(settings, catalogue, order.name)
    async with ControlDesk(settings, catalogue) as desk:
        offset = await desk.write(order) if submitted is None else submitted
        notice = await desk.wait_applied(offset, arguments.wait)
    scope = order.scope if submitted is None else "job"
    return print_applied(f"cancel {scope} {order.name}", notice, as_json=arguments.json)
