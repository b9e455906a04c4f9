"""Who stands first in each class and waits to enter: preempted sequences, then the claimed rows.

Knows rows, classes, and how often each class's front was passed. Does not know what room there is: admission tries
the fronts and says what became of them.

**Claimed rows** are those that the discipline picked and that could not be admitted at once. One whose tokens are
still being made does not bar its own class: that may claim more, as many as there are slots, so that a wrong guess
of the staging costs one request a step and not a whole class.

**Reserved head.** A claimed row that has its tokens and finds slots, blocks or the step short stays its class's pick:
its class gives no other until it is admitted. More urgent classes pass it freely. Less urgent ones pass it by
*backfill*, for what fits beside it now need not wait for it, but at most `backfill_limit` times: each of them may
take a block that it waits for, and without a bound a stream of small requests would keep a large one out for ever.
(Backfilling is EASY's idea, Lifka 1995; there the running jobs' end times are known and make the bound exact. Here
they are predictions, so a count bounds it.)

**Preempted sequences** stand before the claimed: they were admitted before them. They are readmitted in the order of
their first admission, under the same rule.
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
        self._claimed: dict[PriorityClass, list[int]] = {}
        """In the order in which they were picked. No empty lists."""
        self._short_of_room: set[PriorityClass] = set()
        """Classes with a reserved head: the first of their claimed rows that has its tokens does not fit."""
        self._preempted: dict[PriorityClass, list[RunningSequence]] = {}
        """No empty lists: a class that is a key has somebody waiting."""
        self._passed: Counter[int] = Counter()
        """By row: admissions of less urgent classes while it stood in front of its class."""
        self._backfills = 0

    # --- who waits ------------------------------------------------------------------------------------------------

    def claimed_by(self, priority: PriorityClass) -> tuple[int, ...]:
        """A class's claimed rows, in the order in which they were picked."""
        return tuple(self._claimed.get(priority, ()))

    def claimed(self) -> tuple[int, ...]:
        """All claimed rows, most urgent class first."""
        return tuple(row for priority in sorted(self._claimed) for row in self._claimed[priority])

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

    def waiting(self, with_claimed: bool) -> list[PriorityClass]:
        """Classes with somebody in front, most urgent first; those with preempted sequences alone, if so asked."""
        return sorted({*self._preempted, *self._claimed} if with_claimed else self._preempted)

    @property
    def short_of_room(self) -> bool:
        """Whether some class has a reserved head, or a preempted sequence that waits for blocks."""
        return bool(self._short_of_room or self._preempted)

    # --- what it bars ---------------------------------------------------------------------------------------------

    def may_go(self, priority: PriorityClass, with_claimed: bool = True) -> bool:
        """Whether the front of a class may be admitted: nobody more urgent has been passed often enough."""
        return not any(front < priority and self._bars(front) for front in self.waiting(with_claimed))

    def room(self, free_slots: int) -> Room:
        """The classes that may give a *new* row: nobody of theirs waits for room, and `may_go`.

        A class claims no more than the `free_slots` could take.
        """
        room = Room()
        barred = False
        fronts = self.waiting(with_claimed=True)
        for priority in PriorityClass:
            waits = priority in self._preempted or priority in self._short_of_room
            if barred or waits or len(self._claimed.get(priority, ())) >= free_slots:
                room = room.without(priority)
            barred = barred or (priority in fronts and self._bars(priority))
        return room

    def _front(self, priority: PriorityClass) -> int:
        """The row in front of a class that has one."""
        preempted = self._preempted.get(priority)
        return preempted[0].row if preempted else self._claimed[priority][0]

    def _bars(self, priority: PriorityClass) -> bool:
        """Whether the class's front was passed as often as it may be."""
        return self._passed[self._front(priority)] >= self._backfill_limit

    # --- what happens ---------------------------------------------------------------------------------------------

    def claim(self, priority: PriorityClass, row: int) -> None:
        """The discipline picked the row, and it was not admitted at once."""
        self._claimed.setdefault(priority, []).append(row)

    def set_short_of_room(self, priority: PriorityClass, short: bool) -> None:
        """Whether a claimed row of the class has its tokens and does not fit: its reserved head."""
        if short:
            self._short_of_room.add(priority)
        else:
            self._short_of_room.discard(priority)

    def put_back(self, sequence: RunningSequence) -> None:
        """A sequence that was preempted."""
        insort(self._preempted.setdefault(sequence.service, []), sequence, key=_order)

    def drop_claimed(self, priority: PriorityClass, row: int) -> None:
        """The row was admitted, or ended while it waited."""
        waiting = self._claimed[priority]
        waiting.remove(row)
        if not waiting:
            del self._claimed[priority]
            self._short_of_room.discard(priority)
        del self._passed[row]

    def drop_preempted(self, sequence: RunningSequence) -> None:
        """The sequence was readmitted, or ended while it waited."""
        waiting = self._preempted[sequence.service]
        waiting.remove(sequence)
        if not waiting:
            del self._preempted[sequence.service]
        del self._passed[sequence.row]

    def admitted(self, priority: PriorityClass) -> None:
        """Somebody of this class was admitted: every more urgent front was passed once more."""
        passed = [self._front(front) for front in self.waiting(with_claimed=True) if front < priority]
        self._passed.update(passed)
        self._backfills += bool(passed)

    def check_integrity(self) -> None:
        waiting_rows = {sequence.row for waiting in self._preempted.values() for sequence in waiting}
        assert self._passed.keys() <= waiting_rows | set(self.claimed()), "a row was passed and doesn't wait"
        assert self._short_of_room <= self._claimed.keys(), f"{self._short_of_room} are short of room for nobody"
        assert all(self._claimed.values()), "an empty list of claimed rows"
        for priority, waiting in self._preempted.items():
            assert waiting, f"{priority!r}: an empty list of preempted sequences"
            orders = [sequence.order for sequence in waiting]
            assert orders == sorted(orders), f"{priority!r}: preempted sequences out of order"
            for sequence in waiting:
                assert sequence.service == priority, f"{sequence} waits in {priority!r}"
                assert sequence.computed_tokens == 0, f"{sequence} is preempted and has tokens computed"


def _order(sequence: RunningSequence) -> int:
    return sequence.order
