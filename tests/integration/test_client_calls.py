"""The client library's calls beside the plain ones: a partition of its own, and jobs."""

import asyncio
import uuid
from pathlib import Path

import orjson
import pytest

from tests.integration.conftest import KafkaHandle
from tests.integration.jobs.row_worker import RowWorker
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_topics
from topics.client import HeadraceClient
from topics.headers import RequestHeaders
from topics.jobs.desk import UnknownJobError
from topics.kafka_settings import KafkaSettings
from topics.sync_client import SyncHeadraceClient

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


@pytest.fixture
async def catalogue(kafka: KafkaHandle, topic_prefix: str) -> Catalogue:
    catalogue = Catalogue(topic_prefix, request_partitions=2, reply_partitions=4)
    used = (catalogue.requests("p3"), catalogue.replies, catalogue.deltas, catalogue.jobs)
    async with KafkaAdmin(KafkaSettings(kafka.bootstrap_servers)) as admin:
        await create_topics(admin, [spec for spec in catalogue.specs() if spec.name in used], replication_factor=1)
    return catalogue


async def test_a_client_may_read_its_own_partition_alone(kafka: KafkaHandle, catalogue: Catalogue) -> None:
    settings, prefix = KafkaSettings(kafka.bootstrap_servers), catalogue.prefix
    async with (
        RowWorker(settings, catalogue) as worker,
        HeadraceClient(settings, topic_prefix=prefix, own_partition=True) as one,
        HeadraceClient(settings, topic_prefix=prefix, own_partition=True) as other,
    ):
        worker.allow(100)
        asked = [client.chat(f"{number}", priority="p3") for number in range(10) for client in (one, other)]
        answers = await asyncio.gather(*asked)
        assert [answer.text for answer in answers] == [f"You said {number}." for number in range(10) for _ in "12"]
        # Ids of its own are answered where it reads: anybody else's, mostly, are not.
        elsewhere = next(key for key in iter(lambda: uuid.uuid4().hex, "") if not one.reads(key))
        with pytest.raises(ValueError, match="new_request_id"):
            await one.send({"messages": []}, priority="p3", headers=RequestHeaders(request_id=elsewhere))


async def test_a_job_is_submitted_once_and_says_how_it_goes(
    kafka: KafkaHandle, catalogue: Catalogue, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    body = {"messages": [{"role": "user", "content": "hi"}]}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    rows.write_bytes(b"".join(orjson.dumps({"custom_id": f"r{row}", **line}) + b"\n" for row in range(8)))
    settings = KafkaSettings(kafka.bootstrap_servers)
    async with RowWorker(settings, catalogue) as worker:
        worker.allow(8)
        ids, batch = await asyncio.to_thread(submitted, settings, catalogue.prefix, rows)
    assert len(set(ids)) == 1
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 8, "completed": 8, "failed": 0}


def submitted(settings: KafkaSettings, prefix: str, rows: Path) -> tuple[list[str], dict[str, object]]:
    """Twice, and how it stands when it has ended."""
    with SyncHeadraceClient(settings, topic_prefix=prefix) as client:
        ids = [client.submit(rows, tenant="acme", metadata={"k": "v"}) for _ in range(2)]
        with pytest.raises(UnknownJobError):
            client.job("nobody")
        while (batch := client.job(ids[0]))["status"] == "in_progress":
            pass
        return ids, batch
