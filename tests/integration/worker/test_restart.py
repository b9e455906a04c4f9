"""Nothing is lost: a thousand requests, the worker stopped by SIGTERM in the middle and started again."""

import asyncio
import signal
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.conftest import KafkaHandle, read_topic
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_missing_topics
from topics.kafka_settings import KafkaSettings

pytestmark = [pytest.mark.broker, pytest.mark.model, pytest.mark.timeout(420)]

REQUESTS = 1_000
TENANTS = 5
CLASSES = ("p0", "p1", "p2", "p3")


async def test_a_thousand_requests_survive_a_sigterm(kafka: KafkaHandle, topic_prefix: str, tmp_path: Path) -> None:
    catalogue = Catalogue(prefix=topic_prefix, request_partitions=2, reply_partitions=2)
    async with KafkaAdmin(KafkaSettings(kafka.bootstrap_servers)) as admin:
        await create_missing_topics(admin, catalogue)
    expected = await _produce(kafka.bootstrap_servers, topic_prefix)

    first = await _start(kafka, topic_prefix, tmp_path / "first.log")
    await _until_answered(kafka, topic_prefix, at_least=REQUESTS // 4)
    first.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(first.wait(), 60) == 0, (tmp_path / "first.log").read_text()
    answered_by_first = await _answered(kafka, topic_prefix)
    assert REQUESTS // 4 <= len(answered_by_first) < REQUESTS, "the stop was not in the middle"

    second = await _start(kafka, topic_prefix, tmp_path / "second.log")
    await _until_answered(kafka, topic_prefix, at_least=REQUESTS)
    second.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(second.wait(), 60) == 0, (tmp_path / "second.log").read_text()

    assert await _answered(kafka, topic_prefix) == expected
    _check_streams(await read_topic(kafka.bootstrap_servers, f"{topic_prefix}.deltas"), expected)


async def _produce(bootstrap_servers: str, prefix: str) -> set[str]:
    """Small completions over all classes and tenants; every third one streams."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers)
    await producer.start()
    try:
        sends = []
        for number in range(REQUESTS):
            body = {"prompt": [100 + number % 7, 200, 300 + number % 11], "max_tokens": 1 + number % 3}
            body |= {"temperature": 0, "ignore_eos": True, "stream": number % 3 == 0}
            headers = [("request-id", f"r{number}".encode()), ("tenant", f"t{number % TENANTS}".encode())]
            topic = f"{prefix}.{CLASSES[number % len(CLASSES)]}"
            sends.append(await producer.send(topic, orjson.dumps(body), key=b"%d" % number, headers=headers))
        await asyncio.gather(*sends)
    finally:
        await producer.stop()
    return {f"r{number}" for number in range(REQUESTS)}


async def _start(kafka: KafkaHandle, prefix: str, log: Path) -> asyncio.subprocess.Process:
    arguments = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", prefix, "--dtype", "float32"]
    with log.open("wb") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers.cli", "serve", *arguments, stdout=output, stderr=output
        )


async def _answered(kafka: KafkaHandle, prefix: str) -> set[str]:
    records = await read_topic(kafka.bootstrap_servers, f"{prefix}.replies", isolation_level="read_committed")
    headers = [dict(record.headers) for record in records]
    assert all(header["event"] == b"final" for header in headers)
    return {header["request-id"].decode() for header in headers}


async def _until_answered(kafka: KafkaHandle, prefix: str, *, at_least: int) -> None:
    async with asyncio.timeout(300):
        # The log of a broker is polled: nothing in this process could set an event.
        while len(await _answered(kafka, prefix)) < at_least:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.5)


def _check_streams(deltas: list[Any], expected: set[str]) -> None:
    """Each stream's `seq` runs from 0 without a gap, and the tokens it covers are the request's."""
    covered: dict[str, dict[int, bytes]] = defaultdict(dict)
    for delta in deltas:
        headers = dict(delta.headers)
        if headers["event"] == b"attempt":
            continue  # the second worker goes on with what the first one had begun
        stream = covered[headers["request-id"].decode()]
        seq = int(headers["seq"])
        # A request that was answered twice (at least once) says the same again.
        assert stream.setdefault(seq, headers["tokens"]) == headers["tokens"]
    streaming = {f"r{number}" for number in range(0, REQUESTS, 3)}
    assert set(covered) == streaming
    for request_id, stream in covered.items():
        assert sorted(stream) == list(range(len(stream))), f"{request_id}: a gap in {sorted(stream)}"
        tokens = sum(len(ids.split(b",")) for ids in stream.values() if ids)
        assert tokens == 1 + int(request_id[1:]) % 3
