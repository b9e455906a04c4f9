"""Every client that we make, over TLS and by each SASL mechanism; and what those are told who may not come in."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from tests.chaos.sleeping_runner import sleeping_model
from tests.integration.security.conftest import PASSWORD, USER, SecureKafka
from topics.admin import KafkaAdmin
from topics.aiokafka_producer import KafkaUnavailableError
from topics.catalogue import Catalogue, create_missing_topics
from topics.client import HeadraceClient
from topics.headers import RequestHeaders
from topics.partition_reader import PartitionReader
from topics.record_producer import RecordProducer
from topics.replies import OutboundRecord
from workers.cli import main
from workers.commands.connection import connection
from workers.configuration.config import load_config
from workers.log_format import keep_records_out_of_logs
from workers.worker import Worker

pytestmark = pytest.mark.broker

WAYS = [
    ("SSL", "PLAIN"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "SCRAM-SHA-512"),
    ("SASL_SSL", "OAUTHBEARER"),
]


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
async def test_a_record_goes_there_and_back(
    secure_kafka: SecureKafka, topic_prefix: str, protocol: str, mechanism: str
) -> None:
    settings = secure_kafka.settings(protocol, mechanism)
    async with KafkaAdmin(settings) as admin:
        await admin.create_topic(topic_prefix, partitions=1, replication_factor=1, configs={})
    producer = RecordProducer(settings, "test")
    await producer.start()
    await producer.submit(OutboundRecord(topic_prefix, 0, None, b"hello"))
    await producer.stop()
    async with PartitionReader(settings, topic_prefix, 0, read_committed=True) as reader:
        values = [record.value async for records in reader.read_to_end() for record in records]
    assert values == [b"hello"]


async def test_a_worker_a_client_and_a_command_over_scram_and_tls(
    secure_kafka: SecureKafka,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """All of it, logged at the most talkative level: neither the password nor a word of the request is in the log."""
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("aiokafka", "topics", "workers")):
            caplog.set_level(logging.DEBUG, logger=name)  # a command that ran in this process has quietened some
    keep_records_out_of_logs()
    password_file = tmp_path / "password"
    password_file.write_text(f"{PASSWORD}\n", encoding="utf-8")
    fields: dict[str, Any] = secure_kafka.fields("SASL_SSL", "SCRAM-SHA-512")
    del fields["sasl_password"]
    fields["sasl_password_file"] = password_file
    config = load_config({"kafka": {**fields, "topic_prefix": topic_prefix}, "classes": "p1"})
    settings = connection(config.kafka, "test")
    async with KafkaAdmin(settings) as admin:
        catalogue = Catalogue(topic_prefix, request_partitions=1, reply_partitions=1)
        await create_missing_topics(admin, catalogue)
    stop = asyncio.Event()
    worker = Worker(config, sleeping_model(), settings, trace.get_tracer("test"), instance="secure")
    running = asyncio.create_task(worker.run(stop))
    try:
        async with asyncio.timeout(60), HeadraceClient(settings, topic_prefix=topic_prefix) as client:
            await worker.ready.wait()
            body = {"prompt": [100, 101], "max_tokens": 3, "user": "a-secret-of-the-user", "stream": True}
            await client.send(body, priority="p1", headers=RequestHeaders("r"))
            await client.result("r")
            for name, value in {**fields, "topic_prefix": topic_prefix}.items():
                monkeypatch.setenv(f"HEADRACE_KAFKA__{name.upper()}", str(value))
            assert await asyncio.to_thread(main, ["control", "list"]) == 0
            assert "secure  serving" in capfd.readouterr().out
    finally:
        stop.set()
        await running
    logged = caplog.text
    assert "secure" in logged, "nothing was logged"
    for secret in (PASSWORD, "a-secret-of-the-user", '"prompt"'):
        assert secret not in logged


@pytest.mark.parametrize(
    ("protocol", "wrong"),
    [
        ("SASL_SSL", {"sasl_password": "wrong"}),
        ("SASL_SSL", {"ssl_cafile": None}),
        ("SSL", {"ssl_certfile": None, "ssl_keyfile": None}),
    ],
    ids=["password", "unknown authority", "no client certificate"],
)
async def test_who_may_not_come_in_is_told_without_a_secret(
    secure_kafka: SecureKafka, protocol: str, wrong: dict[str, Any]
) -> None:
    settings = secure_kafka.settings(protocol, "SCRAM-SHA-512", **wrong)
    producer = RecordProducer(settings, "test", connect_timeout_s=3.0)
    with pytest.raises(KafkaUnavailableError) as refused:
        await producer.start()
    assert PASSWORD not in str(refused.value)
    assert USER not in str(refused.value)
