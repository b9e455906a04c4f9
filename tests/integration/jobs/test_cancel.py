"""Cancelling a job: output lines + error lines = rows, each `custom_id` once, wherever the job was."""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections import Counter
from pathlib import Path

import orjson
import pytest

from tests.integration.conftest import read_topic
from tests.integration.jobs.conftest import CommandLine
from tests.integration.jobs.test_results import check_files, names, standing
from tests.integration.jobs.test_submit import form, sent_ids, submit
from tests.integration.sleeping_workers import SleepingWorkers
from topics.jobs.cancelling import cancel_job
from topics.jobs.checked_input import CheckedInput, check_input
from topics.jobs.follower import now_ms
from topics.jobs.input_file import open_input
from topics.jobs.records import JobCancel
from topics.jobs.state import JobState, state_of
from topics.jobs.submission import JobCancelledError, JobConflictError, Submission
from topics.partition_reader import end_offsets
from workers.commands.job_connection import JobDesk

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

ROWS = 2_000
FILES = ("--output", "out.jsonl", "--errors", "bad.jsonl")


def write_prompts(path: Path, *, tokens: int = 2, ballast: int = 0) -> None:
    """Requests for the model that sleeps. `ballast`: bytes for each row, so that they are sent in many stretches."""
    metadata = {f"k{place}": "\u4e00" * 512 for place in range(ballast // 1536)}
    with path.open("wb") as file:
        for row in range(ROWS):
            body = {"prompt": [100, 101], "max_tokens": tokens, "ignore_eos": True, "metadata": metadata}
            line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(orjson.dumps(line) + b"\n")


async def sending_begun(desk: JobDesk) -> None:
    topic = desk.catalogue.requests("p3")
    async with asyncio.timeout(120):
        # What another process writes is polled: nothing here could be told of it.
        while not any((await end_offsets(desk.settings, topic, range(3))).values()):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.05)


async def stopped_in_the_middle(desk: JobDesk, command_line: CommandLine, path: Path) -> Process:
    """A submitter that stands still: some rows are on the broker, others will never be if it isn't let go on."""
    write_prompts(path, ballast=24_000)
    process = await command_line.start("submit", path, "--job-id", "job")
    await sending_begun(desk)
    process.send_signal(signal.SIGSTOP)
    await desk.board.refresh()
    run = desk.board.jobs["job"].last_run
    assert run is not None
    assert run.sent_at_ms is None, "the submitter was not stopped in the middle"
    return process


async def cancelled(desk: JobDesk) -> None:
    async with asyncio.timeout(60):
        while not desk.board.jobs["job"].cancelled:
            await desk.board.refresh()
            await asyncio.sleep(0.1)


async def until(desk: JobDesk, rows: int) -> None:
    """Wait for so many rows to have their fate. Seldom looked for: each look counts all replies anew."""
    async with asyncio.timeout(120):
        while (now := await standing(desk)).total - now.pending < rows:  # noqa: ASYNC110 - others write it
            await asyncio.sleep(0.5)


async def finals(desk: JobDesk) -> Counter[int]:
    """How often each row was answered with a final, over all runs."""
    replies = await read_topic(
        desk.settings.bootstrap_servers, desk.catalogue.replies, isolation_level="read_committed"
    )
    ids = (headers["request-id"] for reply in replies if (headers := dict(reply.headers))["event"] == b"final")
    return Counter(int(request_id.rsplit(b"~", 1)[1]) for request_id in ids)


async def test_a_cancel_in_the_middle_of_the_submit_and_the_rest_later(
    desk: JobDesk, workers: SleepingWorkers, command_line: CommandLine, tmp_path: Path
) -> None:
    process = await stopped_in_the_middle(desk, command_line, tmp_path / "rows.jsonl")
    try:
        async with workers.run(classes="p3"):
            cancelling = asyncio.create_task(command_line.run("cancel", "job", "--json"))
            await cancelled(desk)
            assert state_of(desk.board.jobs["job"], await standing(desk)) is JobState.CANCELLING
            process.send_signal(signal.SIGCONT)
            code, out, err = await cancelling
            assert code == 0, err
            assert orjson.loads(out)["order"] == "cancel job job"
            _, said = await process.communicate()
            assert (process.returncode, b"headrace resume job" in said) == (1, True), said
            await until(desk, ROWS)
            assert 0 < len(await sent_ids(desk)) < ROWS

            code, out, err = await command_line.run("results", "job", *FILES, "--json")
            assert code == 0, err
            batch = orjson.loads(out)
            assert batch["status"] == "cancelled"
            assert batch["in_progress_at"] <= batch["cancelling_at"] <= batch["cancelled_at"]
            _, failed = check_files(tmp_path / "out.jsonl", tmp_path / "bad.jsonl", names(ROWS))
            assert {line["error"]["code"] for line in failed} == {"batch_cancelled"}

            code, _, err = await command_line.run("resume", "job", "--wait", *FILES)
            assert code == 0, err
        done, _ = check_files(tmp_path / "out.jsonl", tmp_path / "bad.jsonl", names(ROWS))
        assert len(done) == ROWS
        assert state_of(desk.board.jobs["job"], await standing(desk)) is JobState.COMPLETED
        assert await finals(desk) == Counter(range(ROWS)), "a finished row was run again"
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_a_cancel_in_the_middle_of_the_run(
    desk: JobDesk, workers: SleepingWorkers, command_line: CommandLine, tmp_path: Path
) -> None:
    write_prompts(tmp_path / "rows.jsonl", tokens=8)
    async with workers.run(classes="p3"), workers.client() as client:
        process = await command_line.start("submit", "rows.jsonl", "--job-id", "job", "--wait", *FILES, "--json")
        async with asyncio.timeout(60):
            while "job" not in desk.board.jobs:
                await desk.board.refresh()
                await asyncio.sleep(0.05)
        await until(desk, ROWS * 3 // 10)
        await client.cancel(job="job")
        out, err = await process.communicate()
    assert process.returncode == 1, err
    batch = orjson.loads(out)
    done, failed = check_files(tmp_path / "out.jsonl", tmp_path / "bad.jsonl", names(ROWS))
    assert batch["request_counts"] == {"total": ROWS, "completed": len(done), "failed": len(failed)}
    assert batch["status"] == "cancelled"
    assert batch["cancelling_at"] <= batch["finalizing_at"] <= batch["cancelled_at"]
    assert ROWS * 3 // 10 <= len(done) < ROWS
    assert {line["error"]["code"] for line in failed} == {"batch_cancelled"}
    with pytest.raises(JobConflictError, match="has ended already: it is cancelled"):
        await cancel_job(desk.settings, desk.catalogue, desk.board, "job")


async def test_a_submitter_that_was_killed_is_taken_over(
    desk: JobDesk, workers: SleepingWorkers, command_line: CommandLine, tmp_path: Path
) -> None:
    process = await stopped_in_the_middle(desk, command_line, tmp_path / "rows.jsonl")
    process.kill()
    await process.communicate()
    job = desk.board.jobs["job"]
    asked = JobCancel(job_id="job", ordered_at_ms=job.order.created_at_ms, run=1, asked_at_ms=now_ms())
    await desk.board.write(asked)
    await Submission(desk.settings, desk.catalogue, desk.board).stop(job)
    on_broker = len(await sent_ids(desk))
    told = await standing(desk)
    assert (told.cancelled, told.pending) == (ROWS - on_broker, on_broker)
    async with workers.run(classes="p3"):
        await until(desk, ROWS)
    await command_line.run("results", "job", *FILES)
    done, _ = check_files(tmp_path / "out.jsonl", tmp_path / "bad.jsonl", names(ROWS))
    assert done == []
    code, _, err = await command_line.run("submit", "rows.jsonl", "--job-id", "job")
    assert (code, "0 rows sent" in err) == (1, True), "a cancelled job goes on with `resume` alone"


async def test_a_job_that_is_cancelled_while_it_is_checked_sends_nothing(desk: JobDesk, tmp_path: Path) -> None:
    write_prompts(tmp_path / "rows.jsonl")
    with open_input(os.fspath(tmp_path / "rows.jsonl")) as file:

        async def check() -> CheckedInput:
            await cancel_job(desk.settings, desk.catalogue, desk.board, "job")
            return check_input(file)

        submission = Submission(desk.settings, desk.catalogue, desk.board)
        with pytest.raises(JobCancelledError):
            await submission.order(form(), file, check, skip_invalid=False)
        assert state_of(desk.board.jobs["job"], await standing(desk)) is JobState.CANCELLED
        with pytest.raises(JobCancelledError):
            await submit(desk, file, form())
    assert await sent_ids(desk) == []
