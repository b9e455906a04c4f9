"""Which offsets of one partition are complete, and up to where without a hole.

Knows the offsets of a partition under one assignment after another. Does not know Kafka, commits or what a record
means. Pure and synchronous; owned by whoever consumes the partition.

Records complete in any order. **base** is the lowest offset that is not complete: everything below it is done, so it
is what may be committed. (A commit that follows what was *polled* loses records: parallel-consumer#826.)

Each assignment of the partition is an **epoch**. Inserts and completions of another epoch than the current one are
refused, as a value: work of an assignment that is gone must not move the base of the next, nor stand in the way of
the same offset there (parallel-consumer#909).

Records are handed out in rising order, so an offset below the highest one that was not handed out will never come:
compaction removed it, or a transaction marker stands there. Such holes count as complete. Hence the whole state is a
sorted list of the pending offsets and one number; what is complete is what lies between them. Memory is bounded by
the pending records. Completing costs a binary search and a deletion from a list, some microseconds at 100,000.

Limit: holes at the very end of a partition are passed only when a record follows them.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

__all__ = ["CompletedRun", "CompletionTracker", "OffsetRefusal", "OffsetStatistics"]


class OffsetRefusal(Enum):
    """Why an insert or a completion changed nothing."""

    STALE_EPOCH = "stale epoch"
    """Of another assignment than the current one, or there is none."""
    SEEN = "seen"
    """Insert: this offset, or a higher one, was inserted before, or is complete by the last owner's word."""
    NOT_PENDING = "not pending"
    """Complete: never inserted, or complete already."""


class CompletedRun(NamedTuple):
    """Consecutive complete offsets beyond the base, both ends included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class OffsetStatistics:
    epoch: int | None
    base: int
    resident: int
    """Inserted and not complete."""
    completed_beyond_base: int
    """Complete (holes included) above one that is not: what a crash now would run again."""
    span: int
    """From base to behind the highest offset that was inserted."""


class CompletionTracker:
    """One partition. Refuses everything until `start` begins an assignment, and again after `end`."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._pending: list[int] = []
        """Inserted and not complete, rising."""
        self._next = 0
        """One above the highest offset that was inserted; below it, what is not pending is complete."""
        self._adopted: deque[CompletedRun] = deque()
        """Beyond `_next`: complete by the last owner's word, rising and disjoint."""
        self._completions = 0

    @property
    def epoch(self) -> int | None:
        return self._epoch

    @property
    def base(self) -> int:
        """The lowest offset that is not complete: what is committed."""
        return self._pending[0] if self._pending else self._next

    @property
    def completions(self) -> int:
        """How often `complete` has taken one: a commit of fewer than these is behind."""
        return self._completions

    def start(self, epoch: int, base: int, completed: Sequence[CompletedRun] = ()) -> None:
        """Begin the assignment `epoch` at the committed `base`. What was pending before is forgotten.

        `completed` are the runs beyond `base` that the last owner committed with it, rising and disjoint: inserting
        one of their offsets is refused as `SEEN`.
        """
        assert self._epoch is None or epoch > self._epoch, f"epoch {epoch} after {self._epoch}"
        assert base >= 0, f"{base = }"
        self._epoch = epoch
        self._pending = []
        self._next = base
        self._adopted = deque(completed)
        self._pass_adopted()
        self.check_integrity()

    def end(self) -> None:
        """The assignment is over: from here on everything is refused. `base` and `completed_runs` stay readable."""
        self._epoch = None

    def insert(self, epoch: int, offset: int) -> OffsetRefusal | None:
        """A record is handed out. Offsets rise, with or without holes between them. None: taken."""
        if epoch != self._epoch:
            return OffsetRefusal.STALE_EPOCH
        if offset < self._next:
            return OffsetRefusal.SEEN
        while self._adopted and self._adopted[0].last < offset:
            self._adopted.popleft()
        if self._adopted and self._adopted[0].first <= offset:
            # Done by the last owner; so are, one way or another, all offsets below that are not pending.
            self._next = self._adopted.popleft().last + 1
            self._pass_adopted()
            return OffsetRefusal.SEEN
        self._pending.append(offset)
        self._next = offset + 1
        self._pass_adopted()
        return None

    def complete(self, epoch: int, offset: int) -> OffsetRefusal | None:
        """A record is done: answered, and the answer acknowledged. None: taken; `base` may have risen."""
        if epoch != self._epoch:
            return OffsetRefusal.STALE_EPOCH
        at = bisect_left(self._pending, offset)
        if at == len(self._pending) or self._pending[at] != offset:
            return OffsetRefusal.NOT_PENDING
        del self._pending[at]
        self._completions += 1
        return None

    def completed_runs(self) -> Iterator[CompletedRun]:
        """The complete offsets beyond base, as rising disjoint runs.

        With `base` this is all that the partition's next owner must know. Valid until the next change.
        """
        return self._runs_between(self._pending)

    def outlook(self, epoch: int, offsets: Collection[int]) -> tuple[int, list[CompletedRun]] | None:
        """Base and runs as they will be when these offsets, too, are complete. None: the epoch is over.

        For a commit that must stand together with what completes them.
        """
        if epoch != self._epoch:
            return None
        pending = [offset for offset in self._pending if offset not in offsets]
        return pending[0] if pending else self._next, list(self._runs_between(pending))

    def _runs_between(self, pending: Sequence[int]) -> Iterator[CompletedRun]:
        for at, offset in enumerate(pending, start=1):
            following = pending[at] if at < len(pending) else self._next
            if following > offset + 1:
                yield CompletedRun(offset + 1, following - 1)
        yield from self._adopted

    def statistics(self) -> OffsetStatistics:
        span = self._next - self.base
        adopted = sum(run.last - run.first + 1 for run in self._adopted)
        return OffsetStatistics(
            epoch=self._epoch,
            base=self.base,
            resident=len(self._pending),
            completed_beyond_base=span - len(self._pending) + adopted,
            span=span,
        )

    def check_integrity(self) -> None:
        """Raise `AssertionError` if the parts contradict one another."""
        assert self._pending == sorted(set(self._pending)), "pending offsets out of order"
        assert not self._pending or self._pending[-1] < self._next, f"{self._pending[-1]} ≥ {self._next}"
        end = self._next
        for run in self._adopted:
            assert end < run.first <= run.last, f"{run} is not a run beyond {end}"
            end = run.last + 1

    def _pass_adopted(self) -> None:
        while self._adopted and self._adopted[0].first <= self._next:
            self._next = max(self._next, self._adopted.popleft().last + 1)
