"""The examples do what they say, each as its own process."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from tests.integration.conftest import KafkaHandle
from tests.integration.jobs.row_worker import RowWorker
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_topics
from topics.kafka_settings import KafkaSettings

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
async def catalogue(kafka: KafkaHandle, topic_prefix: str) -> Catalogue:
    catalogue = Catalogue(topic_prefix, request_partitions=2, reply_partitions=2)
    used = (catalogue.requests("p1"), catalogue.requests("p3"), catalogue.replies, catalogue.deltas, catalogue.jobs)
    async with KafkaAdmin(KafkaSettings(kafka.bootstrap_servers)) as admin:
        await create_topics(admin, [spec for spec in catalogue.specs() if spec.name in used], replication_factor=1)
    return catalogue


@pytest.fixture
async def workers(kafka: KafkaHandle, catalogue: Catalogue) -> AsyncIterator[None]:
    """Of classes P1 and P3, answering `You said ….`."""
    settings = KafkaSettings(kafka.bootstrap_servers)
    async with RowWorker(settings, catalogue, label="p1") as online, RowWorker(settings, catalogue) as batch:
        for worker in (online, batch):
            worker.allow(100)
        yield


async def output(*words: str | Path) -> str:
    """What a program prints. Ours are found beside the interpreter."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *map(str, words),
        env=os.environ | {"PATH": path, "PYTHONPATH": str(EXAMPLES.parent)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("name", ["aiokafka_client.py", "confluent_client.py", "python_client.py"])
async def test_a_client_prints_its_answer(name: str, kafka: KafkaHandle, topic_prefix: str) -> None:
    printed = await output(sys.executable, EXAMPLES / name, kafka.bootstrap_servers, "hello", topic_prefix)
    assert printed == "You said hello.\n"


@pytest.mark.usefixtures("workers")
async def test_a_text_file_of_questions_is_answered(kafka: KafkaHandle, topic_prefix: str, tmp_path: Path) -> None:
    questions, answers = tmp_path / "questions.txt", tmp_path / "answers.jsonl"
    questions.write_text('Why?\nWho said "no", and when?\n', encoding="utf-8")
    await output(EXAMPLES / "batch.sh", kafka.bootstrap_servers, questions, answers, topic_prefix)
    lines = [orjson.loads(line) for line in answers.read_bytes().splitlines()]
    said = [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines]
    assert said == ["You said Why?.", 'You said Who said "no", and when?.']
