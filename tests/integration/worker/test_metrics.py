"""What a run exports: all that the catalogue declares, nothing else, and the figures that its clients saw."""

import asyncio
import urllib.request
from collections import Counter

import pytest
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.worker.conftest import RunWorker
from topics.client import Answer, HeadraceClient, RequestFailedError
from topics.kafka_settings import KafkaSettings
from topics.record_producer import RecordProducer
from topics.replies import OutboundRecord
from workers.commands.usage import UsageSum, sums
from workers.configuration.config import WorkerConfig
from workers.telemetry.metric_catalogue import GPU_ENERGY, GPU_MEMORY, GPU_UTILIZATION
from workers.telemetry.metric_compat import declared

pytestmark = [pytest.mark.broker, pytest.mark.model, pytest.mark.timeout(300)]

COMPAT = ("vllm", "llm-scheduler")
CUDA_ONLY = {GPU_ENERGY, GPU_MEMORY, GPU_UTILIZATION}
TENANTS = ("acme", "globex")
Answers = list[tuple[str, str, Answer]]
"""Class, tenant, answer."""


def observed(config: WorkerConfig) -> WorkerConfig:
    """Few slots, so that urgent requests have somebody suspended, and all metrics."""
    return config.model_copy(
        update={
            "engine": config.engine.model_copy(update={"max_sequences": 4}),
            "scheduling": config.scheduling.model_copy(update={"trust_tenant_header": True}),
            "telemetry": config.telemetry.model_copy(update={"compat": COMPAT, "metrics_port": 0}),
        }
    )


async def traffic(client: HeadraceClient) -> Answers:
    """Batch work of two tenants, urgent requests while it runs, and one that is refused when it is staged."""
    answers: Answers = []
    batch_runs = asyncio.Event()

    async def ask(priority: str, tenant: str, tokens: int) -> None:
        stream = await client.stream(
            f"Say hello to {tenant}.",
            priority=priority,
            tenant=tenant,
            sla_ms=200_000,
            max_tokens=tokens,
            temperature=0,
            ignore_eos=True,
            timeout_s=200,
        )
        async for _ in stream:
            batch_runs.set()
        assert stream.answer is not None
        answers.append((priority, tenant, stream.answer))

    async with asyncio.TaskGroup() as requests:
        for number in range(6):
            requests.create_task(ask("p3", TENANTS[number % 2], 24))
        requests.create_task(ask("p1", "acme", 12))
        await batch_runs.wait()
        for _ in range(3):
            requests.create_task(ask("p0", "acme", 4))
    with pytest.raises(RequestFailedError):
        await client.complete("x", priority="p2", tenant="acme", max_tokens=0, timeout_s=60)
    return answers


async def unanswerable(config: WorkerConfig) -> None:
    """A record that is no request, of which nobody could recognise the answer."""
    producer = RecordProducer(KafkaSettings(config.kafka.bootstrap_servers, client_id="test"), "test")
    await producer.start()
    await producer.submit(OutboundRecord(f"{config.kafka.topic_prefix}.p2", None, None, b"no JSON"))
    await producer.stop()


async def usage_of(config: WorkerConfig, requests: int) -> dict[tuple[str, str], UsageSum]:
    """When so many records can be read: the end of a transaction reaches each partition in its own time."""
    settings = KafkaSettings(config.kafka.bootstrap_servers, client_id="test")
    async with asyncio.timeout(60):
        while True:
            used = await sums(settings, f"{config.kafka.topic_prefix}.usage")
            if sum(record.requests for record in used.values()) >= requests:
                return used


async def scraped(port: int | None) -> dict[str, Family]:
    def get() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    families = {family.name: family for family in text_string_to_metric_families(await asyncio.to_thread(get))}
    return {name: family for name, family in families.items() if not name.startswith("target")}


def total(family: Family, suffix: str = "", **labels: str) -> float:
    """Over all series with these labels."""
    return sum(
        sample.value
        for sample in family.samples
        if sample.name == family.name + suffix and labels.items() <= sample.labels.items()
    )


async def test_a_run_exports_what_the_catalogue_declares_and_what_its_clients_saw(
    worker_config: WorkerConfig, run_worker: RunWorker
) -> None:
    config = observed(worker_config)
    kafka = config.kafka
    async with (
        run_worker(config) as running,
        HeadraceClient(kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix) as client,
    ):
        await unanswerable(config)
        answers = await traffic(client)
        await running.worker.telemetry.next_look()
        used = await usage_of(config, len(answers) + 1)
        families = await scraped(running.worker.telemetry.export.port)

    expected = [metric for metric in declared(COMPAT) if metric not in CUDA_ONLY]
    assert set(families) == {metric.prometheus_name.removesuffix("_total") for metric in expected}
    assert not [name for name, family in families.items() if not family.samples]

    seen = Counter((priority, tenant) for priority, tenant, _ in answers)
    requests = families["headrace_requests"]
    for (priority, tenant), count in seen.items():
        labels = {"class": priority, "tenant": tenant, "outcome": "completed"}
        assert total(requests, "_total", **labels) == count, labels
    tokens = families["headrace_tokens"]
    for kind, field in (("prompt", "prompt_tokens"), ("output", "completion_tokens")):
        assert total(tokens, "_total", type=kind) == sum(answer.usage[field] for _, _, answer in answers)
    for (priority, tenant), count in seen.items():
        mine = [answer.usage for one, other, answer in answers if (one, other) == (priority, tenant)]
        record = used.pop((tenant, priority))
        assert (record.requests, record.completed) == (count, count)
        assert record.prompt_tokens == sum(usage["prompt_tokens"] for usage in mine)
        assert record.output_tokens == sum(usage["completion_tokens"] for usage in mine)
        assert record.cost == record.prompt_tokens - record.cached_tokens + 2 * record.output_tokens
    # The refused one has used nothing, and its record says so.
    assert {key: (record.requests, record.completed, record.cost) for key, record in used.items()} == {
        ("acme", "p2"): (1, 0, 0)
    }
    output = sum(answer.usage["completion_tokens"] for _, _, answer in answers)
    assert total(families["headrace_generated_tokens"], "_total") == output
    assert total(families["headrace_inter_token_gap_seconds"], "_count") == output - len(answers)
    assert total(families["headrace_engine_step_time_seconds"], "_count") == total(
        families["headrace_engine_steps"], "_total"
    )
    # What the worker saw lies within what the client saw.
    first = families["gen_ai_server_time_to_first_token_seconds"]
    whole = families["gen_ai_server_request_duration_seconds"]
    assert total(first, "_count") == total(whole, "_count", error_type="") == len(answers)
    waited_s = sum((answer.first_delta_s or answer.ended_s) - answer.sent_s for _, _, answer in answers)
    assert 0 < total(first, "_sum") <= waited_s
    begun = families["headrace_first_delta_time_seconds"]
    assert total(begun, "_count") == len(answers)
    assert total(begun, "_sum") > total(first, "_sum")
    assert 0 < total(whole, "_sum", error_type="") <= sum(answer.ended_s - answer.sent_s for _, _, answer in answers)
    # Somebody made room for an urgent request, and no record is lost from the count.
    assert total(families["headrace_preemptions"], "_total", victim_class="p3", causer_class="p0") > 0
    assert total(families["headrace_dead_letters"], "_total") == 1
    assert total(families["headrace_rejected_requests"], "_total") == 2
    assert total(families["headrace_attempts"], "_total", attempt="1") == len(answers) + 1
