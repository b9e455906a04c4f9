"""Ordering a job: check the input, write the order, send the rows; or go on where another process broke off.

Knows the order of these steps and what each leaves behind in `inference.jobs`. Does not know arguments or terminals.

Submitting is idempotent: the run's record has a watermark (every row below it is on the broker) and, for each partition
of the request topic, an offset before which no later row stands. Whoever goes on reads the request topic from there and
leaves out the rows that it finds. Two processes that submit the same job at once: the later one takes over, and the
former stops at its next stretch, as it does when the job is cancelled.

Not by a transaction over rows and watermark: a client that is killed would leave it open, and for ten seconds nobody's
requests behind it in the topic could be read.
"""

import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Tracer

from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue
from topics.headers import REQUEST_ID
from topics.jobs.announcements import manifest_records, refusal_record, write_records
from topics.jobs.board import Job, JobBoard
from topics.jobs.checked_input import CheckedInput, InvalidInputError
from topics.jobs.errors import JobFailedError, JobMistakeError
from topics.jobs.follower import now_ms
from topics.jobs.input_file import InputFile
from topics.jobs.records import JobOrder, JobRun, OrderProblem, Priority, RunKind
from topics.jobs.row_ids import RowId, reply_partition_of
from topics.jobs.row_sender import RowSender, SendProgress
from topics.jobs.row_set import RowSet
from topics.jobs.rows import BatchRow, RowChecker, RowProblem
from topics.jobs.run_end import end_run
from topics.kafka_settings import KafkaSettings
from topics.partition_reader import PartitionReader, end_offsets

__all__ = [
    "JobCancelledError",
    "JobConflictError",
    "JobTakenOverError",
    "OrderForm",
    "Submission",
    "retention_warnings",
]


class JobCancelledError(JobFailedError):
    """Somebody cancelled the job before its first row was sent."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"{job_id} was cancelled before a row of it was sent: to run its input all the same, give another --job-id"
        )


class JobConflictError(JobMistakeError):
    """The job exists already, with another input or another order; or can't do what is asked of it now."""


class JobTakenOverError(JobFailedError):
    """Another process goes on with this job's sending, or has ended it."""

    def __init__(self, job_id: str, *, cancelled: bool) -> None:
        why = "was cancelled" if cancelled else "is being sent by another process"
        super().__init__(f"{job_id} {why}: this one stops")


@dataclass(frozen=True, slots=True)
class OrderForm:
    """What a job is ordered with."""

    job_id: str
    priority: Priority
    tenant: str | None
    weight: int
    completion_window_s: int
    metadata: dict[str, str]


async def retention_warnings(
    admin: KafkaAdmin, catalogue: Catalogue, priority: str, completion_window_s: int
) -> list[str]:
    """What would be deleted before the job's window closes. Raises `AdminError`."""
    topics = (catalogue.requests(priority), catalogue.replies)
    warnings = []
    for topic, configs in (await admin.topic_configs(topics)).items():
        retention_ms = int(configs.get("retention.ms", -1))
        if 0 <= retention_ms < completion_window_s * 1000:
            what = "replies" if topic == catalogue.replies else "rows that wait"
            warnings.append(
                f"the topic {topic} keeps records for {retention_ms / 3_600_000:g} h, the job's window is "
                f"{completion_window_s / 3600:g} h: {what} may be deleted before it ends; collect the results sooner, "
                f"or raise retention.ms"
            )
    return warnings


@dataclass(slots=True)
class _Sending:
    """How far a run was sent when this process went on with it."""

    run: JobRun
    """As this process wrote it last."""
    total: int
    selected: RowSet | None
    """The run's rows; None: all."""
    found: RowSet
    """Rows behind the watermark that were on the broker."""
    watermark: int = field(init=False)

    def __post_init__(self) -> None:
        self.watermark = self.run.sent_rows

    def wants(self, row: int) -> bool:
        return row >= self.watermark and row not in self.found and (self.selected is None or row in self.selected)

    @property
    def found_before(self) -> int:
        below = self.watermark if self.selected is None else sum(row < self.watermark for row in self.selected)
        return below + len(self.found)

    def unsent(self, end: int) -> RowSet:
        """The run's rows from `end` on that are not on the broker."""
        return RowSet(self.total, (row for row in range(end, self.total) if self.wants(row)))


class Submission:
    """One process's work on the sending of one job."""

    def __init__(
        self, settings: KafkaSettings, catalogue: Catalogue, board: JobBoard, tracer: Tracer | None = None
    ) -> None:
        """`tracer`: of the span that sends the rows, to which their traces are linked; OpenTelemetry's global one where
        absent.
        """
        self._settings = settings
        self._catalogue = catalogue
        self._board = board
        self._tracer = trace.get_tracer("headrace.client") if tracer is None else tracer
        self._submitter = uuid.uuid4().hex
        self._checked: CheckedInput | None = None
        """By this process: then its rows need not be checked again, and perhaps not even be read."""

    async def order(
        self,
        form: OrderForm,
        file: InputFile,
        check: Callable[[], Awaitable[CheckedInput]],
        *,
        skip_invalid: bool,
    ) -> Job:
        """The job, its input checked, its first run begun; or as it stands, if it was ordered before.

        Raises `InvalidInputError` (the job is then written as failed), `JobCancelledError`, `JobConflictError`,
        `KafkaUnavailableError`, `RecordRefusedError`.
        """
        await self._board.refresh()
        job = self._board.jobs.get(form.job_id)
        if job is not None and not job.order.problem_count:
            self._must_match(job.order, form, file)
        if job is None or job.order.problem_count:
            partition = reply_partition_of(form.job_id, self._board.reply_partitions)
            await self._board.write(
                JobOrder(
                    job_id=form.job_id,
                    priority=form.priority,
                    tenant=form.tenant,
                    weight=form.weight,
                    completion_window_s=form.completion_window_s,
                    metadata=form.metadata,
                    created_at_ms=now_ms(),
                    input_name=file.name,
                    input_fingerprint=file.fingerprint,
                    input_bytes=file.size_bytes,
                    reply_partition=partition,
                    reply_offset=(await end_offsets(self._settings, self._catalogue.replies, [partition]))[partition],
                )
            )
        job = self._board.jobs[form.job_id]
        if not job.runs:
            if not job.cancelled:
                await self._check(job, check, skip_invalid=skip_invalid)
            if self._board.jobs[form.job_id].cancelled:
                raise JobCancelledError(form.job_id)
            await self.begin(job, "submit", None, form.completion_window_s)
        return self._board.jobs[form.job_id]

    def _must_match(self, order: JobOrder, form: OrderForm, file: InputFile) -> None:
        if order.input_fingerprint != file.fingerprint:
            raise JobConflictError(
                f"the job {form.job_id} exists, with another input ({order.input_name}): give another --job-id"
            )
        ordered = (order.priority, order.tenant, order.weight, order.metadata, order.completion_window_s)
        if ordered != (form.priority, form.tenant, form.weight, form.metadata, form.completion_window_s):
            raise JobConflictError(
                f"the job {form.job_id} exists, ordered with another class, tenant, weight, window or metadata: give "
                "another --job-id to run the input once more"
            )

    def know(self, checked: CheckedInput) -> None:
        """This process has checked the input whose rows are sent."""
        self._checked = checked

    async def _check(self, job: Job, check: Callable[[], Awaitable[CheckedInput]], *, skip_invalid: bool) -> None:
        checked = await check()
        self.know(checked)
        update = {
            "endpoint": checked.endpoint or "",
            "rows": checked.rows,
            "invalid_rows": len(checked.problems),
        }
        refused = bool(checked.problems) and not skip_invalid
        if refused:
            update["problem_count"] = len(checked.problems)
            update["problems"] = tuple(
                OrderProblem(code=problem.code, line=problem.line, message=problem.message, param=problem.param)
                for problem in checked.first_problems
            )
        else:
            await self._announce(job.order, checked)
        await self._board.write(job.order.model_copy(update=update))
        if refused:
            raise InvalidInputError(checked)

    async def _announce(self, order: JobOrder, checked: CheckedInput) -> None:
        """Name the rows and refuse the invalid ones, before any of them can be answered by a worker."""
        topic = self._catalogue.replies
        refusals = (refusal_record(topic, order, problem) for problem in checked.problems)
        records = chain(manifest_records(topic, order, checked.custom_ids), refusals)
        await write_records(self._settings, "announce", records)

    async def begin(
        self, job: Job, kind: RunKind, rows: RowSet | None, completion_window_s: int, *, answers_before: int = 0
    ) -> JobRun:
        """Write the job's next run, of which nothing is sent yet.

        `rows`: None is all. `answers_before`: see `JobRun`.
        """
        topic, begun_ms = self._catalogue.requests(job.order.priority), now_ms()
        run = JobRun(
            job_id=job.order.job_id,
            run=max(job.runs, default=0) + 1,
            kind=kind,
            created_at_ms=begun_ms,
            expires_at_ms=begun_ms + 1000 * completion_window_s,
            rows=None if rows is None else rows.encode(),
            submitter=self._submitter,
            request_offsets=await end_offsets(self._settings, topic, range(self._board.request_partitions[topic])),
            answers_before=answers_before,
        )
        await self._board.write(run)
        return run

    async def send(self, job: Job, file: InputFile, on_rows: Callable[[int], None] = lambda _: None) -> int:
        """Send what the job's last run has not sent yet, and return how many rows that were.

        When the job is cancelled the sending ends: `board.jobs` says so afterwards. `on_rows` is told how many rows of
        the run are on the broker.

        Raises `JobTakenOverError`, `SendingBrokeError`, `KafkaUnavailableError`, `RecordRefusedError`.
        """
        sending = await self._go_on(job)
        if sending is None:
            return 0
        sent = 0

        async def on_progress(progress: SendProgress) -> bool:
            nonlocal sent
            sent = progress.rows
            on_rows(sending.found_before + sent)
            trace.get_current_span().set_attribute("messaging.batch.message_count", sent)
            update = {"sent_rows": progress.sent_rows, "request_offsets": progress.request_offsets}
            sending.run = await self._advance(sending.run, update)
            return not self._board.jobs[job_id].cancelled

        job_id, end = job.order.job_id, sending.watermark
        if not self._board.jobs[job_id].cancelled:
            end = await self._send_rows(job.order, sending, file, on_progress)
        await self._end(job, sending, end)
        return sent

    async def _send_rows(
        self,
        order: JobOrder,
        sending: "_Sending",
        file: InputFile,
        on_progress: Callable[[SendProgress], Awaitable[bool]],
    ) -> int:
        """In a span of their own, which the rows' records name."""
        topic = self._catalogue.requests(order.priority)
        attributes = {
            "messaging.system": "kafka",
            "messaging.destination.name": topic,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.client.id": self._settings.client_id,
            "headrace.flow": order.job_id,
        }
        with self._tracer.start_as_current_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes):
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            async with RowSender(
                self._settings,
                order,
                sending.run,
                request_topic=topic,
                request_partitions=self._board.request_partitions[topic],
                reply_topic=self._catalogue.replies,
                trace=carrier,
            ) as sender:
                return await sender.send(self._rows(file), sending.wants, on_progress)

    async def stop(self, job: Job) -> None:
        """End the sending of a job that was cancelled and whose submitter is gone. Raises as `send`."""
        assert self._board.jobs[job.order.job_id].cancelled
        sending = await self._go_on(job)
        if sending is not None:
            await self._end(job, sending, sending.watermark)

    async def _go_on(self, job: Job) -> "_Sending | None":
        """The sending of the last run as it stands, now this process's; None if it is over."""
        run, rows = job.last_run, job.order.rows
        assert run is not None
        assert rows is not None
        if run.sent_at_ms is not None:
            return None
        selected = None if run.rows is None else RowSet.decode(rows, run.rows)
        found = RowSet(rows)
        if run.submitter != self._submitter:
            run = await self._take_over(run)
            found = await self._find_sent(job, run)
        return _Sending(run, rows, selected, found)

    async def _end(self, job: Job, sending: "_Sending", end: int) -> None:
        """The sending is over: all rows of the run below `end` are on the broker."""
        await self._check_mine(sending.run)
        update: dict[str, object] = {"sent_at_ms": now_ms()}
        if self._board.jobs[job.order.job_id].cancelled:
            await end_run(self._settings, self._catalogue, job.order, sending.run, sending.unsent(end))
        else:
            update["sent_rows"] = sending.total
        await self._advance(sending.run, update)

    def _rows(self, file: InputFile) -> Iterator[BatchRow | RowProblem]:
        checked = self._checked
        if checked is not None and checked.kept is not None:
            return iter(checked.kept)
        return RowChecker().check_all(file.lines(), () if checked is None else checked.good)

    async def _take_over(self, run: JobRun) -> JobRun:
        topic = self._catalogue.requests(self._board.jobs[run.job_id].order.priority)
        # Partitions may have been added since: nothing of this run stands there that the former process was told of.
        offsets = {**dict.fromkeys(range(self._board.request_partitions[topic]), 0), **run.request_offsets}
        taken = run.model_copy(update={"submitter": self._submitter, "request_offsets": offsets})
        await self._board.write(taken)
        return taken

    async def _advance(self, run: JobRun, update: dict[str, object]) -> JobRun:
        await self._check_mine(run)
        advanced = run.model_copy(update=update)
        await self._board.write(advanced)
        return advanced

    async def _check_mine(self, run: JobRun) -> None:
        await self._board.refresh()
        job = self._board.jobs[run.job_id]
        if job.runs[run.run].submitter != self._submitter:
            raise JobTakenOverError(run.job_id, cancelled=job.cancelled)

    async def _find_sent(self, job: Job, run: JobRun) -> RowSet:
        """Rows behind the watermark that are on the broker all the same."""
        assert job.order.rows is not None
        found = RowSet(job.order.rows)
        topic = self._catalogue.requests(job.order.priority)
        for partition, offset in run.request_offsets.items():
            async with PartitionReader(self._settings, topic, partition, read_committed=False) as reader:
                await reader.seek(offset)
                async for records in reader.read_to_end():
                    for record in records:
                        row_id = RowId.parse(dict(record.headers).get(REQUEST_ID, b"").decode(errors="replace"))
                        if row_id is not None and row_id[:2] == (run.job_id, run.run) and row_id.row < found.total:
                            found.add(row_id.row)
        return found
