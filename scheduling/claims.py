"""Who stands first in each class and waits for room: preempted sequences, then the reserved head.

Knows rows, classes, and how often each class's front was passed. Does not know what room there is: admission tries
the fronts and says what became of them.

**Reserved head.** The row that the discipline picked and that could not be admitted (its tokens are still being made,
or slots, blocks or the step are short) stays its class's pick: its class gives no other until it is admitted. More
urgent classes pass it freely. Less urgent ones pass it by *backfill*, for what fits beside it now need not wait for
it, but at most `backfill_limit` times: each of them may take a block that it waits for, and without a bound a stream
of small requests would keep a large one out for ever. (Backfilling is EASY's idea, Lifka 1995; there the running
jobs' end times are known and make the bound exact. Here they are predictions, so a count bounds it.)

**Preempted sequences** stand before the head: they were admitted before it. They are readmitted in the order of their
first admission, under the same rule.
"""

from bisect import insort
from collections import Counter

from scheduling.priority import PriorityClass
from scheduling.qdisc import Room
from scheduling.running import RunningSequence

__all__ = ["Claims"]


class Claims:
    def __init__(self, backfill_limit: int) -> None:
        self._backfill_limit = backfill_limit
        self._heads: dict[PriorityClass, int] = {}
        self._preempted: dict[PriorityClass, list[RunningSequence]] = {}
        """No empty lists: a class that is a key has somebody waiting."""
        self._passed: Counter[int] = Counter()
        """By row: admissions of less urgent classes while it stood in front of its class."""
        self._backfills = 0

    # --- who waits ------------------------------------------------------------------------------------------------

    def head(self, priority: PriorityClass) -> int | None:
        return self._heads.get(priority)

    def heads(self) -> tuple[int, ...]:
        """The reserved heads, most urgent class first."""
        return tuple(self._heads[priority] for priority in sorted(self._heads))

    def first_preempted(self, priority: PriorityClass) -> RunningSequence | None:
        waiting = self._preempted.get(priority)
        return waiting[0] if waiting else None

    def preempted(self, row: int) -> RunningSequence | None:
        for waiting in self._preempted.values():
            for sequence in waiting:
                if sequence.row == row:
                    return sequence
        return None

    @property
    def preempted_count(self) -> int:
        return sum(map(len, self._preempted.values()))

    @property
    def backfills(self) -> int:
        """Admissions past a more urgent class's front, since the start."""
        return self._backfills

    def waiting(self, with_heads: bool) -> list[PriorityClass]:
        """Classes with somebody in front, most urgent first. Without heads, only those with preempted sequences."""
        return sorted({*self._preempted, *self._heads} if with_heads else self._preempted)

    # --- what it bars ---------------------------------------------------------------------------------------------

    def may_go(self, priority: PriorityClass, with_heads: bool = True) -> bool:
        """Whether the front of a class may be admitted: nobody more urgent has been passed often enough."""
        return not any(front < priority and self._bars(front) for front in self.waiting(with_heads))

    def room(self) -> Room:
        """The classes that may give a *new* row: no front of their own, and `may_go`."""
        room = Room()
        barred = False
        fronts = self.waiting(with_heads=True)
        for priority in PriorityClass:
            if barred or priority in fronts:
                room = room.without(priority)
            barred = barred or (priority in fronts and self._bars(priority))
        return room

    def _front(self, priority: PriorityClass) -> int:
        """The row in front of a class that has one."""
        preempted = self._preempted.get(priority)
        return preempted[0].row if preempted else self._heads[priority]

    def _bars(self, priority: PriorityClass) -> bool:
        """Whether the class's front was passed as often as it may be."""
        return self._passed[self._front(priority)] >= self._backfill_limit

    # --- what happens ---------------------------------------------------------------------------------------------

    def reserve(self, priority: PriorityClass, row: int) -> None:
        assert priority not in self._heads, f"{priority!r} has the reserved head {self._heads[priority]} already"
        self._heads[priority] = row

    def put_back(self, sequence: RunningSequence) -> None:
        """A sequence that was preempted."""
        insort(self._preempted.setdefault(sequence.service, []), sequence, key=_order)

    def drop_head(self, priority: PriorityClass) -> None:
        """The head was admitted, or ended while it waited."""
        del self._passed[self._heads.pop(priority)]

    def drop_preempted(self, sequence: RunningSequence) -> None:
        """The sequence was readmitted, or ended while it waited."""
        waiting = self._preempted[sequence.service]
        waiting.remove(sequence)
        if not waiting:
            del self._preempted[sequence.service]
        del self._passed[sequence.row]

    def admitted(self, priority: PriorityClass) -> None:
        """Somebody of this class was admitted: every more urgent front was passed once more."""
        passed = [self._front(front) for front in self.waiting(with_heads=True) if front < priority]
        self._passed.update(passed)
        self._backfills += bool(passed)

    def check_integrity(self) -> None:
        waiting_rows = {sequence.row for waiting in self._preempted.values() for sequence in waiting}
        assert self._passed.keys() <= waiting_rows | set(self._heads.values()), "a row was passed and doesn't wait"
        for priority, waiting in self._preempted.items():
            assert waiting, f"{priority!r}: an empty list of preempted sequences"
            orders = [sequence.order for sequence in waiting]
            assert orders == sorted(orders), f"{priority!r}: preempted sequences out of order"
            for sequence in waiting:
                assert sequence.service == priority, f"{sequence} waits in {priority!r}"
                assert sequence.computed_tokens == 0, f"{sequence} is preempted and has tokens computed"


def _order(sequence: RunningSequence) -> int:
    return sequence.order
