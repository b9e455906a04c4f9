"""One job's replies, collected: its tally, and the lines of its result files in a journal.

Knows how records of the job's reply partition become fates and lines, and where to read on. Does not read Kafka.

What else stands in the reply partition (`topics.jobs.announcements`) names every row before the replies, and ends a
run that was cancelled.
"""

import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

import orjson

from topics.aiokafka_stretches import LoggedRecord
from topics.headers import CUSTOM_ID, EVENT, JOB_ID
from topics.jobs.announcements import CANCELLED, MANIFEST
from topics.jobs.board import Job
from topics.jobs.journal import RowJournal
from topics.jobs.records import JobMemo, JobRun
from topics.jobs.reply import Fate, RowReply, RowUsage, unanswered_line
from topics.jobs.row_ids import RowId
from topics.jobs.row_set import RowSet
from topics.jobs.state import Standing, standing_of_tally
from topics.jobs.tally import JobTally, Taken

__all__ = ["JobCollection"]

logger = logging.getLogger(__name__)

_ROW_HEAD, _MANIFEST_HEAD, _CANCEL_HEAD = "r", "m", "c"
_NOWHERE = -1


class JobCollection:
    """Give it the records of the job's reply partition in order, its own or not. Owns the journal while it lives.

    Without a journal it only counts.
    """

    def __init__(self, job: Job, journal: RowJournal | None) -> None:
        """The job's input must have been checked. Reads a journal that is there (blocks)."""
        assert job.order.rows is not None, "the rows of a job are known when its input is checked"
        self.job_id = job.order.job_id
        self.total = job.order.rows
        self.tally = JobTally(self.total, job.runs.values())
        self.next_offset = job.order.reply_offset
        """The first offset that is not taken in yet."""
        self._journal = journal
        self._custom_ids: dict[int, str] = {}
        self._place_of = array("q", [_NOWHERE]) * self.total
        """Of a row's reply in the journal, whether or not it decides the row."""
        self._dirty = False
        if journal is not None:
            for place, head, payload in journal.recover():
                self._recover(place, head, payload)

    def begin(self, runs: Iterable[JobRun]) -> None:
        """The job's runs as they are now: those that are new have resumed or retried it."""
        for run in sorted(runs, key=lambda run: run.run):
            if run.run > self.tally.last_run:
                self.tally.begin(run)
                for row in self.tally.in_fate(Fate.PENDING):
                    if not self.tally.is_held(row):
                        self._place_of[row] = _NOWHERE

    def passed(self, offset: int) -> None:
        """All records before `offset` were looked at: those that are this job's have been taken."""
        self.next_offset = max(self.next_offset, offset)

    def take(self, record: LoggedRecord, headers: Mapping[str, bytes | None]) -> bool:
        """Whether the record, whose headers these are, says something new of this job.

        Records that were taken already are passed over.
        """
        if record.offset < self.next_offset:
            return False
        self.next_offset = record.offset + 1
        if (event := headers.get(EVENT)) in (MANIFEST, CANCELLED):
            if headers.get(JOB_ID) != self.job_id.encode():
                return False
            try:
                return self._take_manifest(record) if event == MANIFEST else self._take_cancel(record)
            except (TypeError, ValueError) as error:
                # Anyone may write there; a job's own submitter writes what can be read.
                logger.warning(
                    "the %s of %s at offset %d can't be read: %s", event.decode(), self.job_id, record.offset, error
                )
                return False
        reply = RowReply.of(headers, record.value)
        if reply is None or reply.id.job_id != self.job_id:
            return False
        if self.tally.take(reply, record.offset, record.timestamp) is Taken.NOTHING:
            return False
        if self._journal is not None:
            echoed = (headers.get(CUSTOM_ID) or b"").decode(errors="replace")
            head = [
                _ROW_HEAD,
                record.offset,
                record.timestamp,
                reply.id.run,
                reply.id.row,
                reply.fate.value,
                list(reply.usage),
                reply.model,
            ]
            line = reply.line(self._custom_ids.get(reply.id.row) or echoed or f"#row:{reply.id.row}")
            self._place_of[reply.id.row] = self._journal.append(head, line)
            self._dirty = True
        return True

    def _take_manifest(self, record: LoggedRecord) -> bool:
        if self._journal is None:
            return False  # only counting: nobody asks for names
        first_row, custom_ids = orjson.loads(record.value or b"[0, []]")
        if first_row in self._custom_ids:
            return False  # sent again after a crash of the submitter
        self._name(first_row, custom_ids)
        self._journal.append([_MANIFEST_HEAD, record.offset], [first_row, custom_ids])
        self._dirty = True
        return True

    def _take_cancel(self, record: LoggedRecord) -> bool:
        run, unsent = orjson.loads(record.value or b'[0, ""]')
        if not self.tally.cancel(run, RowSet.decode(self.total, unsent), record.timestamp):
            return False
        if self._journal is not None:
            self._journal.append([_CANCEL_HEAD, record.offset, record.timestamp], [run, unsent])
            self._dirty = True
        return True

    def _name(self, first_row: int, custom_ids: Sequence[str]) -> None:
        self._custom_ids.update(enumerate(custom_ids, start=first_row))

    def _recover(self, place: int, head: Sequence[Any], payload: bytes) -> None:
        self.next_offset = head[1] + 1
        if head[0] == _MANIFEST_HEAD:
            self._name(*orjson.loads(payload))
            return
        if head[0] == _CANCEL_HEAD:
            run, unsent = orjson.loads(payload)
            self.tally.cancel(run, RowSet.decode(self.total, unsent), head[2])
            return
        _, offset, written_ms, run, row, fate, usage, model = head
        reply = RowReply(RowId(self.job_id, run, row), Fate(fate), None, None, RowUsage(*usage), model)
        if self.tally.take(reply, offset, written_ms) is not Taken.NOTHING:
            self._place_of[row] = place

    def settle(self, now_ms: int) -> None:
        """Everything that was written by `now_ms` has been taken: rows whose window has closed have their fate."""
        self.tally.settle(self.next_offset, now_ms)

    def sync(self) -> None:
        """Make durable what was taken (blocks)."""
        if self._journal is not None and self._dirty:
            self._journal.sync()
            self._dirty = False

    def standing(self) -> Standing:
        return standing_of_tally(self.total, self.tally.statistics())

    def memo(self, written_at_ms: int, **more: Any) -> JobMemo:
        """`more`: fields that only the writer of the files knows."""
        tallied = self.tally.statistics()
        return JobMemo(
            job_id=self.job_id,
            run=tallied.run,
            written_at_ms=written_at_ms,
            next_offset=self.next_offset,
            completed=tallied.completed,
            failed=tallied.failed,
            expired=tallied.expired,
            cancelled=tallied.cancelled,
            usage=tallied.usage,
            model=tallied.model,
            last_reply_ms=tallied.last_reply_ms,
            **more,
        )

    def lines(self, *, in_order: bool) -> Iterator[tuple[bool, bytes]]:
        """For every row with a fate: whether it completed, and its line. In the input's order, or as they were decided.

        Rows that were never answered have no place of their own and come last. Reads the journal (blocks).
        """
        assert self._journal is not None
        rows = [row for row in range(self.total) if self.tally.fate_of(row) is not Fate.PENDING]
        if not in_order:
            rows.sort(key=lambda row: inf if (place := self._answered(row)) is None else place)
        for row in rows:
            place, fate = self._answered(row), self.tally.fate_of(row)
            if place is not None:
                yield fate is Fate.COMPLETED, self._journal.payload(place)
            else:
                row_id = RowId(self.job_id, self.tally.run_of(row), row)
                custom_id = self._custom_ids.get(row, f"#row:{row}")
                yield False, orjson.dumps(unanswered_line(row_id, custom_id, fate))

    def _answered(self, row: int) -> int | None:
        """The place of the reply that decided the row; None if none did."""
        place = self._place_of[row]
        return None if place == _NOWHERE or self.tally.is_held(row) else place
