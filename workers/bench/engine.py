"""The engine on a workload of token ids, in this process: the headrace side of `bench engine`.

Knows how to feed the worker's own parts without Kafka. Loads the model, then runs once for each line of its input, and
prints one line of JSON with the figures each time.

    python -m workers.bench.engine --model SOURCE --workload FILE [--requests N] [--dtype float32] [--no-speculation]
"""

import argparse
import json
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson

from scheduling.priority import PriorityClass
from topics.record import InboundRecord, RecordId
from workers.answers.detokenizer import Detokenizer, DetokenizerFactory
from workers.bench.on_request import run_on_request
from workers.configuration.config import WorkerConfig, load_config
from workers.engine.assembly import Assembly, assemble, block_hasher, engine_inbox
from workers.engine.outbox import Outbox, Publication
from workers.engine.thread import EngineThread
from workers.intake.ingress import Ingress, Refusal
from workers.intake.prompt import PromptBuilder
from workers.intake.request import Arrival
from workers.intake.staging import Staging
from workers.models.loaded_model import LoadedModel, load_model
from workers.runners.decoder.runner import DecoderRunner

__all__ = ["Watcher", "run_workload"]


@dataclass(slots=True)
class _Answer:
    detokenizer: Detokenizer
    first_s: float | None = None
    token_ids: list[int] = field(default_factory=list)
    characters: int = 0


@dataclass(slots=True)
class _Sink:
    """Egress without a broker: takes publications as they come, makes the text, notes when."""

    new_detokenizer: DetokenizerFactory
    waiting: int
    outbox: Outbox | None = None
    news: threading.Event = field(default_factory=threading.Event)
    broken: BaseException | None = None
    answers: dict[RecordId, _Answer] = field(default_factory=dict)
    watcher: "Watcher | None" = None

    def run(self) -> None:
        """Until every request has ended. Raises what broke the engine."""
        assert self.outbox is not None
        while self.waiting:
            self.news.wait()
            self.news.clear()
            if self.broken is not None:
                raise RuntimeError("the engine broke") from self.broken
            for publication in self.outbox.take_all():
                now_s = time.monotonic()
                answer = self.answers.setdefault(publication.arrival.id, _Answer(self.new_detokenizer()))
                answer.first_s = now_s if answer.first_s is None else answer.first_s
                answer.token_ids += publication.token_ids
                answer.characters += len(answer.detokenizer.feed(publication.token_ids))
                if self.watcher is not None:
                    self.watcher.published(publication)
                if publication.ending is not None:
                    if publication.ending.error is not None:
                        raise publication.ending.error
                    self.outbox.delivered(publication)
                    self.waiting -= 1

    def on_broken(self, error: BaseException) -> None:
        self.broken = error
        self.news.set()


class Watcher(Protocol):
    """Telemetry as a worker has it (`workers.bench.telemetry`). On the thread that stands for the event loop."""

    def arrived(self, arrival: Arrival) -> None: ...

    def published(self, publication: Publication) -> None: ...


def run_workload(
    config: WorkerConfig,
    model: LoadedModel,
    requests: list[dict[str, Any]],
    watch: Callable[[Assembly], Watcher] | None = None,
) -> dict[str, Any]:
    """Submit all at once, wait for all, and say how it went. `watch` is given the engine's parts before it runs."""
    sink = _Sink(DetokenizerFactory(model.tokenizer.backend_tokenizer), waiting=len(requests))
    outbox = sink.outbox = Outbox(config.egress.max_pending_bytes, sink.news.set)
    inbox = engine_inbox(config.ingress.max_rows)
    builder = PromptBuilder(model.tokenizer, model.limits, model.served_names)

    records: dict[RecordId, InboundRecord] = {}

    def prepare(arrival: Arrival, record: InboundRecord, sequence: int) -> Any:
        return builder.prepare(record, arrival.headers, sequence)

    hasher = block_hasher(config.kv, model.runner, model.served_names[0], model.dtype)
    staging = Staging(prepare, inbox.put, sink.on_broken, hasher)
    parts = assemble(
        config.engine,
        config.scheduling,
        kv_config=config.kv,
        preemption=config.preemption,
        swap=model.swap,
        runner=model.runner,
        rates=model.rates,
        max_rows=config.ingress.max_rows,
        context_tokens=model.limits.context_tokens,
        outbox=outbox,
        inbox=inbox,
        stage=lambda job: staging.submit(job, records[job.arrival.id]),
        hasher=hasher,
        new_detokenizer=sink.new_detokenizer,
        clock=time.monotonic,
        cpu_clock=time.thread_time,
        observed=watch is not None,
    )
    watcher = sink.watcher = None if watch is None else watch(parts)
    thread = EngineThread(parts.engine, inbox, sink.on_broken)

    def refuse(refusal: Refusal) -> None:
        raise refusal.error

    def accept(arrival: Arrival, record: InboundRecord) -> None:
        records[arrival.id] = record
        if watcher is not None:
            watcher.arrived(arrival)
        inbox.put(arrival)

    ingress = Ingress(
        config.ingress,
        default_reply_topic="",
        trust_tenant_header=True,
        ttft_slo_s={},
        accept=accept,
        refuse=refuse,
    )
    started_s = time.monotonic()
    for number, request in enumerate(requests):
        body = {"prompt": request["prompt_token_ids"], "max_tokens": request["max_tokens"], "temperature": 0}
        body |= {"ignore_eos": request.get("ignore_eos", True), "stream": True}
        record = InboundRecord(RecordId("bench", 0, number), 0, None, orjson.dumps(body), ())
        ingress.take(PriorityClass.P2, 1, record)
    staging.start()
    thread.start()
    try:
        sink.run()
        wall_s = time.monotonic() - started_s
    finally:
        thread.stop()
        staging.stop()
    first_s = [answer.first_s - started_s for answer in sink.answers.values() if answer.first_s is not None]
    outputs = [sink.answers[RecordId("bench", 0, number)].token_ids for number in range(len(requests))]
    tokens = sum(map(len, outputs))
    statistics = parts.engine.statistics()
    speculation = statistics.speculation
    guessed, accepted = (0, 0) if speculation is None else (speculation.guessed, speculation.accepted)
    for request, output in zip(requests, outputs, strict=True):
        full = len(output) == request["max_tokens"]
        assert full or not request.get("ignore_eos", True), f"{len(output)} tokens of {request['max_tokens']}"
    return {
        "output_tokens_s": tokens / wall_s,
        "ttft_mean_s": float(np.mean(first_s)),
        "ttft_p95_s": float(np.percentile(first_s, 95)),
        "wall_s": wall_s,
        "output_tokens": tokens,
        "outputs": outputs,
        "steps": statistics.steps,
        "step_s": statistics.step_seconds,
        "decision_cpu_us": 1e6 * statistics.python_cpu_seconds / statistics.steps,
        "runner_share": statistics.step_seconds / wall_s,
        "gil_wait_share": (statistics.python_seconds - statistics.python_cpu_seconds)
        / (statistics.step_seconds + statistics.python_seconds),
        "preemptions": statistics.preemptions,
        "guessed_tokens": guessed,
        "accepted_tokens": accepted,
        "cached_tokens": sum(parts.kv.statistics().hit_tokens_by_class.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="one run of the engine on a workload of token ids")
    parser.add_argument("--model", required=True)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--no-speculation", action="store_true")
    arguments = parser.parse_args()
    requests = json.loads(arguments.workload.read_bytes())["requests"][: arguments.requests]
    engine = {"dtype": arguments.dtype} | ({"speculate": []} if arguments.no_speculation else {})
    config = load_config({"model": {"source": arguments.model}, "engine": engine})
    model = load_model(config.model, config.engine, config.kv)
    run_on_request(lambda: _run(config, model, requests))


def _run(config: WorkerConfig, model: LoadedModel, requests: list[dict[str, Any]]) -> dict[str, Any]:
    before = _stage_seconds(model)
    figures = run_workload(config, model, requests)
    figures |= {f"{stage}_s": seconds - before[stage] for stage, seconds in _stage_seconds(model).items()}
    peak_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts KiB
    return figures | {"peak_rss_mb": peak_rss_mb}


def _stage_seconds(model: LoadedModel) -> dict[str, float]:
    """Where the forwards' time went so far; empty where it is not the compiled kernels that compute."""
    native = model.runner.native if isinstance(model.runner, DecoderRunner) else None
    return {} if native is None else native.statistics().seconds


if __name__ == "__main__":
    main()
