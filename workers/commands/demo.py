"""Kafka, a worker, a batch flood and an urgent prompt on this machine; ends by itself.

Two tenants flood P3 with a batch, acme with twice globex's weight. While it runs, prompts are sent to P0; the first
one's answer is streamed to the terminal. Then a table (who got what) and one request's trace.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from topics.catalogue import CLASS_LABELS
from topics.client import Answer, HeadraceClient
from topics.local_broker import LocalBroker
from workers.commands.connection import connection
from workers.commands.explained import explained
from workers.commands.serving import (
    add_worker_arguments,
    check_this_machine,
    load_with_progress,
    local_kafka,
    worker_config,
)
from workers.configuration.config import WorkerConfig

__all__ = ["add_arguments", "run"]

_TENANT_WEIGHTS = {"acme": 2.0, "globex": 1.0}
_BATCH_PER_TENANT = 30
_BATCH_TOKENS = 12
_SLOTS = 16
"""Requests that run at once, where --max-sequences doesn't say otherwise."""
_REQUEST_COST = 64
"""Of a request of the batch: turns of about one request show the shares in a story this short."""
_URGENT = (
    "Explain in two sentences what a headrace is.",
    "Name three rivers in Europe.",
    "Write one sentence about turbines.",
    "What does a queue do?",
    "Say hello to a new colleague.",
)
_URGENT_TOKENS = 32
_SHORT_TOKENS = 12
_SUBJECTS = ("a lighthouse", "a tram", "the first snow", "a bakery", "an old bridge", "a library", "the harbour", "tea")


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request of the story."""

    priority: str
    tenant: str
    answer: Answer

    @property
    def ttft_s(self) -> float:
        first_s = self.answer.first_delta_s
        return (self.answer.ended_s if first_s is None else first_s) - self.answer.sent_s

    @property
    def tokens(self) -> int:
        return int(self.answer.usage["completion_tokens"])

    @property
    def cost(self) -> int:
        return int(self.answer.usage["prompt_tokens"]) + 2 * self.tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_worker_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the table as JSON instead, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    console = Console(stderr=arguments.json, highlight=False)
    started_s = time.monotonic()
    check_this_machine(worker_config(arguments))  # what is wrong is said before anything starts
    with (
        explained(),
        tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder,
        LocalBroker(Path(folder), on_progress=console.print) as broker,
    ):
        served = asyncio.run(_story(_config(arguments, broker.bootstrap_servers), console))
    if arguments.json:
        print(json.dumps(_figures(served)))
    else:
        console.print(_table(served))
        took_s = time.monotonic() - started_s
        console.print(f"Done in {took_s:.0f} s. Next: `headrace dev`, and the line that it prints.")
    return 0


def _config(arguments: argparse.Namespace, bootstrap_servers: str) -> WorkerConfig:
    """The user's settings, but for what the story is about: all classes are served, and tenants weigh what it says."""
    return worker_config(
        arguments,
        classes=CLASS_LABELS,
        kafka=local_kafka(bootstrap_servers),
        scheduling={
            "tenant_weights": _TENANT_WEIGHTS,
            "tenant_quantum": _REQUEST_COST,
            "trust_tenant_header": True,
        },
        **({} if arguments.max_sequences else {"engine": {"max_sequences": _SLOTS}}),
    )


async def _story(config: WorkerConfig, console: Console) -> list[Served]:
    model = await asyncio.to_thread(load_with_progress, config, console)
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from workers.commands.local_worker import local_worker
    from workers.telemetry.trace_tree import trace_tree

    exporter = InMemorySpanExporter()
    processors = [SimpleSpanProcessor(exporter)]
    async with local_worker(config, model, console, span_processors=processors, partitions=2) as worker:
        tracer = worker.provider.get_tracer("headrace.client")
        kafka = connection(config.kafka, "headrace-demo")
        async with HeadraceClient(kafka, topic_prefix=config.kafka.topic_prefix, tracer=tracer) as client:
            served, first = await _play(client, console)
    spans = [(span, span.context) for span in exporter.get_finished_spans() if span.context is not None]
    trace_id = next(
        (context.trace_id for span, context in spans if (span.attributes or {}).get("messaging.message.id") == first),
        None,
    )
    if trace_id is None:
        console.print("\nNo trace of the first urgent request: OTEL_SDK_DISABLED or OTEL_TRACES_SAMPLER keeps it out.")
        return served
    console.print("\nThe trace of the first urgent request, from the producer to the last token:")
    console.print(trace_tree([span for span, context in spans if context.trace_id == trace_id]))
    return served


async def _play(client: HeadraceClient, console: Console) -> tuple[list[Served], str]:
    console.print(f"Flooding P3: {_BATCH_PER_TENANT} requests each of acme (weight 2) and globex (weight 1) …")
    async with asyncio.TaskGroup() as tasks:
        batch = []
        for number in range(_BATCH_PER_TENANT):
            for tenant in _TENANT_WEIGHTS:
                prompt = f"Write a short note, number {number}, about {_SUBJECTS[number % len(_SUBJECTS)]}."
                batch.append(tasks.create_task(_ask(client, "p3", tenant, prompt, _BATCH_TOKENS)))
        # The flood is on its way when the first of it is answered.
        await asyncio.wait(batch, return_when=asyncio.FIRST_COMPLETED)
        first = await _stream_to_terminal(client, console)
        # One after the other: each meets the machine as the batch leaves it.
        others = [await _ask(client, "p0", "initech", prompt, _SHORT_TOKENS) for prompt in _URGENT[1:]]
        left = sum(not task.done() for task in batch)
        console.print(f"{len(_URGENT)} urgent prompts answered; {left} of the batch still to come …")
    return [first, *others, *(task.result() for task in batch)], first.answer.request_id


async def _ask(client: HeadraceClient, priority: str, tenant: str, prompt: str, max_tokens: int) -> Served:
    answer = await client.complete(
        prompt,
        priority=priority,
        tenant=tenant,
        flow=f"{tenant}-demo",
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
    )
    return Served(priority, tenant, answer)


async def _stream_to_terminal(client: HeadraceClient, console: Console) -> Served:
    prompt = _URGENT[0]
    console.print(f"\nP0, in the middle of the flood: {prompt}\n")
    stream = await client.stream(
        prompt, priority="p0", tenant="initech", flow="initech-demo", max_tokens=_URGENT_TOKENS, temperature=0
    )
    async for delta in stream:
        console.print(delta.text, end="", style="bold", markup=False)
    console.print("\n")
    assert stream.answer is not None
    return Served("p0", "initech", stream.answer)


def _contended(served: Sequence[Served]) -> list[Served]:
    """What was answered while every tenant of the batch had something waiting: there shares mean something.

    Left out: the first to be answered, for they were let in before the flood stood, and what came after one tenant
    had nothing left.
    """
    batch = sorted((one for one in served if one.priority == "p3"), key=lambda one: one.answer.ended_s)
    first_s = batch[_SLOTS - 1].answer.ended_s
    last_s = min(max(one.answer.ended_s for one in batch if one.tenant == tenant) for tenant in _TENANT_WEIGHTS)
    return [one for one in served if first_s < one.answer.ended_s <= last_s]


def _figures(served: Sequence[Served]) -> list[dict[str, object]]:
    contended = _contended(served)
    total = sum(one.cost for one in contended)
    rows: list[dict[str, object]] = []
    for priority, tenant in sorted({(one.priority, one.tenant) for one in served}):
        mine = [one for one in served if (one.priority, one.tenant) == (priority, tenant)]
        waits = sorted(one.ttft_s for one in mine)
        share = sum(one.cost for one in contended if (one.priority, one.tenant) == (priority, tenant)) / total
        rows.append(
            {
                "class": priority,
                "tenant": tenant,
                "requests": len(mine),
                "ttft_p50_s": round(median(waits), 3),
                "ttft_p95_s": round(waits[min(len(waits) - 1, int(0.95 * len(waits)))], 3),
                "tokens": sum(one.tokens for one in mine),
                "share_of_cost": round(share, 3),
            }
        )
    return rows


def _table(served: Sequence[Served]) -> Table:
    table = Table(title="Who got what (share of cost: while both batches had requests waiting)")
    for heading in ("class", "tenant", "requests", "TTFT p50", "TTFT p95", "tokens", "share of cost"):
        table.add_column(heading, justify="left" if heading in ("class", "tenant") else "right")
    for row in _figures(served):
        table.add_row(
            str(row["class"]),
            str(row["tenant"]),
            str(row["requests"]),
            f"{row['ttft_p50_s']:.2f} s",
            f"{row['ttft_p95_s']:.2f} s",
            str(row["tokens"]),
            f"{row['share_of_cost']:.0%}",
        )
    return table
