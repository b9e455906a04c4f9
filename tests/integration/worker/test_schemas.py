"""Two hundred schemas drawn at random through the real model: every answer that ends by itself fits its schema."""

import asyncio
import random

import jsonschema
import pytest

from tests.integration.worker.conftest import RunWorker
from tests.workers.intake.random_schemas import bounded_schema
from topics.client import Answer, HeadraceClient
from topics.codec import loads
from workers.configuration.config import WorkerConfig

pytestmark = [pytest.mark.broker, pytest.mark.model, pytest.mark.long, pytest.mark.timeout(1_800)]

SCHEMAS = 200
LIMIT = 160
TOGETHER = 32


async def test_every_answer_that_ends_fits_its_schema(worker_config: WorkerConfig, run_worker: RunWorker) -> None:
    kafka, together = worker_config.kafka, asyncio.Semaphore(TOGETHER)
    schemas = [bounded_schema(random.Random(seed)) for seed in range(SCHEMAS)]

    async def ask(client: HeadraceClient, seed: int) -> Answer:
        form = {"type": "json_schema", "json_schema": {"name": "random", "schema": schemas[seed]}}
        async with together:
            return await client.chat(
                "Write an example.", priority="p2", response_format=form, max_tokens=LIMIT, seed=seed, timeout_s=1_500
            )

    async with (
        run_worker(worker_config),
        HeadraceClient(kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix) as client,
    ):
        answers = await asyncio.gather(*(ask(client, seed) for seed in range(SCHEMAS)))
    cut = 0
    for schema, answer in zip(schemas, answers, strict=True):
        if answer.finish_reason == "length":
            cut += 1
        else:
            jsonschema.validate(loads(answer.text.encode()), schema)
    tokens = sum(answer.usage["completion_tokens"] for answer in answers)
    print(f"{SCHEMAS} answers of {tokens} tokens, {cut} cut at {LIMIT}")
    assert cut <= SCHEMAS * 0.05
