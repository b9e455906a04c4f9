"""The collector: the service that gathers every job's results into files and keeps its state.

Knows which jobs are its (those whose replies go to a partition that it owns), when a job has ended, and what it leaves
behind: `output.jsonl`, `errors.jsonl`, `batch.json`, and the memo on the board. Any number of collectors share the
partitions; each job has one.

What survives a crash: a reply is taken in when it is synced to the job's journal, and the journal says where to read
on. A collector that finds no journal reads the job's replies again from their beginning, with the same result. A job's
files appear whole, then its memo says that it has ended; a crash between the two writes the same files again. Journals
stay, for a job may be resumed or retried.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import orjson

from topics.aiokafka_producer import KafkaUnavailableError
from topics.catalogue import Catalogue
from topics.jobs.board import BEAT_S, Job, JobBoard
from topics.jobs.collection import JobCollection
from topics.jobs.follower import ReplyFollower, now_ms
from topics.jobs.journal import JournalInUseError, RowJournal
from topics.jobs.ownership import PartitionOwnership
from topics.jobs.records import CollectorBeat, JobMemo
from topics.jobs.result_files import replace_file, write_results
from topics.jobs.result_store import ResultStore
from topics.jobs.state import Standing, batch_object, standing_of_memo
from topics.kafka_settings import KafkaSettings

__all__ = ["Collector", "CollectorStatistics"]

logger = logging.getLogger(__name__)

_TURN_S = 0.5
_OUTAGE_S = 2.0
_MEMOS_A_SECOND = 4
"""Over all jobs of this collector: bounds what the board grows by, and so how long it takes to be read."""


@dataclass(frozen=True, slots=True)
class CollectorStatistics:
    partitions: int
    open_jobs: int
    ended_jobs: int


@dataclass(slots=True)
class _OpenJob:
    collection: JobCollection
    journal: RowJournal
    told: Standing | None = None
    """As of the memo that was written last."""
    told_ms: int = field(default_factory=now_ms)


class Collector:
    """`await run(stop)`."""

    def __init__(
        self,
        settings: KafkaSettings,
        catalogue: Catalogue,
        store: ResultStore,
        *,
        in_order: bool = False,
        on_ended: Callable[[Job, JobMemo], None] = lambda _job, _memo: None,
    ) -> None:
        """`in_order`: files in the order of the input."""
        self._settings = settings
        self._catalogue = catalogue
        self._store = store
        self._in_order = in_order
        self._on_ended = on_ended
        self._id = uuid.uuid4().hex[:12]
        self._board = JobBoard(settings, catalogue)
        self._wanted: frozenset[int] = frozenset()
        """The partitions that are ours."""
        self._followers: dict[int, ReplyFollower] = {}
        self._open: dict[str, _OpenJob] = {}
        self._turn = asyncio.Lock()
        """Held while files are touched: a partition is given away only between two turns."""
        self._beat_ms = 0
        self._ended = 0

    def statistics(self) -> CollectorStatistics:
        return CollectorStatistics(len(self._followers), len(self._open), self._ended)

    async def run(self, stop: asyncio.Event) -> None:
        """Collect until `stop`, through brokers that come and go.

        Raises `KafkaUnavailableError` if none is there at the start, `JobBoardError`, `OSError`.
        """
        group = f"{self._catalogue.group_prefix}.{self._catalogue.jobs}"
        async with (
            self._board,
            PartitionOwnership(self._settings, self._catalogue.replies, group, self._own) as ownership,
        ):
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(ownership.run())
                    await self._turns(stop)
                    ownership.stop()
            finally:
                async with self._turn:
                    await self._let_go(frozenset())
            with suppress(KafkaUnavailableError):  # the last beat is soon too old all the same
                await self._beat(partitions=())

    async def _turns(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            pause_s = _TURN_S
            try:
                async with self._turn:
                    await self._collect()
                if now_ms() - self._beat_ms >= 1000 * BEAT_S:
                    await self._beat(sorted(self._followers))
            except KafkaUnavailableError as error:
                # Brokers come back; nothing is lost, for what was not taken in stands where it stood.
                logger.warning("%s; trying again", error)
                pause_s = _OUTAGE_S
            try:
                async with asyncio.timeout(pause_s):
                    await stop.wait()
            except TimeoutError:
                continue

    async def _collect(self) -> None:
        """One turn: what is new of the jobs and of the replies, and what follows from it."""
        await self._take_hold()
        ends = {partition: await follower.end() for partition, follower in self._followers.items()}
        await self._board.refresh()
        for partition, follower in self._followers.items():
            await self._open_jobs(partition, follower)
            await follower.update(ends[partition])
        await self._settle_jobs()

    async def _beat(self, partitions: list[int] | tuple[int, ...]) -> None:
        self._beat_ms = now_ms()
        await self._board.write(
            CollectorBeat(collector=self._id, partitions=tuple(partitions), beat_at_ms=self._beat_ms)
        )

    # --- partitions -----------------------------------------------------------------------------------------------

    async def _own(self, partitions: frozenset[int]) -> None:
        async with self._turn:
            self._wanted = partitions
            await self._let_go(partitions)
        logger.info("collecting partitions %s of %s", sorted(partitions), self._catalogue.replies)

    async def _let_go(self, kept: frozenset[int]) -> None:
        for partition in self._followers.keys() - kept:
            follower = self._followers.pop(partition)
            for job_id in list(follower.collections):
                self._close_job(job_id, follower)
            await follower.__aexit__(None, None, None)

    async def _take_hold(self) -> None:
        for partition in self._wanted - self._followers.keys():
            follower = ReplyFollower(self._settings, self._catalogue, partition)
            self._followers[partition] = await follower.__aenter__()

    # --- jobs -----------------------------------------------------------------------------------------------------

    async def _open_jobs(self, partition: int, follower: ReplyFollower) -> None:
        for job in self._board.jobs.values():
            if job.order.reply_partition != partition or job.order.rows is None or not job.runs or job.ended:
                continue
            known = self._open.get(job.order.job_id)
            if known is not None:
                known.collection.begin(job.runs.values())
                continue
            try:
                opened = await asyncio.to_thread(self._opened, job)
            except JournalInUseError as error:
                # The former owner, stopped in the middle, still has it: it will let go, or its end will.
                logger.warning("%s", error)
                continue
            self._open[job.order.job_id] = opened
            follower.add(opened.collection)

    def _opened(self, job: Job) -> _OpenJob:
        journal = RowJournal(self._store.journal_path(job.order.job_id))
        try:
            return _OpenJob(JobCollection(job, journal), journal)
        except BaseException:
            journal.close()
            raise

    def _close_job(self, job_id: str, follower: ReplyFollower) -> None:
        follower.remove(job_id)
        self._open.pop(job_id).journal.close()

    async def _settle_jobs(self) -> None:
        """Write the memos that are due, and end the jobs whose rows all have their fate."""
        interval_ms = max(1000 * BEAT_S, 1000 * len(self._open) / _MEMOS_A_SECOND)
        for job_id, opened in list(self._open.items()):
            job = self._board.jobs[job_id]
            if opened.collection.standing().pending == 0:
                await self._end(job, opened)
                continue
            standing, now = opened.collection.standing(), now_ms()
            if standing != opened.told and now - opened.told_ms >= interval_ms:
                opened.told, opened.told_ms = standing, now
                await self._board.write(opened.collection.memo(now))

    async def _end(self, job: Job, opened: _OpenJob) -> None:
        finalizing_ms = now_ms()
        await self._board.write(opened.collection.memo(finalizing_ms, finalizing_at_ms=finalizing_ms))
        memo = await asyncio.to_thread(self._write_files, job, opened.collection, finalizing_ms)
        await self._board.write(memo)
        self._close_job(job.order.job_id, self._followers[job.order.reply_partition])
        self._ended += 1
        self._on_ended(job, memo)

    def _write_files(self, job: Job, collection: JobCollection, finalizing_ms: int) -> JobMemo:
        job_id, store = job.order.job_id, self._store
        names = ("output.jsonl", "errors.jsonl")
        write_results(collection, *(store.local_path(job_id, name) for name in names), in_order=self._in_order)
        output, errors = (store.publish(job_id, name) for name in names)
        ended_ms = now_ms()
        memo = collection.memo(
            ended_ms, finalizing_at_ms=finalizing_ms, ended_at_ms=ended_ms, output=output, errors=errors
        )
        batch = batch_object(job, standing_of_memo(collection.total, memo))
        replace_file(store.local_path(job_id, "batch.json"), orjson.dumps(batch, option=orjson.OPT_INDENT_2) + b"\n")
        store.publish(job_id, "batch.json")
        return memo
