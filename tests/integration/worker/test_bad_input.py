"""Every kind of bad input, against the real broker: answered or dead-lettered, and the worker goes on."""

import re
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.bad_input_cases import CASES, BadInput
from tests.integration.conftest import read_topic
from tests.integration.worker.conftest import RunWorker
from tests.topics.raw_batches import RawName, send_raw
from topics.client import HeadraceClient
from workers.configuration.config import WorkerConfig

pytestmark = [pytest.mark.broker, pytest.mark.model]


async def test_each_bad_input_is_answered_or_dead_lettered_and_the_next_request_is_served(
    worker_config: WorkerConfig, run_worker: RunWorker
) -> None:
    kafka = worker_config.kafka
    async with run_worker(worker_config) as running:
        await _produce(kafka.bootstrap_servers, f"{kafka.topic_prefix}.p1", CASES)
        async with HeadraceClient(kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix) as client:
            answer = await client.complete("Say hello.", priority="p1", max_tokens=2, temperature=0)
        assert answer.usage["completion_tokens"] == 2
        refused = running.worker.statistics().ingress.refused
    replies = {
        dict(record.headers)["request-id"].decode(): record
        for record in await read_topic(kafka.bootstrap_servers, f"{kafka.topic_prefix}.replies")
    }
    letters = await read_topic(kafka.bootstrap_servers, f"{kafka.topic_prefix}.dlq")
    problems = [problem for case in CASES if (problem := _problem(case, replies, letters))]
    assert not problems, "\n".join(problems)
    assert sum(refused.values()) > 0
    assert len(replies) == sum(case.expected is not None for case in CASES) + 1


def _problem(case: BadInput, replies: dict[str, Any], letters: list[Any]) -> str | None:
    if case.expected is None:
        found = any(letter.value == case.value and set(case.headers) <= set(letter.headers) for letter in letters)
        return None if found else f"{case.name}: not among the dead letters"
    assert case.request_id is not None
    if case.request_id not in replies:
        return f"{case.name}: no reply"
    record = replies[case.request_id]
    if dict(record.headers)["event"] != b"error":
        return f"{case.name}: answered with {dict(record.headers)['event']!r}"
    error = orjson.loads(record.value)["error"]
    expected = case.expected
    if (error["status_code"], error["param"], error["code"]) != (expected.status_code, expected.param, expected.code):
        return f"{case.name}: {error}"
    return None if re.search(expected.message, error["message"]) else f"{case.name}: {error['message']}"


async def _produce(bootstrap_servers: str, topic: str, cases: tuple[BadInput, ...]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, max_request_size=2 * 2**20)
    await producer.start()
    try:
        for case in cases:
            if (case.key is None and case.value is None) or any(isinstance(name, RawName) for name, _ in case.headers):
                # aiokafka refuses what other clients may well send.
                await send_raw(producer, topic, 0, [(case.key, case.value, case.headers)])
            else:
                await producer.send_and_wait(topic, value=case.value, key=case.key, headers=list(case.headers))
    finally:
        await producer.stop()
