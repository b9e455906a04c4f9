"""Kafka and a worker on this machine, until Ctrl-C.

The broker is Apache Kafka itself, fetched once with Maven; its data stay in the state directory between runs. The line
to try in another terminal is printed when the worker is ready.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from rich.console import Console

from topics.kafka_distribution import BrokerError
from topics.local_broker import LocalBroker
from workers.commands.local_worker import local_worker
from workers.commands.serving import add_worker_arguments, load_with_progress, stop_on_signals, worker_config
from workers.config import WorkerConfig

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_worker_arguments(parser)
    parser.add_argument("--classes", metavar="P0,P1", help="the priority classes to serve (all)")
    parser.add_argument("--port", type=int, help="the broker's port (a free one)")
    parser.add_argument("--state-dir", type=Path, default=Path(".state/dev"), help="the broker's data (.state/dev)")


def run(arguments: argparse.Namespace) -> int:
    worker_config(arguments)  # what is wrong in it is said before anything starts
    console = Console(stderr=True)
    try:
        with LocalBroker(arguments.state_dir, port=arguments.port, on_progress=console.print) as broker:
            config = worker_config(arguments, kafka={"bootstrap_servers": broker.bootstrap_servers})
            return asyncio.run(_serve(config, console))
    except BrokerError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1


async def _serve(config: WorkerConfig, console: Console) -> int:
    with stop_on_signals() as stop:
        model = await asyncio.to_thread(load_with_progress, config, console)
        async with local_worker(config, model, console):
            address = config.kafka.bootstrap_servers
            console.print(f'\nTry it:  headrace send --bootstrap-servers {address} "Why is the sky blue?"\n')
            await stop.wait()
    return 0
