"""Kafka and a worker on this machine, until Ctrl-C.

The broker is Apache Kafka itself, fetched once with Maven; its data stay in the state directory between runs. The line
to try in another terminal is printed when the worker is ready.
"""

import argparse
import asyncio
from pathlib import Path

from rich.console import Console

from topics.local_broker import LocalBroker
from workers.commands.explained import explained
from workers.commands.serving import (
    add_worker_arguments,
    check_this_machine,
    load_with_progress,
    local_kafka,
    print_ready,
    stop_on_signals,
    worker_config,
)
from workers.configuration.config import KafkaConfig, WorkerConfig

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_worker_arguments(parser)
    parser.add_argument("--classes", metavar="P0,P1", help="the priority classes to serve (all)")
    parser.add_argument("--port", type=int, help="the broker's port (a free one)")
    parser.add_argument("--state-dir", type=Path, default=Path(".state/dev"), help="the broker's data (.state/dev)")
    parser.add_argument("--json", action="store_true", help="print one JSON line when ready")


def run(arguments: argparse.Namespace) -> int:
    check_this_machine(worker_config(arguments))  # what is wrong is said before anything starts
    console = Console(stderr=True)
    with (
        explained(),
        LocalBroker(arguments.state_dir, port=arguments.port, on_progress=console.print) as broker,
    ):
        config = worker_config(arguments, kafka=local_kafka(broker.bootstrap_servers))
        asyncio.run(_serve(config, console, as_json=arguments.json))
    return 0


async def _serve(config: WorkerConfig, console: Console, *, as_json: bool) -> None:
    with stop_on_signals() as stop:
        model = await asyncio.to_thread(load_with_progress, config, console)
        from workers.commands.local_worker import local_worker

        async with local_worker(config, model, console):
            if as_json:
                print_ready(config, model)
            console.print(f"\nTry it:  {_send_command(config)}\n", highlight=False, soft_wrap=True)
            await stop.wait()


def _send_command(config: WorkerConfig) -> str:
    """A line for another terminal, whose environment may be another one."""
    words = ["headrace send --bootstrap-servers", config.kafka.bootstrap_servers]
    if (prefix := config.kafka.topic_prefix) != KafkaConfig().topic_prefix:
        words += ["--topic-prefix", prefix]
    if "p1" not in config.classes:
        words += ["--priority", config.classes[0]]  # nobody would answer the default
    return " ".join([*words, '"Why is the sky blue?"'])
