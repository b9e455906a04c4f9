"""Requests that were running when a worker ended: run again, but one at a time, so that the guilty one is found.

Knows arrivals, how many crashes count against each, and whose turn it is. Does not know how crashes are counted
(`topics.attempt_notes`) or how a request is run. Pure and synchronous.

Of each class one suspect is in the engine, where it waits for its turn like any other request; and of all classes one
runs. Both places are free again when the request has ended, or when it is known to have come further than ever before.
Unsuspected requests go on beside it.

Order: most urgent class first, then who has the fewest crashes: an innocent request that was hit twice by others'
crashes would be hit a third time only if everybody else was hit twice as well. So a kill now and then, which has
nothing to do with any request, gives nobody up. Who has come first waits for those of fewer crashes that are known to
come: else the oldest suspect would always be the first after a restart, and be hit by every crash.
"""

from bisect import insort
from collections.abc import Callable

from scheduling.priority import PriorityClass
from workers.attempts.start_gate import ArrivalKey, arrival_key
from workers.intake.request import Arrival

__all__ = ["Suspects"]

_Waiting = tuple[int, int, Arrival]
"""Crashes, and which one it was to come."""


class Suspects:
    def __init__(self) -> None:
        self._waiting: dict[PriorityClass, dict[tuple[str, int], list[_Waiting]]] = {}
        """Of each class and partition, by crashes and order of arrival; none is empty. Bounded by the residency."""
        self._in_engine: dict[PriorityClass, ArrivalKey] = {}
        self._running: ArrivalKey | None = None
        self._giving_up: set[ArrivalKey] = set()
        self._held: dict[PriorityClass, Arrival] = {}
        """Handed out by the scheduler, and another one runs."""
        self._arrived = self._count = 0
        """Since the start; of those that wait."""

    def __len__(self) -> int:
        """In the engine, waiting for it, or being given up."""
        return self._count + len(self._in_engine) + len(self._giving_up)

    def add(self, arrival: Arrival, crashes: int) -> None:
        self._arrived += 1
        self._count += 1
        waiting = self._waiting.setdefault(arrival.service_class, {}).setdefault(arrival.id[:2], [])
        insort(waiting, (crashes, self._arrived, arrival), key=_order)

    def give_up(self, key: ArrivalKey) -> None:
        """One that is not run any more: until it has left nobody begins, whose end might come before its answer."""
        self._giving_up.add(key)

    def take_for_engine(self, may_go: Callable[[Arrival, int], bool]) -> list[Arrival]:
        """Whose turn it is to be queued. `may_go`: not if somebody of fewer crashes is still to come in its partition.
        Asked for at every record, so it looks at each partition's first, and not at all that wait."""
        taken: list[Arrival] = []
        for priority in [each for each in self._waiting if each not in self._in_engine]:
            by_partition = self._waiting[priority]
            first = [waiting[0] for waiting in by_partition.values() if may_go(waiting[0][2], waiting[0][0])]
            if not first:
                continue
            arrival = min(first, key=_order)[2]
            self._in_engine[priority] = arrival_key(arrival)
            taken.append(arrival)
            waiting = by_partition[arrival.id[:2]]
            del waiting[0]
            if not waiting:
                self._forget(priority, arrival.id[:2])
            self._count -= 1
        return taken

    def may_begin(self, arrival: Arrival) -> bool:
        """Whether this one, which the scheduler would run, may run now. No: `take_held` gives it when it may."""
        if self._running is None and not self._giving_up:
            self._running = arrival_key(arrival)
            return True
        self._held[arrival.service_class] = arrival
        return False

    def take_held(self) -> Arrival | None:
        """The next one that may begin."""
        if self._running is not None or self._giving_up or not self._held:
            return None
        arrival = self._held.pop(min(self._held))
        self._running = arrival_key(arrival)
        return arrival

    def withdraw(self, key: ArrivalKey) -> None:
        """It has ended before it might begin; it keeps its other places until it leaves."""
        self._held = {priority: each for priority, each in self._held.items() if arrival_key(each) != key}

    def leave(self, key: ArrivalKey) -> None:
        """It has ended, or is suspected no more, or its partition is another's; wherever it is."""
        if self._running == key:
            self._running = None
        self._giving_up.discard(key)
        self._in_engine = {priority: each for priority, each in self._in_engine.items() if each != key}
        self.withdraw(key)

    def forget(self, topic: str, partition: int) -> None:
        """Those that wait for the engine, of a partition that is another's now."""
        for priority, by_partition in list(self._waiting.items()):
            if (waiting := by_partition.get((topic, partition))) is not None:
                self._count -= len(waiting)
                self._forget(priority, (topic, partition))

    def _forget(self, priority: PriorityClass, place: tuple[str, int]) -> None:
        by_partition = self._waiting[priority]
        del by_partition[place]
        if not by_partition:
            del self._waiting[priority]


def _order(waiting: _Waiting) -> tuple[int, int]:
    return waiting[:2]
