"""Which reply decides a row: pure, synchronous, time is an argument.

Knows rows, runs and their windows. Does not know Kafka or files. Feeding it the replies of a job in the order of their
partition, however often it is begun anew, always gives the same fates:

- The last run that a row takes part in decides it; of that run's replies the first one, if it came in time.
- In time is what was written no later than `LATE_MS` after the run's window closed. A row that was running then may
  still end; what comes later is too late, or a result that was handed out could change.
- A row without a reply in time is expired. That is known `SETTLE_MS` after the window has closed: by then nothing can
  appear any more that was written in time, not even out of a transaction that was left open (they end after 10 s).
- A cancel closes the window of its run at once. Rows that were not sent by then are cancelled, and so are the others
  if they have no reply in time.
- An answer that came too late is held. It decides its row as soon as a further run begins behind it (that run's
  `answers_before`), which therefore need not run the row again: results may change then, and no answer is given twice.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from topics.jobs.records import JobRun, JobUsage
from topics.jobs.reply import Fate, RowReply
from topics.jobs.row_set import RowSet

__all__ = ["LATE_MS", "SETTLE_MS", "JobTally", "Taken", "Tallied"]

LATE_MS = 5_000
SETTLE_MS = 20_000

_SILENT, _UNRUN, _REPLIED = range(3)
"""What was heard of a row: nothing; that it was not run, and no more will be; its reply."""


class Taken(Enum):
    """What a reply has done."""

    NOTHING = 0
    """It is not its row's first one, or not of the row's last run."""
    DECIDED = 1
    """Its row has its fate by it."""
    HELD = 2
    """It came too late: it decides its row when a further run begins behind it."""


class _Held(NamedTuple):
    reply: RowReply
    offset: int
    written_ms: int


@dataclass(frozen=True, slots=True)
class Tallied:
    """What is known of a job's rows."""

    run: int
    pending: int
    completed: int
    failed: int
    expired: int
    cancelled: int
    usage: JobUsage
    model: str | None
    last_reply_ms: int | None
    """When the newest deciding reply was written."""


def _all_pending(rows: int) -> list[int]:
    """Rows by their fate."""
    return [rows, *(0 for _ in list(Fate)[1:])]


class JobTally:
    """Fates of `rows` rows. A few bytes a row."""

    def __init__(self, rows: int, runs: Iterable[JobRun]) -> None:
        self._rows = rows
        self._fates = bytearray(rows)
        self._run_of = bytearray(rows)
        self._heard = bytearray(rows)
        """Of each row's last run: `_SILENT`, `_UNRUN` or `_REPLIED`."""
        self._held: dict[int, _Held] = {}
        """By row. The reply's body is not kept."""
        self._answers_before = 0
        """Of the last run."""
        self._cut_ms: dict[int, int] = {}
        """Run → until when its replies count."""
        self._cancelled_runs: set[int] = set()
        self._counts = _all_pending(rows)
        self._prompt_tokens = self._completion_tokens = self._cached_tokens = 0
        self._model: str | None = None
        self._last_reply_ms: int | None = None
        self._last_run = 0
        for run in sorted(runs, key=lambda run: run.run):
            self.begin(run)

    @property
    def last_run(self) -> int:
        return self._last_run

    def begin(self, run: JobRun) -> None:
        """The job's next run: what it sends again is open again; other rows still are to their own run's replies."""
        assert run.run > self._last_run
        self._last_run = run.run
        self._cut_ms[run.run] = run.expires_at_ms + LATE_MS
        self._answers_before = run.answers_before
        if run.rows is None:
            self._fates, self._run_of = bytearray(self._rows), bytearray((run.run,)) * self._rows
            self._heard = bytearray(self._rows)
            self._counts = _all_pending(self._rows)
            return
        for row in self.in_fate(Fate.EXPIRED, Fate.CANCELLED):
            if self._heard[row] != _REPLIED:
                self._decide(row, Fate.PENDING)  # until all that counts now has been taken
        for row in RowSet.decode(self._rows, run.rows):
            self._decide(row, Fate.PENDING)
            self._run_of[row] = run.run
            self._heard[row] = _SILENT
            self._held.pop(row, None)
        self.count_late(run.answers_before)

    def count_late(self, offset: int) -> int:
        """Held answers that stand before `offset` decide their rows from now on: how many they are."""
        counting = [row for row, held in self._held.items() if held.offset < offset]
        for row in counting:
            held = self._held.pop(row)
            self._decide_by(held.reply, held.written_ms)
        return len(counting)

    def take(self, reply: RowReply, offset: int, written_ms: int) -> Taken:
        """`offset`: where the reply stands."""
        _, run, row = reply.id
        if row >= self._rows or self._run_of[row] != run or self._heard[row] == _REPLIED:
            return Taken.NOTHING
        in_time = written_ms <= self._cut_ms[run] and self._fates[row] == Fate.PENDING
        if not in_time and not reply.is_answer:
            self._heard[row] = _UNRUN
            return Taken.NOTHING
        self._heard[row] = _REPLIED
        if in_time or (run < self._last_run and offset < self._answers_before):
            self._decide_by(reply, written_ms)
            return Taken.DECIDED
        self._held[row] = _Held(reply._replace(body=None), offset, written_ms)
        return Taken.HELD

    def _decide_by(self, reply: RowReply, written_ms: int) -> None:
        self._decide(reply.id.row, reply.fate)
        prompt, completion, cached = reply.usage
        self._prompt_tokens += prompt
        self._completion_tokens += completion
        self._cached_tokens += cached
        self._model = self._model or reply.model
        if self._last_reply_ms is None or written_ms > self._last_reply_ms:
            self._last_reply_ms = written_ms

    def cancel(self, run: int, unsent: RowSet, written_ms: int) -> bool:
        """This run was cancelled, `unsent` rows of it were never sent. Whether that decides a row, now or later."""
        if run not in self._cut_ms or written_ms > self._cut_ms[run]:
            return False
        news = run not in self._cancelled_runs
        self._cancelled_runs.add(run)
        self._cut_ms[run] = min(self._cut_ms[run], written_ms + LATE_MS)
        for row in unsent:
            if row < self._rows and self._run_of[row] == run and self._fates[row] == Fate.PENDING:
                self._decide(row, Fate.CANCELLED)
                self._heard[row] = _UNRUN
                news = True
        return news

    def settle(self, offset: int, now_ms: int) -> None:
        """All that stands before `offset` has been taken, and so everything that was written by `now_ms`: rows whose
        window has closed have their fate.
        """
        if offset < self._answers_before:
            return
        closed = {run for run, cut_ms in self._cut_ms.items() if now_ms >= cut_ms - LATE_MS + SETTLE_MS}
        if closed and self._counts[Fate.PENDING]:
            for row in self.in_fate(Fate.PENDING):
                if (run := self._run_of[row]) in closed:
                    self._decide(row, Fate.CANCELLED if run in self._cancelled_runs else Fate.EXPIRED)

    def fate_of(self, row: int) -> Fate:
        return Fate(self._fates[row])

    def run_of(self, row: int) -> int:
        """The last run that the row takes part in."""
        return self._run_of[row]

    def is_held(self, row: int) -> bool:
        """Whether the row has an answer that came too late and does not count yet."""
        return row in self._held

    def silent(self) -> list[int]:
        """Rows that expired or were cancelled and of which nothing was heard: a worker may run them even now."""
        return [row for row in self.in_fate(Fate.EXPIRED, Fate.CANCELLED) if self._heard[row] == _SILENT]

    def in_fate(self, *fates: Fate) -> list[int]:
        return [row for row, fate in enumerate(self._fates) if fate in fates]

    def statistics(self) -> Tallied:
        pending, completed, failed, expired, cancelled = self._counts
        return Tallied(
            run=self._last_run,
            pending=pending,
            completed=completed,
            failed=failed,
            expired=expired,
            cancelled=cancelled,
            usage=JobUsage(
                prompt_tokens=self._prompt_tokens,
                completion_tokens=self._completion_tokens,
                cached_tokens=self._cached_tokens,
            ),
            model=self._model,
            last_reply_ms=self._last_reply_ms,
        )

    def check_integrity(self) -> None:
        assert self._counts == [self._fates.count(fate) for fate in Fate], f"{self._counts = }"
        assert all(self._heard[row] == _REPLIED for row in self._held), "an answer is held of a row without a reply"

    def _decide(self, row: int, fate: Fate) -> None:
        """The one place where a fate changes."""
        self._counts[self._fates[row]] -= 1
        self._counts[fate] += 1
        self._fates[row] = fate
