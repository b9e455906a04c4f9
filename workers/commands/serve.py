"""Run a worker against a Kafka cluster.

  headrace serve --bootstrap-servers broker:9092
  headrace serve --classes p0,p1 --model ./my-model --device cuda:0
  headrace serve --devices 0-7                 one worker process an accelerator

The topics must exist (`headrace topics create`). SIGTERM drains: nothing new starts, what runs may finish within
egress.drain_grace_s, the rest is left for the next worker, offsets are committed, exit code 0.
"""

import argparse
import asyncio
import sys

from rich.console import Console

from workers.cli import UsageError
from workers.commands.connection import add_kafka_arguments, connection
from workers.commands.serving import add_worker_arguments, load_with_progress, stop_on_signals, worker_config
from workers.config import WorkerConfig
from workers.supervisor import parse_devices, supervise

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    add_worker_arguments(parser)
    parser.add_argument("--classes", metavar="P0,P1", help="the priority classes to serve (all)")
    parser.add_argument("--devices", metavar="0-7", help="one worker process for each of these CUDA devices")
    parser.add_argument("--health-file", metavar="FILE", help="touched while progress is made (health.file)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.devices is not None:
        return _supervise(arguments)
    config = worker_config(arguments)
    console = Console(stderr=True)
    return asyncio.run(_serve(config, console))


def _supervise(arguments: argparse.Namespace) -> int:
    if arguments.device is not None:
        raise UsageError("--device and --devices exclude each other: name one device, or several")
    try:
        devices = parse_devices(arguments.devices)
    except ValueError as error:
        raise UsageError(str(error)) from error
    worker_config(arguments)  # what is wrong in it is said once, not once a device
    passed_on = ["bootstrap_servers", "topic_prefix", "config", "log_level", "model", "dtype", "policy", "classes"]
    passed_on.append("max_sequences")
    given = [
        f"--{name.replace('_', '-')}={value}" for name in passed_on if (value := getattr(arguments, name)) is not None
    ]
    return asyncio.run(supervise(devices, given, health_file=arguments.health_file))


async def _serve(config: WorkerConfig, console: Console) -> int:
    with stop_on_signals() as stop:
        model = await asyncio.to_thread(load_with_progress, config, console)
        from topics.aiokafka_producer import KafkaUnavailableError
        from workers.telemetry import tracer_provider
        from workers.worker import TopicsNotReadyError, Worker, WorkerFailedError

        console.print(model.summary)
        provider = tracer_provider()
        try:
            kafka = connection(config.kafka, config.kafka.client_id)
            worker = Worker(config, model, kafka, provider.get_tracer("headrace"), on_progress=console.print)
            await worker.run(stop)
        except (TopicsNotReadyError, KafkaUnavailableError, WorkerFailedError) as error:
            print(f"headrace: {error}", file=sys.stderr)
            return 1
        finally:
            await asyncio.to_thread(provider.shutdown)
    return 0
