"""Embeddings of the real model through the topics: beside chats, by the client and as a job."""

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from openai.types import CreateEmbeddingResponse
from transformers import AutoModel, AutoTokenizer

from tests.integration.conftest import read_topic
from tests.integration.worker.conftest import RunWorker
from topics.catalogue import Catalogue
from topics.client import HeadraceClient, RequestFailedError
from topics.headers import RequestHeaders
from topics.jobs.board import JobBoard
from topics.kafka_settings import KafkaSettings
from topics.sync_client import SyncHeadraceClient
from workers.commands.job_connection import JobDesk
from workers.commands.job_waiting import wait_for_job
from workers.configuration.config import WorkerConfig
from workers.models.model_source import find_model, prepare_model

pytestmark = [pytest.mark.broker, pytest.mark.model, pytest.mark.timeout(300)]

TEXTS = ["The headrace leads water to the turbine.", "A cat sat on the mat.", "Le chat est assis sur le tapis."]


def transformers_vectors(texts: list[str]) -> list[Any]:
    folder = str(prepare_model(find_model("smollm2")).folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    vectors = []
    for text in texts:
        with torch.inference_mode():
            state = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1].numpy()
        vectors.append(state / np.linalg.norm(state))
    return vectors


async def test_vectors_are_those_of_transformers_while_others_chat(
    worker_config: WorkerConfig, run_worker: RunWorker
) -> None:
    kafka = worker_config.kafka
    async with (
        run_worker(worker_config),
        HeadraceClient(kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix) as client,
    ):
        chats = [client.chat("Count to ten.", priority="p2", max_tokens=12, temperature=0) for _ in range(4)]
        embedded = client.embed(TEXTS, priority="p0", tenant="acme", request_id="e")
        answer, *answers = await asyncio.gather(embedded, *chats)
        shorter = await asyncio.to_thread(embed_as_a_script_does, worker_config)
        plain = {"input": TEXTS[0], "model": "smollm2"}
        floats = await client.result(await client.send(plain, priority="p1", headers=RequestHeaders("f")))
        with pytest.raises(RequestFailedError) as refused:
            await client.embed("x", dimensions=577)
    want = transformers_vectors(TEXTS)
    np.testing.assert_allclose(answer.embeddings, want, atol=1e-4)
    np.testing.assert_allclose(shorter[0], want[1][:64] / np.linalg.norm(want[1][:64]), atol=1e-4)
    assert len({each.text for each in answers}) == 1
    assert answer.usage == {"prompt_tokens": answer.usage["total_tokens"], "total_tokens": answer.usage["total_tokens"]}
    assert (refused.value.status_code, refused.value.param) == (400, "dimensions")
    read = CreateEmbeddingResponse.model_validate(floats.body, strict=True)
    np.testing.assert_allclose(read.data[0].embedding, answer.embeddings[0], atol=1e-6)
    catalogue = Catalogue(prefix=kafka.topic_prefix, group_prefix=kafka.group_prefix)
    used = [orjson.loads(record.value or b"") for record in await read_topic(kafka.bootstrap_servers, catalogue.usage)]
    (record,) = [each for each in used if each["request_id"] == "e"]
    assert (record["tenant"], record["outcome"], record["output_tokens"]) == ("acme", "stop", 0)
    assert record["cost"] == record["prompt_tokens"] == answer.usage["prompt_tokens"]


def embed_as_a_script_does(config: WorkerConfig) -> list[Any]:
    kafka = config.kafka
    with SyncHeadraceClient(kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix, own_partition=True) as client:
        return client.embed(TEXTS[1], dimensions=64).embeddings


async def test_a_job_of_embeddings(worker_config: WorkerConfig, run_worker: RunWorker, tmp_path: Path) -> None:
    rows, output, errors = tmp_path / "rows.jsonl", tmp_path / "out.jsonl", tmp_path / "bad.jsonl"
    bodies: list[dict[str, Any]] = [{"input": f"{text} {row}", "dimensions": 16} for row, text in enumerate(TEXTS)]
    bodies.append({"input": "x", "dimensions": 1000})  # right in itself, more than the model has
    line = {"method": "POST", "url": "/v1/embeddings"}
    rows.write_bytes(
        b"".join(
            orjson.dumps({"custom_id": f"r{row}", **line, "body": body}) + b"\n" for row, body in enumerate(bodies)
        )
    )
    kafka = worker_config.kafka
    settings, catalogue = KafkaSettings(kafka.bootstrap_servers), Catalogue(kafka.topic_prefix)
    async with (
        run_worker(worker_config),
        HeadraceClient(kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix) as client,
        JobBoard(settings, catalogue) as board,
    ):
        job = await client.submit(os.fspath(rows), tenant="acme")
        await board.refresh()
        standing = await wait_for_job(
            JobDesk(settings, catalogue, board),
            board.jobs[job],
            lambda _standing: None,
            output=output,
            errors=errors,
            in_order=True,
        )
        batch = await client.job(job)
    assert (standing.completed, standing.failed) == (3, 1)
    assert (batch["endpoint"], batch["usage"]["output_tokens"]) == ("/v1/embeddings", 0)
    done = [orjson.loads(text) for text in output.read_bytes().splitlines()]
    assert [each["custom_id"] for each in done] == ["r0", "r1", "r2"]
    for each in done:
        read = CreateEmbeddingResponse.model_validate(each["response"]["body"], strict=True)
        assert len(read.data[0].embedding) == 16
    (refused,) = (orjson.loads(text) for text in errors.read_bytes().splitlines())
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("r3", 400)
