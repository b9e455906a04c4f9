"""What `serve`, `dev` and `demo` share: the flags of a worker, the model with its progress shown, stop signals.

Knows flags, signals and what is printed on the way. Not a command itself. torch is imported when a model is loaded.
"""

import argparse
import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from workers.cli import UsageError
from workers.config import ConfigError, WorkerConfig, load_config

if TYPE_CHECKING:
    from workers.loaded_model import LoadedModel

__all__ = ["add_worker_arguments", "load_with_progress", "stop_on_signals", "worker_config"]

_SETTINGS = {
    "bootstrap_servers": ("kafka", "bootstrap_servers"),
    "topic_prefix": ("kafka", "topic_prefix"),
    "model": ("model", "source"),
    "device": ("engine", "device"),
    "dtype": ("engine", "dtype"),
    "max_sequences": ("engine", "max_sequences"),
    "policy": ("scheduling", "policy"),
    "health_file": ("health", "file"),
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
    parser.add_argument("--policy", help="the queueing discipline: htb, strict or fifo (scheduling.policy)")


def worker_config(arguments: argparse.Namespace, **fixed: dict[str, Any]) -> WorkerConfig:
    """The effective configuration, this command's flags over everything, `fixed` sections' fields over those.

    Raises `UsageError`.
    """
    flags: dict[str, Any] = {}
    for flag, (section, field) in _SETTINGS.items():
        value = getattr(arguments, flag, None)
        if value is not None:
            flags.setdefault(section, {})[field] = value
    if getattr(arguments, "classes", None) is not None:
        flags["classes"] = arguments.classes
    for section, fields in fixed.items():
        flags[section] = flags.get(section, {}) | fields
    try:
        return load_config(flags)
    except ConfigError as error:
        raise UsageError(str(error)) from error


def load_with_progress(config: WorkerConfig, console: Console) -> "LoadedModel":
    """The model, warm. What is wrong with it is the user's to mend: raises `UsageError`."""
    with console.status("Importing torch and transformers …") as status:
        # Seconds of imports, so they belong behind the spinner.
        from kvcache.sizing import PoolSizeError
        from workers.errors import DeviceError, ModelError
        from workers.loaded_model import load_model

        def show(line: str) -> None:
            status.update(line)
            if not console.is_terminal:
                console.print(line)

        try:
            return load_model(config.model, config.engine, show)
        except (ModelError, DeviceError, PoolSizeError) as error:
            raise UsageError(str(error)) from error


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set. A second signal ends the process the hard way."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def on_signal() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
