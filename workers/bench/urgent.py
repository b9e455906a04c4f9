"""One phase of `bench urgent`: a worker on a broker, a batch that fills it, urgent requests that come meanwhile.

Knows a client, a worker in this process, spans and recorded steps. Does not know which phases there are or what their
figures mean (`workers.bench.urgent_figures`).

Prompts are cut out of our licence text, each at a place of its own, so that none shares a block with another.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rich.console import Console

from topics.client import HeadraceClient
from topics.headers import RequestHeaders
from topics.reply_merge import Answer
from workers.bench.recorded_steps import RecordedStep, RecordingRunner
from workers.commands.connection import connection
from workers.commands.local_worker import local_worker
from workers.configuration.config import WorkerConfig
from workers.engine.statistics import EngineStatistics
from workers.intake.prompt import ChatTokenizer, RequestKind
from workers.models.loaded_model import LoadedModel
from workers.telemetry.generation_attributes import OPERATION_NAMES
from workers.telemetry.span_names import NAMES

__all__ = ["Phase", "RequestRecord", "UrgentLoad", "request_bodies", "run_phase", "small_pool"]

_TEXT = Path(__file__).parents[2] / "LICENSE"
_SEED = 20261130
_ANSWER_S = 3600.0


@dataclass(frozen=True, slots=True)
class UrgentLoad:
    """How many requests of what size, and when the urgent ones come."""

    batch: int
    urgent: int
    batch_prompt_tokens: tuple[int, int]
    """Evenly from … to."""
    batch_output_tokens: int
    urgent_prompt_tokens: int
    urgent_output_tokens: int
    first_after_s: float
    """From when the running limit was reached to the first urgent request."""
    interval_s: float

    @property
    def mean_batch_tokens(self) -> int:
        return sum(self.batch_prompt_tokens) // 2 + self.batch_output_tokens


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Times are wall-clock seconds, for so spans have them."""

    urgent: bool
    sent_s: float
    arrived_s: float
    staged_s: float
    admitted_s: float
    first_token_s: float
    first_delta_s: float
    last_token_s: float
    ended_s: float
    output_tokens: int
    suspended: tuple[tuple[float, float], ...]
    """From, to."""

    @property
    def ttft_s(self) -> float:
        """As the client sees it."""
        return self.first_delta_s - self.sent_s

    def runs_at(self, moment_s: float) -> bool:
        if not self.admitted_s <= moment_s < self.last_token_s:
            return False
        return not any(begin <= moment_s < end for begin, end in self.suspended)

    def waits_at(self, moment_s: float) -> bool:
        """In the worker, not begun."""
        return self.arrived_s <= moment_s < self.admitted_s


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase was and what came of it."""

    name: str
    max_sequences: int
    requests: tuple[RequestRecord, ...]
    steps: tuple[RecordedStep, ...]
    engine: EngineStatistics


def small_pool(model: LoadedModel, load: UrgentLoad, max_sequences: int) -> LoadedModel:
    """The same model with a quarter of the KV pool, or of what a full batch of this load takes where that is less.

    The swap pool is half of that, as by default, and the context what the pool holds.
    """
    block_size = model.runner.block_size
    full = max_sequences * -(-load.mean_batch_tokens // block_size)
    blocks = min(model.runner.num_blocks, full) // 4
    longest = max(load.batch_prompt_tokens[1] + load.batch_output_tokens, load.urgent_prompt_tokens)
    blocks = max(blocks, -(-(longest + 1) // block_size))
    runner = RecordingRunner(model.runner, time.time, num_blocks=blocks)
    limits = model.limits.at_most(blocks * block_size)
    swap = None if model.swap is None else replace(model.swap, places=max(1, min(model.swap.places, blocks // 2)))
    return replace(model, runner=runner, limits=limits, swap=swap)


async def run_phase(name: str, config: WorkerConfig, model: LoadedModel, load: UrgentLoad, console: Console) -> Phase:
    """Raises what a worker's start and a client raise."""
    blocks = model.runner.num_blocks if isinstance(model.runner, RecordingRunner) else None
    loop, full = asyncio.get_running_loop(), asyncio.Event()

    def on_step(sequences: int) -> None:
        reached = sequences >= config.engine.max_sequences - 1
        loop.call_soon_threadsafe(full.set if reached else full.clear)

    runner = RecordingRunner(model.runner, time.time, num_blocks=blocks, on_step=on_step)
    exporter = InMemorySpanExporter()
    bodies = request_bodies(model.tokenizer, load)
    async with (
        local_worker(
            config, replace(model, runner=runner), console, span_processors=[SimpleSpanProcessor(exporter)]
        ) as worker,
        HeadraceClient(
            connection(config.kafka, "headrace-bench"),
            topic_prefix=config.kafka.topic_prefix,
            tracer=worker.provider.get_tracer("headrace.client"),
            timeout_s=_ANSWER_S,
        ) as client,
    ):
        await _warm_up(client, bodies[True][0])
        exporter.clear()
        runner.steps.clear()
        answers = await _play(client, bodies, load, full)
        engine = worker.worker.statistics().engine
    spans = _by_trace(exporter.get_finished_spans())
    requests = tuple(_record(spans, urgent, answer) for urgent, answer in answers)
    return Phase(name, config.engine.max_sequences, requests, tuple(runner.steps), engine)


def request_bodies(tokenizer: ChatTokenizer, load: UrgentLoad) -> dict[bool, list[dict[str, Any]]]:
    """Of the batch (False) and the urgent requests (True)."""
    text = tokenizer.backend_tokenizer.encode(_TEXT.read_text(encoding="utf-8")).ids
    draw = Random(_SEED)

    def body(prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
        start = draw.randrange(max(1, len(text) - prompt_tokens))
        prompt = (text[start:] + text)[:prompt_tokens]
        return {
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }

    batch = [body(draw.randint(*load.batch_prompt_tokens), load.batch_output_tokens) for _ in range(load.batch)]
    # One more, to warm up with.
    urgent = [body(load.urgent_prompt_tokens, load.urgent_output_tokens) for _ in range(load.urgent + 1)]
    return {False: batch, True: urgent}


async def _ask(client: HeadraceClient, body: dict[str, Any], priority: str) -> Answer:
    headers = RequestHeaders(request_id=uuid.uuid4().hex, tenant=f"bench-{priority}")
    return await client.result(await client.send(body, priority=priority, headers=headers))


async def _warm_up(client: HeadraceClient, body: dict[str, Any]) -> None:
    """What is done for the first time is slow: producers, readers, kernels."""
    for priority in ("p0", "p2"):
        await _ask(client, body, priority)


async def _play(
    client: HeadraceClient,
    bodies: dict[bool, list[dict[str, Any]]],
    load: UrgentLoad,
    full: asyncio.Event,
) -> list[tuple[bool, Answer]]:
    async with asyncio.TaskGroup() as tasks:
        batch = [tasks.create_task(_ask(client, body, "p2")) for body in bodies[False]]
        await _until_full(full, batch)
        # A pool that is too small for the running limit is full when somebody has ended, and stays so.
        fills = full.is_set()
        await asyncio.sleep(load.first_after_s)
        urgent = []
        for body in bodies[True][1:]:
            due_s = time.monotonic() + load.interval_s
            if fills:
                await _until_full(full, [task for task in batch if not task.done()], asyncio.ALL_COMPLETED)
            urgent.append(tasks.create_task(_ask(client, body, "p0")))
            if not batch:
                await asyncio.wait({urgent[-1]})  # alone on an idle machine
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    return [(False, task.result()) for task in batch] + [(True, task.result()) for task in urgent]


async def _until_full(
    full: asyncio.Event, batch: Sequence[asyncio.Task[Answer]], otherwise: str = asyncio.FIRST_COMPLETED
) -> None:
    """Return when a step had the running limit, or a request of the batch has ended, or (`ALL_COMPLETED`) all have."""
    if not batch:
        return
    waiting = asyncio.create_task(full.wait())
    ended = asyncio.create_task(asyncio.wait(batch, return_when=otherwise))
    await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    ended.cancel()


def _by_trace(spans: Sequence[ReadableSpan]) -> dict[str, list[ReadableSpan]]:
    """By request id, the spans of its trace."""
    traces: dict[int, list[ReadableSpan]] = {}
    found: dict[str, list[ReadableSpan]] = {}
    for span in spans:
        assert span.context is not None
        trace = traces.setdefault(span.context.trace_id, [])
        trace.append(span)
        message = (span.attributes or {}).get(NAMES["message_id"])
        if isinstance(message, str):
            found[message] = trace
    return found


def _record(traces: dict[str, list[ReadableSpan]], urgent: bool, answer: Answer) -> RequestRecord:
    wall_s = time.time() - time.monotonic()
    spans = traces[answer.request_id]
    by_kind = {span.name.split()[0]: span for span in spans if not span.name.startswith("send")}
    queue, schedule, prefill = by_kind["queue"], by_kind["schedule"], by_kind["prefill"]
    first_delta_s = answer.ended_s if answer.first_delta_s is None else answer.first_delta_s
    return RequestRecord(
        urgent=urgent,
        sent_s=answer.sent_s + wall_s,
        arrived_s=_begin_s(queue),
        staged_s=_end_s(queue),
        admitted_s=_end_s(schedule),
        first_token_s=_end_s(prefill),
        first_delta_s=first_delta_s + wall_s,
        last_token_s=_end_s(by_kind[OPERATION_NAMES[RequestKind.COMPLETION]]),
        ended_s=answer.ended_s + wall_s,
        output_tokens=int(answer.usage["completion_tokens"]),
        suspended=tuple((_begin_s(span), _end_s(span)) for span in spans if span.name == "suspended"),
    )


def _begin_s(span: ReadableSpan) -> float:
    assert span.start_time is not None
    return span.start_time / 1e9


def _end_s(span: ReadableSpan) -> float:
    assert span.end_time is not None
    return span.end_time / 1e9
