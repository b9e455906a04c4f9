"""A job on the real model: every row answered, in OpenAI's format, while an urgent prompt is served in between."""

import asyncio
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai.types.chat import ChatCompletion

from tests.integration.worker.conftest import RunWorker
from topics.catalogue import Catalogue
from topics.client import HeadraceClient
from topics.jobs.board import JobBoard
from topics.jobs.checked_input import CheckedInput, check_input
from topics.jobs.input_file import InputFile, open_input
from topics.jobs.state import Standing
from topics.jobs.submission import OrderForm, Submission
from topics.kafka_settings import KafkaSettings
from workers.commands.job_connection import JobDesk
from workers.commands.job_waiting import wait_for_job
from workers.configuration.config import WorkerConfig

pytestmark = [pytest.mark.broker, pytest.mark.model, pytest.mark.timeout(300)]

ROWS = 16
TOO_LONG = 5


def write_rows(path: Path) -> None:
    with path.open("wb") as file:
        for row in range(ROWS):
            body: dict[str, Any] = {"messages": [{"role": "user", "content": f"Count to {row}."}], "max_tokens": 3}
            if row == TOO_LONG:
                body["max_tokens"] = 100_000  # right in itself, refused by the model's context
            line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(orjson.dumps(line) + b"\n")


async def submit(desk: JobDesk, file: InputFile) -> None:
    async def check() -> CheckedInput:
        return check_input(file)

    form = OrderForm("job", "p3", "acme", 1, 3_600, {})
    submission = Submission(desk.settings, desk.catalogue, desk.board)
    await submission.send(await submission.order(form, file, check, skip_invalid=False), file)


async def test_a_job_beside_an_urgent_prompt(
    worker_config: WorkerConfig, run_worker: RunWorker, tmp_path: Path
) -> None:
    write_rows(tmp_path / "rows.jsonl")
    kafka = worker_config.kafka
    settings, catalogue = KafkaSettings(kafka.bootstrap_servers), Catalogue(kafka.topic_prefix)
    output, errors = tmp_path / "out.jsonl", tmp_path / "bad.jsonl"
    answered: list[int] = []

    def on_standing(standing: Standing) -> None:
        answered.append(standing.total - standing.pending)

    async with (
        run_worker(worker_config),
        JobBoard(settings, catalogue) as board,
        HeadraceClient(kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix) as client,
    ):
        desk = JobDesk(settings, catalogue, board)
        with open_input(os.fspath(tmp_path / "rows.jsonl")) as file:
            await submit(desk, file)
        waiting = asyncio.create_task(
            wait_for_job(desk, board.jobs["job"], on_standing, output=output, errors=errors, in_order=True)
        )
        urgent = await client.complete("Say hello.", priority="p0", max_tokens=2, timeout_s=120)
        standing = await waiting
    assert urgent.usage["completion_tokens"] == 2
    assert (standing.completed, standing.failed) == (ROWS - 1, 1)
    assert answered == sorted(answered)
    done = [orjson.loads(line) for line in output.read_bytes().splitlines()]
    (refused,) = (orjson.loads(line) for line in errors.read_bytes().splitlines())
    assert [line["custom_id"] for line in done] == [f"r{row}" for row in range(ROWS) if row != TOO_LONG]
    for line in done:
        ChatCompletion.model_validate(line["response"]["body"], strict=True)
    assert (refused["custom_id"], refused["response"]["status_code"]) == (f"r{TOO_LONG}", 400)
