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


class Suspects:
    def __init__(self) -> None:
        self._waiting: dict[PriorityClass, list[tuple[int, int, Arrival]]] = {}
        """By crashes and order of arrival. Bounded by the residency."""
        self._in_engine: dict[PriorityClass, ArrivalKey] = {}
        self._running: ArrivalKey | None = None
        self._giving_up: set[ArrivalKey] = set()
        self._held: dict[PriorityClass, Arrival] = {}
        """Handed out by the scheduler, and another one runs."""
        self._arrived = 0

    def __len__(self) -> int:
        """In the engine, waiting for it, or being given up."""
        return sum(map(len, self._waiting.values())) + len(self._in_engine) + len(self._giving_up)

    def add(self, arrival: Arrival, crashes: int) -> None:
        self._arrived += 1
        insort(self._waiting.setdefault(arrival.service_class, []), (crashes, self._arrived, arrival), key=_order)

    def give_up(self, key: ArrivalKey) -> None:
        """One that is not run any more: until it has left nobody begins, whose end might come before its answer."""
        self._giving_up.add(key)

    def take_for_engine(self, may_go: Callable[[Arrival, int], bool]) -> list[Arrival]:
        """Whose turn it is to be queued. `may_go`: not if somebody of fewer crashes is still to come."""
        taken: list[Arrival] = []
        for priority in [each for each in self._waiting if each not in self._in_engine]:
            waiting = self._waiting[priority]
            chosen = next((each for each in waiting if may_go(each[2], each[0])), None)
            if chosen is None:
                continue
            waiting.remove(chosen)
            if not waiting:
                del self._waiting[priority]
            self._in_engine[priority] = arrival_key(chosen[2])
            taken.append(chosen[2])
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
        for priority, waiting in list(self._waiting.items()):
            left = [each for each in waiting if each[2].id[:2] != (topic, partition)]
            if left:
                self._waiting[priority] = left
            else:
                del self._waiting[priority]


def _order(waiting: tuple[int, int, Arrival]) -> tuple[int, int]:
    return waiting[:2]
