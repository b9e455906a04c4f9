"""Jobs on a real broker: topics, an input of rows, a worker without a model, and the command line as a process."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.integration.conftest import KafkaHandle
from tests.integration.jobs.row_worker import RowWorker
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_topics
from topics.jobs.board import JobBoard
from topics.kafka_settings import KafkaSettings
from workers.commands.job_connection import JobDesk

_MAIN = "import sys; from workers.cli import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """`headrace …` against the test's topics, in a process that can be killed."""

    bootstrap_servers: str
    topic_prefix: str
    folder: Path

    async def start(self, command: str, *arguments: str | Path) -> asyncio.subprocess.Process:
        words = [command, *map(str, arguments)]
        words += ["--bootstrap-servers", self.bootstrap_servers, "--topic-prefix", self.topic_prefix]
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _MAIN, *words),
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, command: str, *arguments: str | Path) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        process = await self.start(command, *arguments)
        try:
            out, err = await asyncio.wait_for(process.communicate(), 120)
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def kill_when(self, process: asyncio.subprocess.Process, condition: Callable[[], Awaitable[bool]]) -> bool:
        """SIGKILL as soon as the condition holds: whether the process still ran then."""
        async with asyncio.timeout(120):
            # What another process writes is polled: nothing here could be told of it.
            while not await condition():  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.02)
        running = process.returncode is None
        if running:
            process.kill()
        await process.communicate()
        return running


@pytest.fixture
def settings(kafka: KafkaHandle) -> KafkaSettings:
    return KafkaSettings(kafka.bootstrap_servers)


@pytest.fixture
async def catalogue(settings: KafkaSettings, topic_prefix: str) -> Catalogue:
    catalogue = Catalogue(topic_prefix, request_partitions=3, reply_partitions=2)
    used = (catalogue.requests("p3"), catalogue.replies, catalogue.jobs, catalogue.control)
    async with KafkaAdmin(settings) as admin:
        await create_topics(admin, [spec for spec in catalogue.specs() if spec.name in used], replication_factor=1)
    return catalogue


@pytest.fixture
async def desk(settings: KafkaSettings, catalogue: Catalogue) -> AsyncIterator[JobDesk]:
    async with JobBoard(settings, catalogue) as board:
        yield JobDesk(settings, catalogue, board)


@pytest.fixture
async def row_worker(settings: KafkaSettings, catalogue: Catalogue) -> AsyncIterator[RowWorker]:
    async with RowWorker(settings, catalogue, twice=True) as worker:
        yield worker


@pytest.fixture
def command_line(kafka: KafkaHandle, topic_prefix: str, catalogue: Catalogue, tmp_path: Path) -> CommandLine:
    return CommandLine(kafka.bootstrap_servers, topic_prefix, tmp_path)


def write_rows(path: Path, count: int, *, failing: Sequence[int] = (), bad: Sequence[int] = ()) -> Path:
    """`failing` rows are answered with an error, `bad` ones are no requests."""
    with path.open("wb") as file:
        for row in range(count):
            content = "fail" if row in failing else f"row {row}"
            line: dict[str, Any] = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/chat/completions"}
            line["body"] = {"messages": [{"role": "user", "content": content}], "max_tokens": 4}
            file.write(b"{\n" if row in bad else orjson.dumps(line) + b"\n")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]
