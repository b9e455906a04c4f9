"""Results: output lines + error lines = rows, each `custom_id` once, whatever is killed."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.batch_format import BATCH, RESULT_LINE, schema_of
from tests.integration.jobs.conftest import CommandLine, read_lines, write_rows
from tests.integration.jobs.row_worker import RowWorker
from topics.jobs.follower import standings
from topics.jobs.state import JobState, Standing, state_of
from workers.commands.job_connection import JobDesk

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


def check_files(output: Path, errors: Path, names: set[str]) -> tuple[list[Any], list[Any]]:
    """Every name once, all lines in OpenAI's format."""
    done, failed = read_lines(output), read_lines(errors)
    validator = schema_of(RESULT_LINE)
    for line in done + failed:
        validator.validate(line)
    assert sorted(line["custom_id"] for line in done + failed) == sorted(names)
    assert all(line["response"]["status_code"] == 200 for line in done)
    assert all(line["response"] is None or line["response"]["status_code"] >= 400 for line in failed)
    return done, failed


def names(count: int) -> set[str]:
    return {f"r{row}" for row in range(count)}


async def standing(desk: JobDesk, job_id: str = "job") -> Standing:
    await desk.board.refresh()
    job = desk.board.jobs[job_id]
    return (await standings(desk.settings, desk.catalogue, desk.board, [job]))[job_id]


async def until(desk: JobDesk, done: int) -> None:
    """Wait for so many rows to have their fate."""
    async with asyncio.timeout(120):
        # What other processes write is polled: nothing here could be told of it.
        while (now := await standing(desk)).total - now.pending < done:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.05)


async def test_a_job_from_file_to_files(
    desk: JobDesk, row_worker: RowWorker, command_line: CommandLine, tmp_path: Path
) -> None:
    write_rows(tmp_path / "rows.jsonl", 40, failing=[3, 4], bad=[9])
    row_worker.allow(1_000)
    code, out, err = await command_line.run(
        *("submit", "rows.jsonl", "--job-id", "job", "--wait", "--skip-invalid", "--metadata", "night=1"),
        *("--output", "out.jsonl", "--errors", "bad.jsonl", "--in-order", "--json"),
    )
    assert code == 1, err  # some rows failed
    expected = names(40) - {"r9"} | {"#line:10"}
    done, failed = check_files(tmp_path / "out.jsonl", tmp_path / "bad.jsonl", expected)
    assert [line["custom_id"] for line in done] == [f"r{row}" for row in range(40) if row not in (3, 4, 9)]
    assert [line["response"]["status_code"] for line in failed] == [500, 500, 400]
    assert done[5]["response"]["body"]["choices"][0]["message"]["content"] == "You said row 7."
    batch = orjson.loads(out)
    assert batch["request_counts"] == {"total": 40, "completed": 37, "failed": 3}
    assert (batch["status"], batch["metadata"]) == ("completed", {"night": "1"})
    assert batch["usage"]["total_tokens"] == 37 * 5
    assert set(row_worker.runs.values()) == {1}


async def test_results_at_any_time(
    desk: JobDesk, row_worker: RowWorker, command_line: CommandLine, tmp_path: Path
) -> None:
    write_rows(tmp_path / "rows.jsonl", 30)
    assert (await command_line.run("submit", "rows.jsonl", "--job-id", "job"))[0] == 0
    row_worker.allow(10)
    await until(desk, 10)
    files = ("--output", "out.jsonl", "--errors", "bad.jsonl")
    code, _, said = await command_line.run("results", "job", *files)
    assert (code, len(read_lines(tmp_path / "out.jsonl"))) == (3, 10), said
    row_worker.allow(20)
    await until(desk, 30)
    assert (await command_line.run("results", "job", *files))[0] == 0
    check_files(tmp_path / "out.jsonl", tmp_path / "bad.jsonl", names(30))
    code, out, _ = await command_line.run("results", "job", "--output", "-", "--in-order")
    assert [orjson.loads(line)["custom_id"] for line in out.splitlines()] == [f"r{row}" for row in range(30)]


async def test_a_waiting_client_that_is_killed_goes_on_where_it_was(
    desk: JobDesk, row_worker: RowWorker, command_line: CommandLine, tmp_path: Path
) -> None:
    write_rows(tmp_path / "rows.jsonl", 40)
    command = ("submit", "rows.jsonl", "--job-id", "job", "--wait", "--output", "out.jsonl", "--errors", "bad.jsonl")
    process = await command_line.start(*command)

    async def journalled() -> bool:
        journal = tmp_path / "out.jsonl.job.journal"
        return journal.exists() and journal.read_bytes().count(b"\n") > 10

    row_worker.allow(20)
    assert await command_line.kill_when(process, journalled)
    assert not (tmp_path / "out.jsonl").exists()
    row_worker.allow(20)
    code, _, err = await command_line.run(*command)
    assert code == 0, err
    check_files(tmp_path / "out.jsonl", tmp_path / "bad.jsonl", names(40))
    assert sorted(os.listdir(tmp_path)) == ["bad.jsonl", "out.jsonl", "rows.jsonl"]
    assert set(row_worker.runs.values()) == {1}


async def test_a_killed_collector_loses_no_row_and_repeats_none(
    desk: JobDesk, row_worker: RowWorker, command_line: CommandLine, tmp_path: Path
) -> None:
    write_rows(tmp_path / "rows.jsonl", 60, failing=[5])
    assert (await command_line.run("submit", "rows.jsonl", "--job-id", "job"))[0] == 0
    journal = tmp_path / "results" / "job" / "journal"
    for goal in (1, 25):
        process = await command_line.start("collect", "--output-dir", "results")

        async def journalled(goal: int = goal) -> bool:
            return journal.exists() and journal.read_bytes().count(b"\n") > goal

        row_worker.allow(20)
        assert await command_line.kill_when(process, journalled)
    with journal.open("ab") as file:
        file.write(b'["r",12')  # the last line is torn
    process = await command_line.start("collect", "--output-dir", "results")
    row_worker.allow(20)
    async with asyncio.timeout(90):
        while not (desk.board.jobs.get("job") and desk.board.jobs["job"].ended):
            await desk.board.refresh()
            await asyncio.sleep(0.05)
    process.terminate()
    await process.communicate()
    assert process.returncode == 0
    check_files(tmp_path / "results/job/output.jsonl", tmp_path / "results/job/errors.jsonl", names(60))
    batch = orjson.loads((tmp_path / "results/job/batch.json").read_bytes())
    schema_of(BATCH).validate(batch)
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 59)
    assert batch["created_at"] <= batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"]
    assert (await standing(desk)).output == str(tmp_path / "results/job/output.jsonl")
    assert set(row_worker.runs.values()) == {1}


async def test_expiry_then_resume_then_retry(
    desk: JobDesk, row_worker: RowWorker, command_line: CommandLine, tmp_path: Path
) -> None:
    """The window closes at 30 %; rows that were done are not run again, rows that failed only when they are retried."""
    write_rows(tmp_path / "rows.jsonl", 30, failing=[1], bad=[2])
    submitted = await command_line.run(
        "submit", "rows.jsonl", "--job-id", "job", "--skip-invalid", "--completion-window", "5s"
    )
    assert submitted[0] == 0, submitted
    row_worker.allow(9)
    await until(desk, 10)  # with the bad row
    run = desk.board.jobs["job"].last_run
    assert run is not None
    await asyncio.sleep(max(0.0, run.expires_at_ms / 1000 - time.time()))  # the window itself is what is waited for
    row_worker.allow(20)  # answered `expired`
    await until(desk, 30)
    expired = await standing(desk)
    assert state_of(desk.board.jobs["job"], expired) is JobState.EXPIRED
    assert expired.expired == 20

    row_worker.allow(20)
    files = ("--wait", "--output", "out.jsonl", "--errors", "bad.jsonl")
    code, _, err = await command_line.run("resume", "job", "--completion-window", "1h", *files)
    assert code == 1, err
    _, failed = check_files(tmp_path / "out.jsonl", tmp_path / "bad.jsonl", names(30) - {"r2"} | {"#line:3"})
    assert sorted(line["custom_id"] for line in failed) == ["#line:3", "r1"]
    assert state_of(desk.board.jobs["job"], await standing(desk)) is JobState.COMPLETED

    row_worker.allow(1)
    code, _, err = await command_line.run("retry", "job", *files)
    assert code == 1, err
    _, failed = check_files(tmp_path / "out.jsonl", tmp_path / "bad.jsonl", names(30) - {"r2"} | {"#line:3"})
    assert [line["id"] for line in failed if line["custom_id"] == "r1"] == ["batch_req_job~3~1"]
    code, _, err = await command_line.run("resume", "job")
    assert (code, "nothing to resume" in err) == (2, True)
    assert set(row_worker.runs.values()) == {1}
    assert len(row_worker.runs) == 28
