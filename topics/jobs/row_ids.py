"""The names of jobs, and how a request's id says which row of which job it is.

Knows `JOB~RUN~ROW`. Does not know what a row says. The request id is the one thing that every reply has, also the
refusal of a record whose headers could not be read, so it alone tells whose reply it is.
"""

import re
from hashlib import blake2b
from typing import NamedTuple

from topics.jobs.errors import JobMistakeError

__all__ = ["JobIdError", "RowId", "check_job_id", "derived_job_id", "reply_partition_of"]

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ROW_ID = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})~([1-9][0-9]{0,2})~(0|[1-9][0-9]{0,8})")


class JobIdError(JobMistakeError, ValueError):
    """A job id that can't be one, with the remedy."""


class RowId(NamedTuple):
    job_id: str
    run: int
    """1 for the first time that the row is sent; resuming and retrying are further runs."""
    row: int
    """From 0, in the order of the input; blank lines are no rows."""

    def __str__(self) -> str:
        return f"{self.job_id}~{self.run}~{self.row}"

    @classmethod
    def parse(cls, request_id: str) -> "RowId | None":
        """None: the request is no row of a job."""
        found = _ROW_ID.fullmatch(request_id)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]))


def check_job_id(job_id: str) -> str:
    """Raises `JobIdError`."""
    if not _JOB_ID.fullmatch(job_id):
        raise JobIdError(
            f"job id {job_id[:80]!r}: use 1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    return job_id


def derived_job_id(fingerprint: str, priority: str, tenant: str | None) -> str:
    """The id of a job that was given none: the same input for the same class and tenant is the same job.

    So whoever submits again after a crash goes on with the job, without having noted its id.
    """
    text = f"{fingerprint}\n{priority}\n{tenant or ''}"
    return f"batch_{blake2b(text.encode(), digest_size=10).hexdigest()}"


def reply_partition_of(job_id: str, partitions: int) -> int:
    """The partition of the reply topic that all of a job's replies go to: one reader sees the whole job, in order."""
    return int.from_bytes(blake2b(job_id.encode(), digest_size=8).digest(), "big") % partitions
