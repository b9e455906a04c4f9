"""Waiting for a job: its replies followed and journalled, its state told, its result files written.

Knows the loop. Does not know arguments. Not a command itself.

Where no collector has the job's partition, the one who waits keeps its memo, so that others can see how it goes.
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from topics.aiokafka_producer import KafkaUnavailableError
from topics.jobs.board import Job
from topics.jobs.collection import JobCollection
from topics.jobs.follower import ReplyFollower, now_ms
from topics.jobs.journal import RowJournal
from topics.jobs.result_files import WrittenResults, write_results
from topics.jobs.state import Standing
from workers.commands.job_connection import JobDesk

__all__ = ["collect_now", "wait_for_job"]

logger = logging.getLogger(__name__)

_TURN_S = 0.5
_OUTAGE_S = 2.0
_MEMO_S = 2.0


async def wait_for_job(
    desk: JobDesk,
    job: Job,
    on_standing: Callable[[Standing], None],
    *,
    output: Path | None,
    errors: Path | None,
    in_order: bool,
) -> Standing:
    """Return when every row has its fate and the files are written.

    With `output`, a journal beside it makes what was read survive a crash of this process.
    """
    async with AsyncExitStack() as stack:
        partition = job.order.reply_partition
        follower = await stack.enter_async_context(ReplyFollower(desk.settings, desk.catalogue, partition))
        journal = None
        target = output or errors
        if target is not None:
            journal = RowJournal(target.with_name(f"{target.name}.{job.order.job_id}.journal"))
            stack.callback(journal.close)
        collection = await asyncio.to_thread(JobCollection, job, journal)
        follower.add(collection)
        keeper = _MemoKeeper(desk, collection)
        while True:
            pause_s = _TURN_S
            try:
                end = await follower.end()
                await desk.board.refresh()
                job = desk.board.jobs[job.order.job_id]
                collection.begin(job.runs.values())
                await follower.update(end)
                standing = collection.standing()
                on_standing(standing)
                if not standing.pending:
                    break
                await keeper.keep()
            except KafkaUnavailableError as error:
                # A job of hours outlives an outage of minutes: brokers come back, and the replies are still there.
                logger.warning("%s; trying again", error)
                pause_s = _OUTAGE_S
            # The replies come when they come: this is how often they are looked for.
            await asyncio.sleep(pause_s)
        finalizing_ms = now_ms()
        if journal is not None:
            await keeper.keep(finalizing_at_ms=finalizing_ms)
            await asyncio.to_thread(write_results, collection, output, errors, in_order=in_order)
            journal.path.unlink()
        ended = replace(
            standing,
            finalizing_at_ms=finalizing_ms,
            ended_at_ms=now_ms(),
            output=_full_name(output),
            errors=_full_name(errors),
        )
        await keeper.keep(
            finalizing_at_ms=finalizing_ms, ended_at_ms=ended.ended_at_ms, output=ended.output, errors=ended.errors
        )
        return ended


def _full_name(path: Path | None) -> str | None:
    return None if path is None else os.path.abspath(path)


class _MemoKeeper:
    """Writes a job's memo, regularly but not too often, and only while no collector does."""

    def __init__(self, desk: JobDesk, collection: JobCollection) -> None:
        self._desk = desk
        self._collection = collection
        self._due_ms = 0

    async def keep(self, **ends: int | str | None) -> None:
        """`ends`: what only the end of a job has; then it is written at once."""
        job = self._desk.board.jobs[self._collection.job_id]
        now = now_ms()
        if (ends or now >= self._due_ms) and self._desk.board.collector_of(job.order.reply_partition, now) is None:
            self._due_ms = now + int(_MEMO_S * 1000)
            await self._desk.board.write(self._collection.memo(now, **ends))


async def collect_now(
    desk: JobDesk, job: Job, *, output: Path | None, errors: Path | None, in_order: bool
) -> tuple[Standing, WrittenResults]:
    """Write what is there now, whole or partial."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-results-") as folder,
        RowJournal(Path(folder) / "journal") as journal,
    ):
        collection = JobCollection(job, journal)
        async with ReplyFollower(desk.settings, desk.catalogue, job.order.reply_partition) as follower:
            follower.add(collection)
            await follower.update(await follower.end())
        written = await asyncio.to_thread(write_results, collection, output, errors, in_order=in_order)
        return collection.standing(), written
