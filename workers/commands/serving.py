"""What `serve`, `dev` and `demo` share: the flags of a worker, the model with its progress shown, stop signals.

Knows flags, signals and what is printed on the way. Not a command itself; what went wrong is told by
`workers.commands.explained`. torch is imported when a model is loaded.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console

from scheduling.policies import POLICIES
from topics.extras import how_to_install
from workers.cli import UsageError
from workers.commands.explained import explained
from workers.configuration.config import ConfigError, WorkerConfig, load_config
from workers.instance import Instance

if TYPE_CHECKING:
    from workers.models.loaded_model import LoadedModel

__all__ = [
    "add_worker_arguments",
    "check_this_machine",
    "claimed_instance",
    "load_with_progress",
    "local_kafka",
    "print_ready",
    "stop_on_signals",
    "worker_config",
]

_WORKER_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "psutil", "gguf", "jinja2", "safetensors")

_SETTINGS = {
    "bootstrap_servers": ("kafka", "bootstrap_servers"),
    "topic_prefix": ("kafka", "topic_prefix"),
    "model": ("model", "source"),
    "device": ("engine", "device"),
    "dtype": ("engine", "dtype"),
    "max_sequences": ("engine", "max_sequences"),
    "tensor_parallel": ("engine", "tensor_parallel"),
    "policy": ("scheduling", "policy"),
    "health_file": ("health", "file"),
    "listen": ("health", "listen"),
    "metrics_port": ("telemetry", "metrics_port"),
}
"""Flag → section and field."""


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", metavar="SOURCE", help="Hugging Face id, folder, .gguf file or smollm2 (model.source)"
    )
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N (engine.device)")
    parser.add_argument("--dtype", help="auto, float32, bfloat16 or float16 (engine.dtype)")
    parser.add_argument(
        "--max-sequences", type=int, metavar="N", help="requests that run at once (engine.max_sequences)"
    )
    parser.add_argument(
        "--metrics-port", type=int, metavar="N", help="Prometheus endpoint on this port (telemetry.metrics_port)"
    )
    parser.add_argument("--policy", help=f"the queueing discipline: {', '.join(POLICIES)} (scheduling.policy)")


def worker_config(
    arguments: argparse.Namespace, *, classes: tuple[str, ...] | None = None, **fixed: dict[str, Any]
) -> WorkerConfig:
    """The effective configuration, this command's flags over everything, `fixed` sections' fields over those.

    `classes` is fixed likewise. Raises `UsageError`.
    """
    flags: dict[str, Any] = {}
    for flag, (section, field) in _SETTINGS.items():
        value = getattr(arguments, flag, None)
        if value is not None:
            flags.setdefault(section, {})[field] = value
    if (named := classes or getattr(arguments, "classes", None)) is not None:
        flags["classes"] = named
    for section, fields in fixed.items():
        flags[section] = flags.get(section, {}) | fields
    try:
        return load_config(flags)
    except ConfigError as error:
        raise UsageError(str(error)) from error


def local_kafka(bootstrap_servers: str) -> dict[str, Any]:
    """Of the kafka section, what a broker on this machine fixes: it speaks neither TLS nor SASL."""
    return {"bootstrap_servers": bootstrap_servers, "security_protocol": "PLAINTEXT"}


def check_this_machine(config: WorkerConfig) -> None:
    """What can be found wrong before anything starts: seconds of imports, a broker, a model. Raises `UsageError`."""
    missing = [name for name in _WORKER_PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(f"a worker needs {', '.join(missing)}, not installed: {how_to_install('worker')}")
    if (file := config.health.file) is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # One that a killed worker left behind goes too: a worker that is not up yet is not healthy.
            file.touch()
            file.unlink()
        except OSError as error:
            raise UsageError(f"health.file = {str(file)!r} can't be written: {error.strerror}") from error


def print_ready(config: WorkerConfig, model: "LoadedModel") -> None:
    """The one line of `--json`, on standard output."""
    ready = {
        "event": "ready",
        "bootstrap_servers": config.kafka.bootstrap_servers,
        "topic_prefix": config.kafka.topic_prefix,
        "classes": config.classes,
        "model": model.served_names[0],
        "pid": os.getpid(),
    }
    sys.stdout.buffer.write(orjson.dumps(ready) + b"\n")
    sys.stdout.buffer.flush()


def claimed_instance(config: WorkerConfig) -> Instance:
    """This worker's name, once the block is entered. Raises `InstanceError` then if there is none to be had."""
    return Instance(f"{config.kafka.bootstrap_servers} {config.kafka.topic_prefix}", config.kafka.instance_id)


def load_with_progress(config: WorkerConfig, console: Console) -> "LoadedModel":
    """The model, warm. What is wrong with it is the user's to mend: raises `UsageError`."""
    with console.status("Importing torch and transformers …") as status:
        # Seconds of imports, so they belong behind the spinner.
        from workers.models.loaded_model import load_model

        def show(line: str) -> None:
            status.update(line)
            if not console.is_terminal:
                console.print(line)

        with explained():
            return load_model(config.model, config.engine, config.kv, show)


@contextmanager
def stop_on_signals(ends_with: int | None = None) -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set. A second signal ends the process the hard way.

    `ends_with`: the reading end of a pipe; the event is set too when nobody holds its writing end any more.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def on_signal() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    def on_pipe(pipe: int) -> None:
        stop.set()
        loop.remove_reader(pipe)  # it stays readable

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    if ends_with is not None:
        loop.add_reader(ends_with, on_pipe, ends_with)
    try:
        yield stop
    finally:
        if ends_with is not None:
            loop.remove_reader(ends_with)
        for number in numbers:
            loop.remove_signal_handler(number)
