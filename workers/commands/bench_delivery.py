"""Request → first delta through Kafka on an idle engine, beside a raw aiokafka echo on the same broker.

The engine's own time (admitted → first token, from the request's spans) is taken off, so what is left is Headrace's
delivery: ingress, staging, scheduling, egress and the broker. Which part of that passes in the worker before the
request is admitted, its reply says. The echo is the least that two hops can take: produce to A, a bare consumer
produces to B, consume from B. Both are run by turns in one process, on one broker.

Then the price of exactly-once terminal replies beside at-least-once ones (`workers.bench.terminals`).
"""

import argparse
import asyncio
import json
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from topics.catalogue import CLASS_LABELS
from topics.client import HeadraceClient
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

_PROMPT = "Say hello."
_INGRESS_RECORDS = 20_000
_STEADY_S = 200
"""Finals a second of the steady load."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_worker_arguments(parser)
    parser.add_argument("--requests", type=int, default=100, metavar="N", help="of each kind (100)")
    parser.add_argument("--out", type=Path, default=Path("out/bench-delivery.json"), help="(out/bench-delivery.json)")
    parser.add_argument("--json", action="store_true", help="print the JSON too")


def run(arguments: argparse.Namespace) -> int:
    console = Console(stderr=True, highlight=False)
    check_this_machine(worker_config(arguments))  # what is wrong is said before anything starts
    with (
        explained(),
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        LocalBroker(Path(folder), on_progress=console.print) as broker,
    ):
        config = worker_config(arguments, classes=CLASS_LABELS, kafka=local_kafka(broker.bootstrap_servers))
        runs = asyncio.run(_measure(config, arguments.requests, console))
        terminals = asyncio.run(_terminals(config))
    from workers.bench.record import bench_record, write_record

    figures = _figures(runs) | {"ingress_records_s": _ingress_rate()} | terminals
    record = bench_record(figures, runs)
    write_record(record, arguments.out)
    console.print(_table(figures))
    console.print(f"ingress: {figures['ingress_records_s']:,.0f} records/s (headers and JSON shape, one core)")
    for name in ("exactly_once", "at_least_once"):
        each = figures[name]
        console.print(
            f"{name.replace('_', ' ')}: a final is visible after {each['p50_ms']:.0f} ms (p95 {each['p95_ms']:.0f}) at "
            f"{_STEADY_S} finals/s; {each['finals_s']:,.0f} finals/s from a backlog"
        )
    console.print(f"written to {arguments.out}")
    if arguments.json:
        print(json.dumps(record))
    return 0


async def _measure(config: WorkerConfig, requests: int, console: Console) -> list[dict[str, float]]:
    model = await asyncio.to_thread(load_with_progress, config, console)
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from workers.commands.local_worker import local_worker

    exporter = InMemorySpanExporter()
    servers = config.kafka.bootstrap_servers
    runs: list[dict[str, float]] = []
    async with (
        local_worker(config, model, console, span_processors=[SimpleSpanProcessor(exporter)]) as worker,
        HeadraceClient(
            connection(config.kafka, "headrace-bench"),
            topic_prefix=config.kafka.topic_prefix,
            tracer=worker.provider.get_tracer("headrace.client"),
        ) as client,
        _echo(servers) as echo,
    ):
        for number in range(-3, requests):  # the first three warm up
            exporter.clear()
            answer = await client.complete(_PROMPT, priority="p0", max_tokens=2, temperature=0, stream=True)
            assert answer.first_delta_s is not None
            echo_s = await echo.round_trip()
            # The spans are made when the reply is acknowledged, which the client may see first.
            engine_s = await _span_seconds(exporter, "prefill")
            if number >= 0:
                total_s = answer.first_delta_s - answer.sent_s
                assert answer.stages is not None, "a worker's reply says where its time went"
                start_s = (answer.stages.queue or 0.0) + (answer.stages.slot or 0.0)
                runs.append({"first_delta_s": total_s, "engine_s": engine_s, "start_s": start_s, "echo_s": echo_s})
    return runs


async def _terminals(config: WorkerConfig) -> dict[str, Any]:
    from workers.bench.terminals import measure_terminals

    kafka = connection(config.kafka, "headrace-bench")
    figures: dict[str, Any] = {}
    for name in ("at_least_once", "exactly_once"):
        found = await measure_terminals(
            kafka, exactly_once=name == "exactly_once", load_s=_STEADY_S, steady=1_000, backlog=10_000
        )
        figures[name] = _quantiles(found.visible_s) | {"finals_s": found.finals_s}
    added_ms = figures["exactly_once"]["p50_ms"] - figures["at_least_once"]["p50_ms"]
    return figures | {"exactly_once_added_ms": added_ms}


async def _span_seconds(exporter: Any, name: str) -> float:
    async with asyncio.timeout(10):
        while True:
            for span in exporter.get_finished_spans():
                if span.name == name:
                    return float(span.end_time - span.start_time) / 1e9
            await asyncio.sleep(0.001)  # the exporter has nothing to wait for


class _Echo:
    """One round trip at a time."""

    def __init__(self, producer: Any, answers: Any, topic: str) -> None:
        self._producer, self._answers, self._topic = producer, answers, topic

    async def round_trip(self) -> float:
        started_s = time.monotonic()
        await self._producer.send_and_wait(self._topic, _PROMPT.encode())
        await self._answers.getone()
        return time.monotonic() - started_s


@asynccontextmanager
async def _echo(servers: str) -> AsyncIterator[_Echo]:
    """Bare aiokafka clients with the settings that our own use: acks from all, idempotent, no linger."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    name = f"echo-{uuid.uuid4().hex[:8]}"
    there, back = f"{name}.there", f"{name}.back"
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(there, 1, 1), NewTopic(back, 1, 1)])
    finally:
        await admin.close()
    sender, echoer = (
        AIOKafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True) for _ in range(2)
    )
    requests, answers = (
        AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest", fetch_max_wait_ms=100)
        for topic in (there, back)
    )

    async def echo() -> None:
        async for record in requests:
            await echoer.send_and_wait(back, record.value)

    clients = (sender, echoer, requests, answers)
    for client in clients:
        await client.start()
    echoing = asyncio.create_task(echo())
    try:
        yield _Echo(sender, answers, there)
    finally:
        echoing.cancel()
        await asyncio.wait({echoing})
        for client in clients:
            await client.stop()


@dataclass(slots=True)
class _Counter:
    accepted: int = 0

    def __call__(self, _arrival: object, _record: object) -> None:
        self.accepted += 1


def _ingress_rate() -> float:
    """Records a second through ingress alone, with the headers that a client sends."""
    import orjson

    from scheduling.priority import PriorityClass
    from topics.headers import RequestHeaders
    from topics.record import InboundRecord, RecordId
    from workers.configuration.config import IngressConfig
    from workers.intake.ingress import Ingress, Refusal

    def refuse(refusal: Refusal) -> None:
        raise refusal.error

    counter = _Counter()
    ingress = Ingress(
        IngressConfig(),
        default_reply_topic="inference.replies",
        trust_tenant_header=True,
        ttft_slo_s={},
        accept=counter,
        refuse=refuse,
    )
    value = orjson.dumps({"messages": [{"role": "user", "content": "word " * 100}], "max_tokens": 64})
    headers = tuple(RequestHeaders(request_id="r" * 32, tenant="acme", traceparent="00-" + "1" * 52).encode())
    started_s = time.perf_counter()
    for offset in range(_INGRESS_RECORDS):
        ingress.take(PriorityClass.P1, 1, InboundRecord(RecordId("p1", 0, offset), 0, b"key", value, headers))
    assert counter.accepted == _INGRESS_RECORDS
    return _INGRESS_RECORDS / (time.perf_counter() - started_s)


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    import numpy as np

    return {f"p{share}_ms": float(np.percentile(seconds, share)) * 1e3 for share in (50, 95)}


def _figures(runs: list[dict[str, float]]) -> dict[str, Any]:
    delivery = [run["first_delta_s"] - run["engine_s"] for run in runs]
    echo = [run["echo_s"] for run in runs]

    ours, raw = _quantiles(delivery), _quantiles(echo)
    return {
        "first_delta_ratio": ours["p50_ms"] / raw["p50_ms"],
        "delivery": ours,
        "echo": raw,
        "engine": _quantiles([run["engine_s"] for run in runs]),
        "start": _quantiles([run["start_s"] for run in runs]),
        "ways": _quantiles([run["first_delta_s"] - run["engine_s"] - run["start_s"] for run in runs]),
    }


def _table(figures: dict[str, Any]) -> Table:
    table = Table(title=f"first delta without the engine ÷ echo: {figures['first_delta_ratio']:.2f} × at p50")
    for heading in ("", "p50", "p95"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = {
        "delivery": "headrace, engine's time taken off",
        "start": "  noted, tokenised, chosen, admitted",
        "ways": "  both ways through Kafka, ingress, egress",
        "echo": "raw aiokafka echo",
        "engine": "the engine's time",
    }
    for name, label in rows.items():
        table.add_row(label, f"{figures[name]['p50_ms']:.1f} ms", f"{figures[name]['p95_ms']:.1f} ms")
    return table
