"""Which rows of an ended job a further run has: what `resume` and `retry` share.

Knows fates, late answers and the order to the workers. Does not know the input, and does not write the run.

No answer is given twice. What a worker may still do of the former run is ended first: an order is given, as by a
cancel, and each row is waited for until a worker has said what became of it. Answers that came after the window count
from now on, so those rows are not in the new run. The wait has a bound, `SETTLE_MS`: then no worker has the row, and
one that reads it later finds a deadline that has passed. Only a worker that neither the order nor a rebalance reached
in all that time may answer such a row after its new run has begun; that answer doesn't count.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from topics.catalogue import Catalogue
from topics.jobs.board import Job
from topics.jobs.collection import JobCollection
from topics.jobs.follower import ReplyFollower, now_ms
from topics.jobs.records import RunKind
from topics.jobs.reply import Fate
from topics.jobs.run_end import order_end
from topics.jobs.submission import JobConflictError
from topics.jobs.tally import SETTLE_MS
from topics.kafka_settings import KafkaSettings

__all__ = ["RowsAgain", "rows_again"]

_FATES: dict[RunKind, tuple[Fate, ...]] = {
    "resume": (Fate.EXPIRED, Fate.CANCELLED),
    "retry": (Fate.FAILED,),
}
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class RowsAgain:
    """What the next run of a job is."""

    rows: list[int]
    late_answers: int
    """To other rows: they count as soon as the run begins."""
    answers_before: int
    """For the run's record."""


async def rows_again(
    settings: KafkaSettings, catalogue: Catalogue, job: Job, kind: RunKind, on_wait: Callable[[int], None]
) -> RowsAgain:
    """The rows that `kind` means, when nobody runs them any more.

    `on_wait` is told how many rows are waited for, if any.

    Raises `JobConflictError` for a job that hasn't ended or of which `kind` means nothing, `KafkaUnavailableError`,
    `RecordRefusedError`.
    """
    job_id = job.order.job_id
    collection = JobCollection(job, None)
    async with ReplyFollower(settings, catalogue, job.order.reply_partition) as follower:
        follower.add(collection)
        end = await follower.end()
        await follower.update(end)
        standing = collection.standing()
        if standing.pending:
            raise JobConflictError(f"{standing.pending:,} rows of {job_id} are still to come: wait until it has ended")
        if kind == "resume" and (silent := collection.tally.silent()):
            on_wait(len(silent))
            await _order_end(settings, catalogue, job)
            until_ms = now_ms() + SETTLE_MS
            while collection.tally.silent() and now_ms() < until_ms:
                await asyncio.sleep(_LOOK_S)  # the log of a broker is polled
                end = await follower.end()
                await follower.update(end)
    late_answers = collection.tally.count_late(end.offset)
    rows = collection.tally.in_fate(*_FATES[kind])
    if not rows and not (kind == "resume" and late_answers):
        raise JobConflictError(
            f"{job_id} has nothing to {kind}: {standing.completed:,} done, {standing.failed:,} failed, "
            f"{standing.expired:,} expired, {standing.cancelled:,} cancelled"
        )
    return RowsAgain(rows, late_answers, end.offset)


async def _order_end(settings: KafkaSettings, catalogue: Catalogue, job: Job) -> None:
    """Of what was sent until now: the next run's rows are not meant."""
    run = job.last_run
    assert run is not None
    # The order takes the place of a cancel's: it must be remembered no shorter.
    await order_end(settings, catalogue, run.job_id, max(run.expires_at_ms, now_ms() + 2 * SETTLE_MS))
