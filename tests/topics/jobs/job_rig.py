"""Jobs, runs and replies as tests make them, without a broker."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from aiokafka.record.default_records import DefaultRecord

from topics.aiokafka_stretches import LoggedRecord
from topics.headers import EVENT, JOB_ID, REQUEST_ID
from topics.jobs.announcements import cancel_record, manifest_records
from topics.jobs.board import Job
from topics.jobs.records import JobCancel, JobOrder, JobRun
from topics.jobs.row_ids import RowId
from topics.jobs.row_set import RowSet

JOB = "nightly"
WINDOW_MS = 60_000


def order(rows: int | None = 10, **fields: Any) -> JobOrder:
    usual: dict[str, Any] = {
        "job_id": JOB,
        "priority": "p3",
        "tenant": "acme",
        "weight": 1,
        "completion_window_s": WINDOW_MS // 1000,
        "metadata": {},
        "created_at_ms": 0,
        "input_name": "rows.jsonl",
        "input_fingerprint": "f",
        "input_bytes": 1,
        "reply_partition": 0,
        "reply_offset": 0,
        "endpoint": "/v1/chat/completions",
        "rows": rows,
    }
    return JobOrder(**(usual | fields))


def run(number: int = 1, *, begun_ms: int = 0, rows: RowSet | None = None, answers_before: int = 0) -> JobRun:
    return JobRun(
        job_id=JOB,
        run=number,
        kind="submit" if number == 1 else "resume",
        created_at_ms=begun_ms,
        expires_at_ms=begun_ms + WINDOW_MS,
        rows=None if rows is None else rows.encode(),
        submitter="s",
        request_offsets={},
        answers_before=answers_before,
    )


def job(rows: int = 10, *runs: JobRun) -> Job:
    return Job(order(rows), {each.run: each for each in runs or (run(),)})


def record(offset: int, headers: Mapping[str, bytes | None], value: bytes, written_ms: int = 1_000) -> LoggedRecord:
    logged: LoggedRecord = DefaultRecord(offset, written_ms, 0, None, value, list(headers.items()))
    return logged


def final(offset: int, row: int, *, number: int = 1, text: str = "hi", written_ms: int = 1_000) -> LoggedRecord:
    body = {
        "id": f"chatcmpl-{row}",
        "object": "chat.completion",
        "created": 1,
        "model": "smollm2",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }
    headers = {EVENT: b"final", REQUEST_ID: str(RowId(JOB, number, row)).encode()}
    return record(offset, headers, orjson.dumps(body), written_ms)


def error(
    offset: int, row: int, *, number: int = 1, code: str = "internal_error", status: int = 500, written_ms: int = 1_000
) -> LoggedRecord:
    body = {"error": {"message": "no", "type": "server_error", "param": None, "code": code, "status_code": status}}
    headers = {EVENT: b"error", REQUEST_ID: str(RowId(JOB, number, row)).encode()}
    return record(offset, headers, orjson.dumps(body), written_ms)


def cancelled_job(rows: int = 10, *runs: JobRun, asked_ms: int = 20_000) -> Job:
    """Somebody has asked for the end of its last run."""
    cancelled = job(rows, *runs)
    cancelled.cancel = JobCancel(job_id=JOB, ordered_at_ms=0, run=max(cancelled.runs), asked_at_ms=asked_ms)
    return cancelled


def run_end(
    offset: int, unsent: Iterable[int], *, total: int = 5, number: int = 1, written_ms: int = 1_000
) -> LoggedRecord:
    """The run is cancelled; of these rows nothing was sent."""
    outbound = cancel_record("inference.replies", order(), number, RowSet(total, unsent))
    return record(offset, dict(outbound.headers), outbound.value or b"", written_ms)


def manifest(offset: int, custom_ids: list[str]) -> LoggedRecord:
    (outbound,) = manifest_records("inference.replies", order(), custom_ids)
    assert dict(outbound.headers)[JOB_ID] == JOB.encode()
    return record(offset, dict(outbound.headers), outbound.value or b"")
