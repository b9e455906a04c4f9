"""Ending a job before its time.

Knows the order of the steps, and what holds if one is never reached. Does not know how the sending stops
(`topics.jobs.submission`) or how workers obey (`workers.orders.control`).

1. `cancel/JOB` on the board: from now on the job is `cancelling`, and whoever sends its rows stops at the next stretch.
2. An order to all workers: what waits or runs is answered `cancelled`.
3. The sending is over: its process says so, or is taken over if it says nothing for `_STOP_S`. It may have sent rows
   behind the order, so there is another order then, and behind it, in the job's reply partition, the end of the run:
   rows that were never sent are cancelled, and so are those without a reply some seconds later (`topics.jobs.tally`).
   No worker need be there for the job to end.

Whoever is killed between the steps leaves a job that is `cancelling`; cancelling it again takes the rest of them.
"""

import asyncio

from topics.catalogue import Catalogue
from topics.jobs.board import Job, JobBoard
from topics.jobs.follower import now_ms, standings
from topics.jobs.records import JobCancel, JobRun
from topics.jobs.row_set import RowSet
from topics.jobs.run_end import end_run, order_end
from topics.jobs.state import state_of
from topics.jobs.submission import JobConflictError, Submission
from topics.kafka_settings import KafkaSettings

__all__ = ["cancel_job"]

_STOP_S = 10.0
"""A stretch takes some tenths of a second; a sender that is silent for so long is gone."""
_LOOK_S = 0.1


async def cancel_job(settings: KafkaSettings, catalogue: Catalogue, board: JobBoard, job_id: str) -> int:
    """Return when nothing of the job is sent any more and the workers' order is given: its offset.

    The job must be on the board.

    Raises `JobConflictError` for a job that has ended, `KafkaUnavailableError`, `RecordRefusedError`, `JobBoardError`.
    """
    await board.refresh()
    job = board.jobs[job_id]
    state = state_of(job, (await standings(settings, catalogue, board, [job]))[job_id])
    if state.ended:
        raise JobConflictError(f"{job_id} has ended already: it is {state}")
    if not job.cancelled:
        run = max(job.runs, default=1)
        await board.write(
            JobCancel(job_id=job_id, ordered_at_ms=job.order.created_at_ms, run=run, asked_at_ms=now_ms())
        )
    begun = job.last_run
    if begun is None or begun.sent_at_ms is None:
        closes_ms = now_ms() + 1000 * job.order.completion_window_s if begun is None else begun.expires_at_ms
        offset = await order_end(settings, catalogue, job_id, closes_ms)
        if begun is None:
            return offset  # whoever checks the input sees the cancel before the first row
        begun = await _stopped(settings, catalogue, board, job)
    assert job.order.rows is not None
    return await end_run(settings, catalogue, job.order, begun, RowSet(job.order.rows))


async def _stopped(settings: KafkaSettings, catalogue: Catalogue, board: JobBoard, job: Job) -> JobRun:
    """The run, when its sending is over."""
    try:
        async with asyncio.timeout(_STOP_S):
            while job.last_run is None or job.last_run.sent_at_ms is None:
                await asyncio.sleep(_LOOK_S)  # the log of a broker is polled
                await board.refresh()
    except TimeoutError:
        await Submission(settings, catalogue, board).stop(job)
    assert job.last_run is not None
    return job.last_run
