"""Which offsets of one partition are complete, and up to where without a hole.

Knows the offsets of a partition under one assignment after another. Does not know Kafka, commits or what a record
means. Pure and synchronous; owned by whoever consumes the partition.

Records complete in any order. **base** is the lowest offset that is not complete: everything below it is done, so it
is what may be committed. (A commit that follows what was *polled* loses records: parallel-consumer#826.)

Each assignment of the partition is an **epoch**. Inserts and completions of another epoch than the current one are
refused, as a value: work of an assignment that is gone must not move the base of the next, nor stand in the way of
the same offset there (parallel-consumer#909).

Records are handed out in rising order, so an offset below the highest one that was not handed out will never come:
compaction removed it, or a transaction marker stands there. Such holes count as complete. So between base and the next
offset everything is either pending or in a run of complete offsets, and the runs are what is kept: they are what a
commit must tell, and of a long backlog that has hardly begun there are few. Completing costs a binary search and an
insertion into two lists.

Limit: holes at the very end of a partition are passed only when a record follows them.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Stretch:
    """From base to the next offset: runs of complete offsets, with pending ones between them. None begins at base."""

    base: int
    next: int
    """One above the highest offset that was inserted."""
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)

    def copy(self) -> "_Stretch":
        return _Stretch(self.base, self.next, self.firsts.copy(), self.lasts.copy())

    def pends(self, offset: int) -> bool:
        if not self.base <= offset < self.next:
            return False
        at = bisect_right(self.firsts, offset) - 1
        return at < 0 or self.lasts[at] < offset

    def complete(self, offset: int) -> None:
        """One that pends."""
        at = bisect_right(self.firsts, offset)
        joins_left = at > 0 and self.lasts[at - 1] == offset - 1
        joins_right = at < len(self.firsts) and self.firsts[at] == offset + 1
        if joins_left and joins_right:
            self.lasts[at - 1] = self.lasts[at]
            del self.firsts[at], self.lasts[at]
        elif joins_left:
            self.lasts[at - 1] = offset
        elif joins_right:
            self.firsts[at] = offset
        else:
            self.firsts.insert(at, offset)
            self.lasts.insert(at, offset)
        self._rise()

    def skip_to(self, end: int) -> None:
        """All from the next offset up to `end` are complete."""
        if end <= self.next:
            return
        if self.lasts and self.lasts[-1] == self.next - 1:
            self.lasts[-1] = end - 1
        else:
            self.firsts.append(self.next)
            self.lasts.append(end - 1)
        self.next = end
        self._rise()

    def _rise(self) -> None:
        if self.firsts and self.firsts[0] == self.base:
            self.base = self.lasts[0] + 1
            del self.firsts[0], self.lasts[0]


class CompletionTracker:
    """One partition. Refuses everything until `start` begins an assignment, and again after `end`."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._stretch = _Stretch(0, 0)
        self._resident = 0
        self._adopted: deque[CompletedRun] = deque()
        """Beyond the stretch: complete by the last owner's word, rising and disjoint."""
        self._completions = 0

    @property
    def epoch(self) -> int | None:
        return self._epoch

    @property
    def base(self) -> int:
        """The lowest offset that is not complete: what is committed."""
        return self._stretch.base

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
        self._stretch = _Stretch(base, base)
        self._resident = 0
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
        stretch = self._stretch
        if offset < stretch.next:
            return OffsetRefusal.SEEN
        while self._adopted and self._adopted[0].last < offset:
            self._adopted.popleft()
        if self._adopted and self._adopted[0].first <= offset:
            # Done by the last owner; so are, one way or another, all offsets below that are not pending.
            stretch.skip_to(self._adopted.popleft().last + 1)
            self._pass_adopted()
            return OffsetRefusal.SEEN
        stretch.skip_to(offset)
        stretch.next = offset + 1
        self._resident += 1
        self._pass_adopted()
        return None

    def complete(self, epoch: int, offset: int) -> OffsetRefusal | None:
        """A record is done: answered, and the answer acknowledged. None: taken; `base` may have risen."""
        if epoch != self._epoch:
            return OffsetRefusal.STALE_EPOCH
        if not self._stretch.pends(offset):
            return OffsetRefusal.NOT_PENDING
        self._stretch.complete(offset)
        self._resident -= 1
        self._completions += 1
        return None

    def completed_runs(self) -> Iterator[CompletedRun]:
        """The complete offsets beyond base, as rising disjoint runs.

        With `base` this is all that the partition's next owner must know. Valid until the next change.
        """
        return self._runs_of(self._stretch)

    def outlook(self, epoch: int, offsets: Collection[int]) -> tuple[int, list[CompletedRun]] | None:
        """Base and runs as they will be when these offsets, too, are complete. None: the epoch is over.

        For a commit that must stand together with what completes them.
        """
        if epoch != self._epoch:
            return None
        stretch = self._stretch.copy()
        for offset in offsets:
            if stretch.pends(offset):
                stretch.complete(offset)
        return stretch.base, list(self._runs_of(stretch))

    def _runs_of(self, stretch: _Stretch) -> Iterator[CompletedRun]:
        yield from map(CompletedRun, stretch.firsts, stretch.lasts)
        yield from self._adopted

    def statistics(self) -> OffsetStatistics:
        span = self._stretch.next - self.base
        adopted = sum(run.last - run.first + 1 for run in self._adopted)
        return OffsetStatistics(
            epoch=self._epoch,
            base=self.base,
            resident=self._resident,
            completed_beyond_base=span - self._resident + adopted,
            span=span,
        )

    def check_integrity(self) -> None:
        """Raise `AssertionError` if the parts contradict one another."""
        stretch = self._stretch
        assert stretch.base <= stretch.next, f"base {stretch.base} beyond {stretch.next}"
        end, complete = stretch.base, 0
        for first, last in zip(stretch.firsts, stretch.lasts, strict=True):
            assert end < first <= last < stretch.next, f"{first}–{last} is not a run of its own beyond {end}"
            end, complete = last + 1, complete + last - first + 1
        assert stretch.next - stretch.base - complete == self._resident, f"{self._resident} pending"
        end = stretch.next
        for run in self._adopted:
            assert end < run.first <= run.last, f"{run} is not a run beyond {end}"
            end = run.last + 1

    def _pass_adopted(self) -> None:
        while self._adopted and self._adopted[0].first <= self._stretch.next:
            self._stretch.skip_to(self._adopted.popleft().last + 1)
