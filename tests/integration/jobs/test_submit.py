"""Submitting: every row is on the broker once, whoever is killed and however often it is asked for."""

import asyncio
from pathlib import Path

import orjson
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.integration.conftest import read_topic
from tests.integration.jobs.conftest import CommandLine, write_rows
from topics.jobs.checked_input import CheckedInput, InvalidInputError, check_input
from topics.jobs.input_file import InputFile, open_input
from topics.jobs.submission import JobConflictError, JobTakenOverError, OrderForm, Submission
from topics.partition_reader import end_offsets
from workers.commands.job_connection import JobDesk

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


def form(job_id: str = "job", **fields: object) -> OrderForm:
    return OrderForm(
        **{  # type: ignore[arg-type]
            "job_id": job_id,
            "priority": "p3",
            "tenant": "acme",
            "weight": 1,
            "completion_window_s": 3_600,
            "metadata": {},
        }
        | fields
    )


async def submit(desk: JobDesk, file: InputFile, ordered: OrderForm, *, skip_invalid: bool = False) -> int:
    async def check() -> object:
        return await asyncio.to_thread(check_input, file)

    submission = Submission(desk.settings, desk.catalogue, desk.board)
    job = await submission.order(ordered, file, check, skip_invalid=skip_invalid)  # type: ignore[arg-type]
    return await submission.send(job, file)


async def sent_ids(desk: JobDesk) -> list[str]:
    records = await read_topic(desk.settings.bootstrap_servers, desk.catalogue.requests("p3"))
    return sorted(dict(record.headers)["request-id"].decode() for record in records)


async def test_rows_are_requests_with_the_headers_of_their_job(desk: JobDesk, tmp_path: Path) -> None:
    with open_input(str(write_rows(tmp_path / "rows.jsonl", 3))) as file:
        assert await submit(desk, file, form(weight=2)) == 3
    records = await read_topic(desk.settings.bootstrap_servers, desk.catalogue.requests("p3"))
    by_row = {dict(record.headers)["request-id"].decode(): record for record in records}
    assert sorted(by_row) == ["job~1~0", "job~1~1", "job~1~2"]
    headers = {name: value.decode(errors="replace") for name, value in by_row["job~1~1"].headers}
    job = desk.board.jobs["job"]
    assert headers.pop("kafka_replyPartition") == job.order.reply_partition.to_bytes(4, "big").decode()
    assert job.last_run is not None
    assert headers == {
        "request-id": "job~1~1",
        "custom-id": "r1",
        "tenant": "acme",
        "flow": "job#1",
        "deadline-ms": str(job.last_run.expires_at_ms),
        "kafka_replyTopic": desk.catalogue.replies,
        "job-id": "job",
    }
    assert orjson.loads(by_row["job~1~1"].value)["messages"][0]["content"] == "row 1"


async def test_rows_carry_the_trace_of_the_span_that_sends_them(desk: JobDesk, tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    submission = Submission(desk.settings, desk.catalogue, desk.board, provider.get_tracer("test"))
    with open_input(str(write_rows(tmp_path / "rows.jsonl", 3))) as file:

        async def check() -> CheckedInput:
            return check_input(file)

        await submission.send(await submission.order(form(), file, check, skip_invalid=False), file)
    topic = desk.catalogue.requests("p3")
    (span,) = exporter.get_finished_spans()
    assert span.context is not None
    assert (span.name, (span.attributes or {})["messaging.batch.message_count"]) == (f"send {topic}", 3)
    sent = await read_topic(desk.settings.bootstrap_servers, topic)
    expected = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"
    assert span.context.trace_flags.sampled
    assert [dict(record.headers)["traceparent"].decode() for record in sent] == [expected] * 3


async def test_submitting_again_sends_nothing(desk: JobDesk, tmp_path: Path) -> None:
    with open_input(str(write_rows(tmp_path / "rows.jsonl", 50))) as file:
        assert await submit(desk, file, form()) == 50
        assert await submit(desk, file, form()) == 0
    assert len(await sent_ids(desk)) == 50


async def test_another_input_or_order_is_no_repetition(desk: JobDesk, tmp_path: Path) -> None:
    with open_input(str(write_rows(tmp_path / "rows.jsonl", 5))) as file:
        await submit(desk, file, form())
        with pytest.raises(JobConflictError, match="another class"):
            await submit(desk, file, form(tenant="other"))
    with (
        open_input(str(write_rows(tmp_path / "others.jsonl", 6))) as file,
        pytest.raises(JobConflictError, match="another input"),
    ):
        await submit(desk, file, form())


async def test_a_refused_input_is_a_failed_job_and_can_be_corrected(desk: JobDesk, tmp_path: Path) -> None:
    with open_input(str(write_rows(tmp_path / "rows.jsonl", 5, bad=[2]))) as file:
        with pytest.raises(InvalidInputError, match="1 of 5 rows"):
            await submit(desk, file, form())
        assert desk.board.jobs["job"].order.problems[0].line == 3
        assert await sent_ids(desk) == []
        assert await submit(desk, file, form(), skip_invalid=True) == 4
    assert len(await sent_ids(desk)) == 4


async def test_a_process_that_was_taken_over_stops(desk: JobDesk, tmp_path: Path) -> None:
    """Another process has gone on with the sending meanwhile."""
    with open_input(str(write_rows(tmp_path / "rows.jsonl", 5))) as file:
        first = Submission(desk.settings, desk.catalogue, desk.board)

        async def check() -> object:
            return check_input(file)

        job = await first.order(form(), file, check, skip_invalid=False)  # type: ignore[arg-type]
        assert job.last_run is not None
        await desk.board.write(job.last_run.model_copy(update={"submitter": "another"}))
        stale = job.last_run.model_copy()
        with pytest.raises(JobTakenOverError):
            await first._advance(stale, {"sent_rows": 5})


async def test_killed_submitters_leave_every_row_once(desk: JobDesk, command_line: CommandLine, tmp_path: Path) -> None:
    rows = 30_000
    write_rows(tmp_path / "rows.jsonl", rows, bad=[7, 20_000])
    topic = desk.catalogue.requests("p3")
    killed = 0
    for goal in (1, rows // 2):

        async def enough(goal: int = goal) -> bool:
            ends = await end_offsets(desk.settings, topic, range(3))
            return sum(ends.values()) >= goal

        process = await command_line.start("submit", tmp_path / "rows.jsonl", "--skip-invalid", "--job-id", "job")
        killed += await command_line.kill_when(process, enough)
    assert killed, "no submitter was killed in the middle"
    code, _, err = await command_line.run("submit", tmp_path / "rows.jsonl", "--skip-invalid", "--job-id", "job")
    assert code == 0, err
    assert await sent_ids(desk) == sorted(f"job~1~{row}" for row in range(rows) if row not in (7, 20_000))
