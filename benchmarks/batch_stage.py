"""Where `benchmarks.batch_stories` play: a broker, commands as processes, and what has come of the job.

Knows processes, terminals and topics. Does not know the stories.
"""

import asyncio
import os
import pty
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from topics.admin import KafkaAdmin
from topics.aiokafka_producer import KafkaUnavailableError
from topics.attempt_notes import AttemptKey
from topics.catalogue import Catalogue, create_missing_topics
from topics.headers import ATTEMPT, EVENT, REQUEST_ID
from topics.jobs.board import Job, JobBoard
from topics.jobs.follower import standings
from topics.jobs.row_ids import RowId
from topics.jobs.state import Standing, batch_object
from topics.kafka_settings import KafkaSettings
from topics.local_broker import LocalBroker
from topics.partition_reader import PartitionReader
from topics.record import InboundRecord

__all__ = ["JOB", "Command", "Stage"]

JOB = "job"
_MAIN = "import sys; from workers.cli import main; sys.exit(main())"
_LOOK_S = 0.5
_NOTES_S = 2.0
"""Far below what a topic's segments are kept for before they are compacted."""
_BAR = re.compile(r"answered\s.*?([\d,]+)/([\d,]+)[^\r\n]*")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Command:
    """A `headrace` command as a process. What it says is kept."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: int | None) -> None:
        self._process = process
        self._heard = bytearray()
        """On its standard error, or its terminal."""
        self._ended = asyncio.create_task(self._until_ended(terminal))
        self.output = ""

    async def _until_ended(self, terminal: int | None) -> int:
        if terminal is None:
            out, heard = await self._process.communicate()
            self._heard += heard
        else:
            reading = asyncio.create_task(asyncio.to_thread(self._read, terminal))
            out, _ = await self._process.communicate()
            await reading
            os.close(terminal)
        self.output = out.decode()
        assert self._process.returncode is not None
        return self._process.returncode

    def _read(self, terminal: int) -> None:
        try:
            while data := os.read(terminal, 65_536):
                self._heard += data
        except OSError:
            pass  # how Linux says that nobody has the other end open any more

    async def ended(self) -> int:
        return await asyncio.shield(self._ended)

    async def kill(self) -> bool:
        """SIGKILL: whether it still ran."""
        ran = self._process.returncode is None
        if ran:
            self._process.kill()
        await self._ended
        return ran

    async def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        if (code := await self._ended) != 0:
            raise SystemExit(f"a process ended with {code}: {self.heard()}")

    def heard(self) -> str:
        return _ESCAPES.sub("", self._heard.decode(errors="replace"))

    def counts_shown(self) -> set[str]:
        """Different numbers of answered rows that the bar showed."""
        return {found[1] for found in _BAR.finditer(self.heard())}

    def last_bar(self) -> str:
        bars = [found[0].strip() for found in _BAR.finditer(self.heard())]
        return re.sub(r"\s+", " ", bars[-1]) if bars else ""


class Stage:
    """An async context manager: a broker of its own, its topics, and a board of the jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._broker = LocalBroker(folder / "broker")
        self._catalogue = Catalogue()
        self._commands: list[Command] = []
        self._notes: list[tuple[int, int, int]] = []
        """Of `inference.progress`: partition and offset of a request that is run, and when that was written."""
        self._progress: list[PartitionReader] = []
        self._taking = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._broker.start)
        self.servers = self._broker.bootstrap_servers
        self._settings = KafkaSettings(self.servers)
        async with KafkaAdmin(self._settings) as admin:
            await create_missing_topics(admin, self._catalogue)
            self._partitions = {name: topic.partitions for name, topic in (await admin.cluster()).topics.items()}
        self._board = await self._exit.enter_async_context(JobBoard(self._settings, self._catalogue))
        topic = self._catalogue.progress
        for partition in range(self._partitions[topic]):
            reader = PartitionReader(self._settings, topic, partition, read_committed=False)
            self._progress.append(await self._exit.enter_async_context(reader))
        self._watch = asyncio.create_task(self._watch_attempts())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for command in self._commands:
            await command.kill()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        await self._exit.aclose()
        await asyncio.to_thread(self._broker.stop)

    # --- commands -----------------------------------------------------------------------------------------------------

    async def start(self, *words: str, terminal: bool = False) -> Command:
        controller, end = pty.openpty() if terminal else (None, asyncio.subprocess.PIPE)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _MAIN, *words, "--bootstrap-servers", self.servers),
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "TERM": "xterm", "COLUMNS": "120"},
            stdout=asyncio.subprocess.PIPE,
            stderr=end,
        )
        if terminal:
            os.close(end)
        command = Command(process, controller)
        self._commands.append(command)
        return command

    async def run(self, *words: str, code: int = 0) -> str:
        """What it said on its standard error."""
        command = await self.start(*words)
        if (ended := await command.ended()) != code:
            raise SystemExit(f"headrace {words[0]} ended with {ended}: {command.heard()}")
        return command.heard()

    async def start_worker(self) -> Command:
        return await self.start("serve", "--log-level", "error")

    # --- the job ------------------------------------------------------------------------------------------------------

    async def until(self, holds: Callable[[Job | None], bool]) -> None:
        # What other processes write is polled: nothing here could be told of it.
        while not holds(self._board.jobs.get(JOB)):
            await asyncio.sleep(_LOOK_S)
            await self._board.refresh()

    async def until_done(self, rows: int) -> None:
        done = 0
        while done < rows:
            await asyncio.sleep(_LOOK_S)  # polled, as above
            try:
                _, standing = await self.batch()
            except KafkaUnavailableError as error:
                # A machine that is busy with the story may let a broker's answer wait.
                print(error, file=sys.stderr)
            else:
                done = standing.total - standing.pending

    async def batch(self) -> tuple[dict[str, Any], Standing]:
        """OpenAI's batch object, and what it was made of."""
        await self._board.refresh()
        job = self._board.jobs[JOB]
        standing = (await standings(self._settings, self._catalogue, self._board, [job]))[JOB]
        return batch_object(job, standing), standing

    # --- what was run -------------------------------------------------------------------------------------------------

    async def _watch_attempts(self) -> None:
        """All that is written to `inference.progress`, again and again: what was noted and ended is compacted away."""
        while True:
            try:
                await self._take_notes()
            except KafkaUnavailableError as error:
                print(error, file=sys.stderr)  # a busy machine; what was not read is still there
            await asyncio.sleep(_NOTES_S)

    async def _take_notes(self) -> None:
        """What was written since they were taken last."""
        group = self._catalogue.group("p3")
        async with self._taking:
            for reader in self._progress:
                async for records in reader.read_to_end():
                    for record in records:
                        if record.value is not None and (key := AttemptKey.decode(record.key or b"")).group == group:
                            self._notes.append((key.partition, key.offset, record.timestamp_ms))

    async def runs(self) -> dict[str, int]:
        """How often rows were run, by the workers' own journal and the replies."""
        await self._take_notes()
        finals: dict[RowId, int] = {}
        answers: Counter[int] = Counter()
        begun_anew = 0
        async for row_id, record in self._rows(self._catalogue.replies):
            headers = dict(record.headers)
            if headers.get(EVENT) == b"final":
                finals[row_id] = record.timestamp_ms
                answers[row_id.row] += 1
                begun_anew += int(headers[ATTEMPT]) - 1
        requests = self._rows(self._catalogue.requests("p3"))
        places = {(record.id.partition, record.id.offset): row_id async for row_id, record in requests}
        noted = ((places.get((partition, offset)), noted_ms) for partition, offset, noted_ms in self._notes)
        run_again = {row for row, noted_ms in noted if row is not None and noted_ms > finals.get(row, noted_ms)}
        return {
            "rows_answered_twice": sum(count > 1 for count in answers.values()),
            "finished_rows_run_again": len(run_again),
            "unfinished_rows_begun_anew": begun_anew,
        }

    async def _rows(self, topic: str) -> AsyncIterator[tuple[RowId, InboundRecord]]:
        """The records of the job's rows, as they stand there now."""
        for partition in range(self._partitions[topic]):
            async with PartitionReader(self._settings, topic, partition, read_committed=True) as reader:
                async for records in reader.read_to_end():
                    for record in records:
                        row_id = RowId.parse(dict(record.headers).get(REQUEST_ID, b"").decode())
                        if row_id is not None and row_id.job_id == JOB:
                            yield row_id, record
