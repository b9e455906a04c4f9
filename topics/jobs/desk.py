"""Jobs from a program: submit an input and ask how a job goes, as `headrace submit` and `headrace status` do.

Knows the order of calls. Does not know arguments, bars or words.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opentelemetry.trace import Tracer

from topics.catalogue import Catalogue
from topics.jobs.board import JobBoard, NoJobBoardError
from topics.jobs.cancelling import cancel_job
from topics.jobs.checked_input import check_input
from topics.jobs.follower import standings
from topics.jobs.input_file import open_input
from topics.jobs.records import Priority
from topics.jobs.row_ids import check_job_id, derived_job_id
from topics.jobs.state import batch_object
from topics.jobs.submission import OrderForm, Submission
from topics.kafka_settings import KafkaSettings

__all__ = ["UnknownJobError", "cancel_submitted", "job_object", "submit_input"]


class UnknownJobError(LookupError):
    """There is no such job."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}: `headrace jobs` lists them")


async def submit_input(
    settings: KafkaSettings,
    catalogue: Catalogue,
    location: str | Path,
    *,
    priority: Priority,
    tenant: str | None,
    job_id: str | None,
    weight: int,
    completion_window_s: int,
    metadata: Mapping[str, str],
    skip_invalid: bool,
    tracer: Tracer | None = None,
) -> str:
    """Check an input in OpenAI's batch format and send its rows; the job's id when a broker has them all.

    Raises `InvalidInputError`, `InputError`, `JobIdError`, `JobCancelledError`, `JobConflictError`,
    `JobTakenOverError`, `JobBoardError`, `SendingBrokeError`, `TooManyRowsError`, `KafkaUnavailableError`,
    `RecordRefusedError`.
    """
    with open_input(str(location), None) as file:
        form = OrderForm(
            job_id=check_job_id(job_id or derived_job_id(file.fingerprint, priority, tenant)),
            priority=priority,
            tenant=tenant,
            weight=weight,
            completion_window_s=completion_window_s,
            metadata=dict(metadata),
        )
        async with JobBoard(settings, catalogue) as board:
            submission = Submission(settings, catalogue, board, tracer)
            job = await submission.order(
                form, file, lambda: asyncio.to_thread(check_input, file), skip_invalid=skip_invalid
            )
            await submission.send(job, file)
    return form.job_id


async def job_object(settings: KafkaSettings, catalogue: Catalogue, job_id: str) -> dict[str, Any]:
    """OpenAI's batch object. Raises `UnknownJobError`, `JobBoardError`, `KafkaUnavailableError`."""
    async with JobBoard(settings, catalogue) as board:
        job = board.jobs.get(job_id)
        if job is None:
            raise UnknownJobError(job_id)
        return batch_object(job, (await standings(settings, catalogue, board, [job]))[job_id])


async def cancel_submitted(settings: KafkaSettings, catalogue: Catalogue, job_id: str) -> int | None:
    """Cancel a job: the offset of the order that the workers are given. None: no job of this name was submitted.

    Raises what `topics.jobs.cancelling.cancel_job` raises.
    """
    try:
        async with JobBoard(settings, catalogue) as board:
            return await cancel_job(settings, catalogue, board, job_id) if job_id in board.jobs else None
    except NoJobBoardError:
        return None
