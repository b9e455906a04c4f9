"""Answers that came after the completion window: they count when the job is resumed, and no row is run once more."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.jobs.conftest import CommandLine
from tests.integration.jobs.test_cancel import FILES, ROWS, finals, until, write_prompts
from tests.integration.jobs.test_results import check_files, names, standing
from tests.integration.sleeping_workers import SleepingWorkers
from topics.jobs.follower import now_ms
from topics.jobs.state import JobState, state_of
from topics.jobs.tally import SETTLE_MS
from workers.commands.job_connection import JobDesk

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


async def test_a_resumed_job_runs_no_row_again_that_was_answered_late(
    desk: JobDesk, workers: SleepingWorkers, command_line: CommandLine, tmp_path: Path
) -> None:
    write_prompts(tmp_path / "rows.jsonl", tokens=8)
    async with workers.run(classes="p3"):
        code, _, err = await command_line.run("submit", "rows.jsonl", "--job-id", "job")
        assert code == 0, err
        await until(desk, ROWS // 10)
        # As if the window had closed some time ago: a worker that is behind hears of it from its rows' deadlines only.
        run = desk.board.jobs["job"].last_run
        assert run is not None
        await desk.board.write(run.model_copy(update={"expires_at_ms": now_ms() - SETTLE_MS}))
        expired = await standing(desk)
        assert state_of(desk.board.jobs["job"], expired) is JobState.EXPIRED
        async with asyncio.timeout(60):
            while (await finals(desk)).total() < ROWS * 2 // 10:  # noqa: ASYNC110 - the worker writes them
                await asyncio.sleep(0.1)
        assert (await standing(desk)).completed == expired.completed, "what was handed out has changed"

        code, _, err = await command_line.run("resume", "job", "--wait", *FILES)
        assert code == 0, err
    assert "the workers are asked to end" in err
    assert "answers that came after its window count now" in err
    done, failed = check_files(tmp_path / "out.jsonl", tmp_path / "bad.jsonl", names(ROWS))
    assert (len(done), failed) == (ROWS, [])
    assert state_of(desk.board.jobs["job"], await standing(desk)) is JobState.COMPLETED
    assert await finals(desk) == Counter(range(ROWS)), "a row was answered twice"
