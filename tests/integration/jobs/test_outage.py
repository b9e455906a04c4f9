"""A broker that dies in the middle of a job and comes back: the collector waits for it, and nothing is lost."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.jobs.conftest import write_rows
from tests.integration.jobs.row_worker import RowWorker
from tests.integration.jobs.test_collectors import collecting, submit, until
from tests.integration.jobs.test_results import check_files, names
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_topics
from topics.jobs.board import JobBoard
from topics.kafka_settings import KafkaSettings
from topics.local_broker import LocalBroker
from workers.commands.job_connection import JobDesk

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


async def test_a_collector_outlives_its_broker(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 20)
    catalogue = Catalogue("outage", request_partitions=2, reply_partitions=2)
    async with LocalBroker(tmp_path / "broker", start_timeout_s=120.0) as broker:
        settings = KafkaSettings(broker.bootstrap_servers)
        used = (catalogue.requests("p3"), catalogue.replies, catalogue.jobs)
        async with KafkaAdmin(settings) as admin:
            await create_topics(admin, [spec for spec in catalogue.specs() if spec.name in used], replication_factor=1)
        async with (
            JobBoard(settings, catalogue) as board,
            RowWorker(settings, catalogue, twice=True) as worker,
            collecting(JobDesk(settings, catalogue, board), str(tmp_path / "results"), tmp_path) as collector,
        ):
            await submit(JobDesk(settings, catalogue, board), "job", tmp_path / "rows.jsonl")
            worker.allow(10)
            await until(lambda: sum(worker.runs.values()) == 10)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            worker.allow(10)
            await until(lambda: collector.statistics().ended_jobs == 1)
    check_files(tmp_path / "results/job/output.jsonl", tmp_path / "results/job/errors.jsonl", names(20))
