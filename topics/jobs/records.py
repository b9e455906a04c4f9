"""The records of the compacted topic `inference.jobs`: all that is kept of a job.

Knows keys and fields. Does not know how they are read (`topics.jobs.board`) or what follows from them
(`topics.jobs.state`). Each key has one writer, so none needs a lock:

| key | writer | says |
|---|---|---|
| `order/JOB` | whoever submits | what was ordered; written before the first row is sent |
| `run/JOB/N` | whoever submits, resumes or retries | the rows sent in the N-th run, and how far the sending has come |
| `cancel/JOB` | whoever cancels; all of them write the same | the run that is to end |
| `memo/JOB` | the collector, or `submit --wait` where none runs | what has become of the rows, as of an offset |
| `collector/ID` | that collector | that it lives, and which partitions of the replies are its |

The truth about rows is the reply topic. A memo is only an excerpt of it, so that a status need not read it all, and so
that what became of the job is known when the replies are gone. Times are milliseconds since the epoch.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, ValidationError

from topics.wire_model import Items, WireModel

__all__ = [
    "CollectorBeat",
    "JobCancel",
    "JobMemo",
    "JobOrder",
    "JobRecord",
    "JobRun",
    "JobUsage",
    "OrderProblem",
    "Priority",
    "RunKind",
    "decode_job_record",
    "key_of",
]


Priority = Literal["p0", "p1", "p2", "p3"]
RunKind = Literal["submit", "resume", "retry"]


class OrderProblem(WireModel):
    """A row that made the whole input be refused."""

    code: str
    line: int
    message: str
    param: str | None


class JobOrder(WireModel):
    job_id: str
    priority: Priority
    tenant: str | None
    weight: int = Field(ge=1)
    """Shares beside the tenant's other jobs."""
    completion_window_s: int
    metadata: dict[str, str]
    created_at_ms: int
    input_name: str
    input_fingerprint: str
    input_bytes: int
    reply_partition: int
    reply_offset: int
    """All that is said of this job stands at or behind it, in `reply_partition` of the reply topic."""
    endpoint: str | None = None
    """None: the input is being checked."""
    rows: int | None = None
    invalid_rows: int = 0
    """Of `rows`: those that are answered with an error instead of being sent."""
    problems: Items[OrderProblem] = ()
    """Why the job failed: the first of `problem_count`."""
    problem_count: int = 0


class JobRun(WireModel):
    job_id: str
    run: int = Field(ge=1)
    kind: RunKind
    created_at_ms: int
    expires_at_ms: int
    rows: str | None
    """A `RowSet`; None: all."""
    submitter: str
    """Changes hands when another process goes on with the sending; the former one stops when it sees that."""
    request_offsets: dict[int, int]
    """Partition of the request topic → no row from `sent_rows` on stands before this offset."""
    sent_rows: int = 0
    """Every row of the run below it is on the broker."""
    answers_before: int = 0
    """Answers to earlier runs that stand before this offset of the job's replies count, however late they came: `rows`
    leaves those rows out."""
    sent_at_ms: int | None = None
    """When the sending was over: the last row was there, or a cancel had ended it. None while some are missing."""


class JobCancel(WireModel):
    """End what this run has not done. A later run, which resumes the job, is not meant."""

    job_id: str
    ordered_at_ms: int
    """The order's `created_at_ms`: a job that was refused may be ordered anew under its id, and is another one then."""
    run: int = Field(ge=1)
    asked_at_ms: int


class JobUsage(WireModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class JobMemo(WireModel):
    job_id: str
    run: int
    """The newest run that it knows of."""
    written_at_ms: int
    next_offset: int
    """It knows all replies before this offset."""
    completed: int
    failed: int
    expired: int
    cancelled: int
    usage: JobUsage
    model: str | None
    last_reply_ms: int | None
    finalizing_at_ms: int | None = None
    """Every row has its fate; the files are being written."""
    ended_at_ms: int | None = None
    """The files are written."""
    output: str | None = None
    errors: str | None = None
    """Where they are."""


class CollectorBeat(WireModel):
    collector: str
    partitions: Items[int]
    beat_at_ms: int


JobRecord = JobOrder | JobRun | JobCancel | JobMemo | CollectorBeat

_KINDS: Mapping[str, type[JobRecord]] = {
    "order": JobOrder,
    "run": JobRun,
    "cancel": JobCancel,
    "memo": JobMemo,
    "collector": CollectorBeat,
}


def key_of(record: JobRecord) -> bytes:
    match record:
        case CollectorBeat(collector=collector):
            return f"collector/{collector}".encode()
        case JobRun(job_id=job_id, run=run):
            return f"run/{job_id}/{run}".encode()
        case JobOrder(job_id=job_id):
            return f"order/{job_id}".encode()
        case JobCancel(job_id=job_id):
            return f"cancel/{job_id}".encode()
        case JobMemo(job_id=job_id):
            return f"memo/{job_id}".encode()


def decode_job_record(key: bytes | None, value: bytes | None) -> JobRecord | None:
    """None for a tombstone and for kinds that this version doesn't know.

    Raises `ValueError` for a record that says something else than its key.
    """
    name = (key or b"").decode(errors="replace")
    kind = _KINDS.get(name.partition("/")[0])
    if kind is None or value is None:
        return None
    try:
        record = kind.model_validate_json(value)
    except ValidationError as error:
        problem = f"{error.error_count()} fields are wrong"
    else:
        if key_of(record) == key:
            return record
        problem = f"it says {key_of(record).decode()}"
    raise ValueError(f"the record {name[:120]!r} of the jobs topic can't be read: {problem}")
