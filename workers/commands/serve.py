"""Run a worker against a Kafka cluster.

  headrace serve --bootstrap-servers broker:9092
  headrace serve --classes p0,p1 --model ./my-model --device cuda:0
  headrace serve --devices 0-7                 one worker process an accelerator
  headrace serve --devices 0-7 --tensor-parallel 2     four workers of two accelerators in a row each

The topics must exist (`headrace topics create`). SIGTERM drains: nothing new starts, what runs may finish within
egress.drain_grace_s, the rest is left for the next worker, offsets are committed, exit code 0. SIGHUP reads the
class tree (scheduling.tree) again, without losing a request or a debt.
"""

import argparse
import asyncio
import logging
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console

from scheduling.tree import TreeError
from workers.cli import UsageError
from workers.commands.connection import add_kafka_arguments, connection
from workers.commands.explained import explained
from workers.commands.serving import (
    add_worker_arguments,
    check_this_machine,
    claimed_instance,
    load_with_progress,
    print_ready,
    stop_on_signals,
    worker_config,
)
from workers.configuration.config import WorkerConfig
from workers.http_endpoint import HttpEndpointError
from workers.supervisor import parse_devices, supervise

if TYPE_CHECKING:
    from workers.worker import Worker

__all__ = ["add_arguments", "run"]

log = logging.getLogger(__name__)

_PASSED_ON = (
    "bootstrap_servers",
    "topic_prefix",
    "config",
    "log_level",
    "log_format",
    "model",
    "dtype",
    "policy",
    "classes",
    "max_sequences",
    "tensor_parallel",
)
"""Flags that each worker of `--devices` gets too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    add_worker_arguments(parser)
    parser.add_argument("--classes", metavar="P0,P1", help="the priority classes to serve (all)")
    parser.add_argument("--devices", metavar="0-7", help="one worker process for each of these CUDA devices")
    parser.add_argument(
        "--tensor-parallel", type=int, metavar="N", help="devices that share one model (engine.tensor_parallel)"
    )
    parser.add_argument("--health-file", metavar="FILE", help="touched while progress is made (health.file)")
    parser.add_argument("--listen", metavar="HOST:PORT", help="an HTTP server with /livez and /readyz (health.listen)")
    parser.add_argument("--json", action="store_true", help="print one JSON line when ready (with --devices: each)")
    # The supervisor's: the worker drains when this pipe closes.
    parser.add_argument("--ends-with", type=int, metavar="FD", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    config = worker_config(arguments)
    with explained():
        connection(config.kafka, config.kafka.client_id).client_arguments("check")  # reads the TLS files
        if arguments.devices is not None:
            return _supervise(arguments, config)
        check_this_machine(config)
        asyncio.run(_serve(config, arguments))
    return 0


def _supervise(arguments: argparse.Namespace, config: WorkerConfig) -> int:
    if arguments.device is not None:
        raise UsageError("--device and --devices exclude each other: name one device, or several")
    try:
        devices = parse_devices(arguments.devices)
    except ValueError as error:
        raise UsageError(str(error)) from error
    ranks = config.engine.tensor_parallel
    if len(devices) % ranks:
        raise UsageError(
            f"--devices names {len(devices)} devices, which can't be divided among workers of {ranks} each "
            "(engine.tensor_parallel): name a multiple of that"
        )
    check_this_machine(config)
    given = [
        f"--{name.replace('_', '-')}={value}" for name in _PASSED_ON if (value := getattr(arguments, name)) is not None
    ]
    if arguments.json:
        given.append("--json")
    return asyncio.run(
        supervise(
            devices[::ranks],
            given,
            health_file=config.health.file,
            listen=config.health.listen,
            metrics_port=config.telemetry.metrics_port,
        )
    )


async def _serve(config: WorkerConfig, arguments: argparse.Namespace) -> None:
    console = Console(stderr=True)
    with stop_on_signals(arguments.ends_with) as stop:
        model = await asyncio.to_thread(load_with_progress, config, console)
        from workers.telemetry.telemetry import tracer_provider
        from workers.watchdog import WAY_OUT_S, end_within
        from workers.worker import TopicsNotReadyError, Worker, WorkerFailedError

        console.print(model.summary)
        provider = tracer_provider()
        try:
            with (
                explained(TopicsNotReadyError, WorkerFailedError, HttpEndpointError),
                claimed_instance(config) as instance,
            ):
                kafka = connection(config.kafka, config.kafka.client_id)
                worker = Worker(
                    config,
                    model,
                    kafka,
                    provider.get_tracer("headrace"),
                    instance=instance.name,
                    on_progress=console.print,
                )
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload_tree, worker, arguments)
                if arguments.json:
                    await _run_announced(worker, stop, lambda: print_ready(config, model))
                else:
                    await worker.run(stop)
        except BaseException:
            # What broke the worker (a device that is gone, a step that hangs) may also hold up its end.
            end_within(WAY_OUT_S)
            raise
        finally:
            await asyncio.to_thread(provider.shutdown)


def _reload_tree(worker: "Worker", arguments: argparse.Namespace) -> None:
    """SIGHUP: the class tree of the configuration file, as it is now."""
    try:
        worker.reload_tree(worker_config(arguments))
    except (UsageError, TreeError) as error:
        log.error("the class tree stays as it was: %s", error)


async def _run_announced(worker: "Worker", stop: asyncio.Event, announce: Callable[[], None]) -> None:
    """Run the worker, and call `announce` once when it is ready."""

    async def when_ready() -> None:
        await worker.ready.wait()
        announce()

    announcing = asyncio.create_task(when_ready())
    try:
        await worker.run(stop)
    finally:
        announcing.cancel()
        await asyncio.wait({announcing})
    if not announcing.cancelled():
        announcing.result()
