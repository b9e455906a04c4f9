"""Several collectors: each job has one, and when that one goes another takes the job over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.jobs.conftest import write_rows
from tests.integration.jobs.row_worker import RowWorker
from tests.integration.jobs.test_results import check_files, names
from topics.jobs.checked_input import CheckedInput, check_input
from topics.jobs.collector import Collector
from topics.jobs.input_file import open_input
from topics.jobs.result_store import ResultStore
from topics.jobs.row_ids import reply_partition_of
from topics.jobs.submission import OrderForm, Submission
from workers.commands.job_connection import JobDesk

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


@asynccontextmanager
async def collecting(desk: JobDesk, target: str, spool: Path) -> AsyncIterator[Collector]:
    stop = asyncio.Event()
    collector = Collector(desk.settings, desk.catalogue, ResultStore(target, spool))
    running = asyncio.create_task(collector.run(stop))
    try:
        yield collector
    finally:
        stop.set()
        await running


async def submit(desk: JobDesk, job_id: str, path: Path) -> None:
    with open_input(str(path)) as file:

        async def check() -> CheckedInput:
            return check_input(file)

        submission = Submission(desk.settings, desk.catalogue, desk.board)
        form = OrderForm(job_id, "p3", "acme", 1, 3_600, {})
        await submission.send(await submission.order(form, file, check, skip_invalid=False), file)


def one_job_a_partition() -> list[str]:
    found: dict[int, str] = {}
    for number in range(100):
        found.setdefault(reply_partition_of(f"job-{number}", 2), f"job-{number}")
    return [found[0], found[1]]


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(120):
        # Collectors have turns of their own: what they come to is looked for.
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.05)


async def test_collectors_share_the_jobs_and_take_over(desk: JobDesk, row_worker: RowWorker, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 20)
    jobs = one_job_a_partition()
    for job_id in jobs:
        await submit(desk, job_id, tmp_path / "rows.jsonl")
    target = str(tmp_path / "results")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(collecting(desk, target, tmp_path))
        async with collecting(desk, target, tmp_path) as second:
            await until(lambda: (first.statistics().open_jobs, second.statistics().open_jobs) == (1, 1))
            row_worker.allow(10)
            await until(lambda: sum(row_worker.runs.values()) == 10)
        await until(lambda: first.statistics().open_jobs == 2)
        row_worker.allow(30)
        await until(lambda: first.statistics().ended_jobs == 2)
    for job_id in jobs:
        folder = tmp_path / "results" / job_id
        check_files(folder / "output.jsonl", folder / "errors.jsonl", names(20))
    await desk.board.refresh()
    assert all(desk.board.jobs[job_id].ended for job_id in jobs)


async def test_results_may_go_to_a_url(desk: JobDesk, row_worker: RowWorker, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 5)
    await submit(desk, "job", tmp_path / "rows.jsonl")
    row_worker.allow(5)
    async with collecting(desk, f"file://{tmp_path}/there", tmp_path / "spool") as collector:
        await until(lambda: collector.statistics().ended_jobs == 1)
    check_files(tmp_path / "there/job/output.jsonl", tmp_path / "there/job/errors.jsonl", names(5))
    assert (tmp_path / "there/job/batch.json").exists()
    assert not (tmp_path / "there/job/journal").exists()
    await desk.board.refresh()
    memo = desk.board.jobs["job"].memo
    assert memo is not None
    assert memo.output == f"file://{tmp_path}/there/job/output.jsonl"
