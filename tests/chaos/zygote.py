"""Worker processes that start in no time: one process imports everything and loads the model, then forks a worker each.

    python -m tests.chaos.zygote sleeping|smollm2

Reads JSON lines: `{"config": {…}, "hook": {"place", "visits", "act", "times"} | null, "mutation": … | null}` starts a
worker. Writes JSON lines `{"event": "started" | "ready" | "at" | "ended", "pid": …}`: of a hook that acts with its
`place` and how many answers were `undelivered`, of an end with how many positions the model has `computed`. Workers log
to standard error. When its input ends, or it dies, all of its workers are killed.

A fork of a process with threads is unsafe; so the parent has none: torch is told to use one.
"""

import asyncio
import json
import logging
import mmap
import os
import select
import signal
import sys
from dataclasses import replace
from typing import Any

from opentelemetry import trace

from tests.chaos.counting_runner import CountingRunner, positions
from tests.chaos.hooks import Hook, install, mutate
from tests.chaos.sleeping_runner import sleeping_model
from workers.commands.connection import connection
from workers.commands.serving import claimed_instance
from workers.configuration.config import WorkerConfig, load_config
from workers.worker import Worker


def say(event: str, **more: Any) -> None:
    line = json.dumps({"event": event, "pid": more.pop("pid", os.getpid()), **more})
    os.write(1, f"{line}\n".encode())  # at once and whole: others write to the same pipe


def main(name: str) -> None:
    model = sleeping_model() if name == "sleeping" else _smollm2()
    say("loaded")
    lifeline, ours = os.pipe()
    computed: dict[int, mmap.mmap] = {}
    """By process: it counts there, however it ends."""
    pending = b""
    try:
        while True:
            if select.select([0], [], [], 0.02)[0]:
                if not (data := os.read(0, 65_536)):
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    counter = mmap.mmap(-1, 8)
                    if pid := os.fork():
                        computed[pid] = counter
                        say("started", pid=pid)
                    else:
                        os.close(ours)
                        counted = replace(model, runner=CountingRunner(model.runner, counter))
                        _worker(json.loads(line), counted, lifeline)
            for pid in [pid for pid in computed if os.waitpid(pid, os.WNOHANG)[0]]:
                say("ended", pid=pid, computed=positions(computed.pop(pid)))
    finally:
        for pid in computed:
            os.kill(pid, signal.SIGKILL)


def _smollm2() -> Any:
    import torch

    from workers.models.loaded_model import load_model

    torch.set_num_threads(1)
    config = load_config(
        {
            "model": {"max_context_tokens": 1_024},
            "engine": {"dtype": "float32", "threads": 1, "kv_bytes": 200 * 2**20},
        }
    )
    return load_model(config.model, config.engine, config.kv)


def _worker(order: dict[str, Any], model: Any, lifeline: int) -> None:
    """In the child: never returns."""
    code = 1
    try:
        logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s {os.getpid()} %(name)s %(message)s")
        if (mutation := order.get("mutation")) is not None:
            mutate(mutation)
        if (hook := order.get("hook")) is not None:
            installed = Hook(hook["place"], hook["visits"], signal.Signals[hook["act"]], _acts, hook["times"])
            model = install(installed, model)
        asyncio.run(_serve(load_config(order["config"]), model, lifeline))
        code = 0
    except BaseException:
        logging.exception("the worker broke")
    finally:
        os._exit(code)


def _acts(place: str, undelivered: int) -> None:
    say("at", place=place, undelivered=undelivered)


async def _serve(config: WorkerConfig, model: Any, lifeline: int) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(lifeline, os._exit, 1)
    kafka = connection(config.kafka, config.kafka.client_id)
    with claimed_instance(config) as instance:
        worker = Worker(config, model, kafka, trace.get_tracer("chaos"), instance=instance.name)
        running = asyncio.create_task(worker.run(stop))
        ready = asyncio.create_task(worker.ready.wait())
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            say("ready")
        ready.cancel()
        await running


if __name__ == "__main__":
    main(sys.argv[1])
