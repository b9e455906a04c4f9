"""Following the replies to jobs: one partition of the reply topic, read for all jobs that have theirs there.

Knows which record is whose. Does not know what it means (`topics.jobs.collection`) or who asks.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import NamedTuple, Self

from topics.aiokafka_stretches import LoggedRecord
from topics.catalogue import Catalogue
from topics.headers import REQUEST_ID
from topics.jobs.board import BEAT_S, Job, JobBoard
from topics.jobs.collection import JobCollection
from topics.jobs.records import JobMemo, JobUsage
from topics.jobs.state import Standing, standing_of_memo
from topics.kafka_settings import KafkaSettings
from topics.partition_reader import PartitionReader

__all__ = ["RepliesEnd", "ReplyFollower", "now_ms", "standings"]

logger = logging.getLogger(__name__)


class RepliesEnd(NamedTuple):
    """Where a partition ended at a moment: all that was written by `at_ms` stands before `offset`."""

    offset: int
    at_ms: int


class ReplyFollower:
    """An async context manager. `add` jobs; each `update` brings their collections up to date.

    Ask for `end` first, then for the jobs' runs, then `update` up to that end: every run that is answered before it had
    begun by then, and its replies are known for what they are.
    """

    def __init__(self, settings: KafkaSettings, catalogue: Catalogue, partition: int) -> None:
        self._reader = PartitionReader(settings, catalogue.replies, partition, read_committed=True)
        self._collections: dict[str, JobCollection] = {}

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError`."""
        await self._reader.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._reader.__aexit__(kind, error, trace)

    @property
    def collections(self) -> Mapping[str, JobCollection]:
        return self._collections

    def add(self, collection: JobCollection) -> None:
        """Its partition must be this one."""
        self._collections[collection.job_id] = collection

    def remove(self, job_id: str) -> None:
        del self._collections[job_id]

    async def end(self) -> RepliesEnd:
        """Raises `KafkaUnavailableError`."""
        asked_ms = now_ms()
        return RepliesEnd(await self._reader.end(), asked_ms)

    async def update(self, end: RepliesEnd) -> None:
        """Take in all that stands before `end`, durably where there are journals.

        Raises `KafkaUnavailableError`, `OSError`.
        """
        if not self._collections:
            return
        start = min(collection.next_offset for collection in self._collections.values())
        if start != self._reader.position and (found := await self._reader.seek(start)) > start:
            logger.warning(
                "replies between offsets %d and %d were deleted by retention: rows answered there count as unanswered",
                start,
                found,
            )
        async with aclosing(self._reader.scan_to_end(end.offset)) as stretches:
            async for records in stretches:
                self._take(records, end)
                self._passed(end)
                await asyncio.to_thread(self._sync)
        self._passed(end)
        for collection in self._collections.values():
            collection.settle(end.at_ms)

    def _take(self, records: Iterable[LoggedRecord], end: RepliesEnd) -> None:
        owners = {job_id.encode(): collection for job_id, collection in self._collections.items()}
        for record in records:
            if record.offset >= end.offset:
                break  # of a run, perhaps, that nobody here knows yet
            headers = dict(record.headers)
            owner = owners.get((headers.get(REQUEST_ID) or b"").partition(b"~")[0])
            if owner is not None:
                owner.take(record, headers)

    def _passed(self, end: RepliesEnd) -> None:
        offset = min(self._reader.position, end.offset)
        for collection in self._collections.values():
            collection.passed(offset)

    def _sync(self) -> None:
        for collection in self._collections.values():
            collection.sync()


async def standings(
    settings: KafkaSettings, catalogue: Catalogue, board: JobBoard, jobs: Iterable[Job]
) -> dict[str, Standing]:
    """How far these jobs have come: from their memos where somebody keeps them, else counted from the replies.

    As of the board's last `refresh` at the latest: later runs are not known here.
    """
    found: dict[str, Standing] = {}
    to_count: dict[int, list[Job]] = {}
    for job in jobs:
        total, run, memo = job.order.rows or 0, job.last_run, job.memo
        if run is None:
            found[job.order.job_id] = Standing(total, 0, 0, 0, 0, JobUsage(), None, None)
        elif memo is not None and memo.run == run.run and (job.ended or _is_kept(job, memo, board)):
            found[job.order.job_id] = standing_of_memo(total, memo)
        else:
            to_count.setdefault(job.order.reply_partition, []).append(job)
    for partition, counted in to_count.items():
        async with ReplyFollower(settings, catalogue, partition) as follower:
            for job in counted:
                follower.add(JobCollection(job, None))
            await follower.update(await follower.end())
            found.update({name: collection.standing() for name, collection in follower.collections.items()})
    return found


def _is_kept(job: Job, memo: JobMemo, board: JobBoard) -> bool:
    """Whether somebody sees to it that the memo is up to date."""
    now = now_ms()
    return now - memo.written_at_ms <= 5_000 * BEAT_S or board.collector_of(job.order.reply_partition, now) is not None


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
