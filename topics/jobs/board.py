"""All jobs, as the compacted topic `inference.jobs` tells of them; and the way to write to it.

Knows the topic and its one partition. Does not know what follows from the records (`topics.jobs.state`).

The whole topic is read once, and then what is new: some kilobytes a job, whatever its rows say.
"""

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue
from topics.compacted_topic import CompactedTopic
from topics.jobs.errors import JobMistakeError
from topics.jobs.records import (
    CollectorBeat,
    JobCancel,
    JobMemo,
    JobOrder,
    JobRecord,
    JobRun,
    decode_job_record,
    key_of,
)
from topics.kafka_settings import KafkaSettings
from topics.record_producer import RecordRefusedError
from topics.replies import OutboundRecord

__all__ = ["BEAT_S", "Job", "JobBoard", "JobBoardError", "NoJobBoardError"]

logger = logging.getLogger(__name__)

BEAT_S = 2.0
"""A collector says that it lives this often; after five silent beats it counts as gone."""


class JobBoardError(JobMistakeError, LookupError):
    """A topic that jobs need isn't there."""


class NoJobBoardError(JobBoardError):
    """None was when the board was opened: there are no jobs."""


@dataclass(slots=True)
class Job:
    """What is written of one job."""

    order: JobOrder
    runs: dict[int, JobRun] = field(default_factory=dict)
    memo: JobMemo | None = None
    cancel: JobCancel | None = None

    @property
    def last_run(self) -> JobRun | None:
        return self.runs[max(self.runs)] if self.runs else None

    @property
    def cancelled(self) -> bool:
        """Somebody has asked for the end of its last run; it may not have come yet."""
        cancel = self.cancel
        return (
            cancel is not None
            and cancel.ordered_at_ms == self.order.created_at_ms
            and cancel.run == max(self.runs, default=1)
        )

    @property
    def ended(self) -> bool:
        """A collector has written all there is to say of it."""
        run = self.last_run
        return self.memo is not None and run is not None and self.memo.run == run.run and bool(self.memo.ended_at_ms)


class JobBoard:
    """An async context manager. `refresh` brings `jobs` up to date."""

    def __init__(self, settings: KafkaSettings, catalogue: Catalogue) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._topic = CompactedTopic(settings, catalogue.jobs, "jobs")
        self._exit = AsyncExitStack()
        self.jobs: dict[str, Job] = {}
        self._beats: dict[str, CollectorBeat] = {}
        self._strays: dict[str, list[JobRun | JobCancel | JobMemo]] = {}
        """Of jobs whose order is not there: compaction keeps the order of offsets, not of keys."""
        self.reply_partitions = 0
        self.request_partitions: dict[str, int] = {}
        """Of each request topic that there is."""

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError`, `AdminError`, `NoJobBoardError`."""
        async with KafkaAdmin(self._settings) as admin:
            topics = (await admin.cluster()).topics
        for topic in (self._catalogue.jobs, self._catalogue.replies):
            if topic not in topics:
                raise NoJobBoardError(f"the topic {topic} does not exist: run `headrace topics create`")
        self.reply_partitions = topics[self._catalogue.replies].partitions
        self.request_partitions = {name: state.partitions for name, state in topics.items()}
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._topic)
            await self.refresh()
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    async def refresh(self) -> None:
        """Read what is new. Raises `KafkaUnavailableError`."""
        async for records in self._topic.news():
            for record in records:
                try:
                    self._take(decode_job_record(record.key, record.value))
                except ValueError as error:
                    # Anyone may write to the topic: one bad record must not hide everybody's jobs.
                    logger.warning("%s", error)

    def collector_of(self, partition: int, now_ms: int) -> str | None:
        """The live collector that has this partition of the replies."""
        for beat in self._beats.values():
            if partition in beat.partitions and now_ms - beat.beat_at_ms <= 5_000 * BEAT_S:
                return beat.collector
        return None

    async def write(self, record: JobRecord) -> None:
        """Return when a broker has it; it is then in `jobs` too. Raises `KafkaUnavailableError`, `JobBoardError`."""
        value = record.model_dump_json(exclude_defaults=True).encode()
        try:
            await self._topic.write(OutboundRecord(self._catalogue.jobs, None, key_of(record), value))
        except RecordRefusedError as error:
            raise JobBoardError(str(error)) from error
        await self.refresh()

    def _take(self, record: JobRecord | None) -> None:
        if record is None:
            return
        if isinstance(record, CollectorBeat):
            self._beats[record.collector] = record
        elif isinstance(record, JobOrder):
            known = self.jobs.get(record.job_id)
            if known is None:
                known = self.jobs[record.job_id] = Job(record)
                for stray in self._strays.pop(record.job_id, ()):
                    self._add(known, stray)
            known.order = record
        elif record.job_id in self.jobs:
            self._add(self.jobs[record.job_id], record)
        else:
            self._strays.setdefault(record.job_id, []).append(record)

    @staticmethod
    def _add(job: Job, record: JobRun | JobCancel | JobMemo) -> None:
        match record:
            case JobRun():
                job.runs[record.run] = record
            case JobCancel():
                job.cancel = record
            case JobMemo():
                job.memo = record
