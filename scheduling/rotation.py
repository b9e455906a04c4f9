"""Deficit round robin by arithmetic: who has the next turn among those who want one.

Knows turns, quanta and costs. Does not know what a turn is for: flows of a tenant, tenants of a class and classes of
the tree all take turns here.

Algorithm: deficit round robin with overdraw, as in the kernel's `sch_sfq` and `sch_htb`. A turn has a deficit of up
to one quantum; it is served while that is above 0, may overdraw it by one item, and then waits for as many rounds as
it takes to have paid. The kernel adds a quantum and looks again, round by round; here the round in which a turn is
solvent again is computed at once, and turns lie in a heap by (round, place). A list is never walked over debtors.

Source: Shreedhar & Varghese, "Efficient Fair Queueing using Deficit Round-Robin", SIGCOMM 1995; the rounds as a
virtual time are those of start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996).

Why: cost is predicted and corrected later by any amount; a correction here moves a turn by whole rounds, exactly.
Two turns that both want service all the time, from equal debt, never differ by more than quantum + largest item, in
units of service ÷ quantum.

Drawbacks: O(log turns) instead of O(1). Limits: integers only; a quantum of at least 1.

Debt: a turn that leaves keeps its round. If it returns before service has reached that round it waits for it; once
the round has passed, it starts afresh in the next one. So leaving and returning gains nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import Generic, TypeVar

__all__ = ["Rotation", "Turn", "interleave"]

_COMPACT_FROM = 64


Owner = TypeVar("Owner")


class Turn(Generic[Owner]):
    """One participant's standing in one rotation, which owns its fields.

    One class for all kinds of participants: attribute look-ups in the inner loop meet one layout only, and that makes
    them several times faster.
    """

    __slots__ = ("active", "deficit", "listed", "owner", "place", "quantum", "round")

    def __init__(self, owner: Owner, quantum: int) -> None:
        assert quantum >= 1, f"{quantum=}"
        self.owner = owner
        self.quantum = quantum
        self.deficit = quantum
        """Cost left in this turn: from 1 to `quantum`, or more after a refund."""
        self.round = 0
        """In which it is served next."""
        self.place = 0
        """Its place among those of the same round."""
        self.active = False
        """Wants service."""
        self.listed = False
        """An entry with its present place is in the heap (it may be, though it isn't active)."""


class Rotation(Generic[Owner]):
    """Turns of one kind. `active` is how many want service."""

    __slots__ = ("_heap", "_places", "active", "place", "round")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Turn[Owner]]] = []
        """(round, place, turn); an entry whose place is no longer its turn's is stale."""
        self._places = 0
        self.round = 0
        self.place = 0
        """Round and place of the turn served last: the virtual time."""
        self.active = 0

    def passed(self, turn: Turn[Owner]) -> bool:
        """Service has reached the turn's round and place, so it owes nothing."""
        return turn.round < self.round or (turn.round == self.round and turn.place <= self.place)

    def debt(self, turn: Turn[Owner]) -> int:
        """What the turn owes against one that starts afresh, in cost units; 0 if nothing."""
        if self.passed(turn):
            return 0
        return max(0, (turn.round - self.round) * turn.quantum - turn.deficit)

    def join(self, turn: Turn[Owner]) -> None:
        """The turn wants service from now on."""
        turn.active = True
        self.active += 1
        reached = self.round
        later = turn.round
        if later < reached or (later == reached and turn.place <= self.place):
            turn.round = later = reached + 1
            turn.deficit = turn.quantum
            turn.place = self._places = self._places + 1
        elif turn.listed:
            return
        turn.listed = True
        heappush(self._heap, (later, turn.place, turn))

    def leave(self, turn: Turn[Owner]) -> None:
        """The turn wants no service for now. Its entry stays until it comes to the front."""
        turn.active = False
        self.active -= 1
        if len(self._heap) > _COMPACT_FROM and len(self._heap) > 2 * self.active:
            self._compact()

    def front(self) -> Turn[Owner] | None:
        """Whose turn it is. Changes nothing that a later decision depends on."""
        heap = self._heap
        if heap:
            _, place, turn = heap[0]
            if turn.active and turn.place == place:
                return turn
        return self._uncover() if self.active else None

    def best_of_round(self, look: int, score: Callable[[Owner], float]) -> Turn[Owner] | None:
        """Of the first `look` turns in the front's round, the one of the highest score; the earlier among equals.

        All turns of a round are due in it, in whatever order. Changes nothing: `bring_forward` does.
        """
        best: Turn[Owner] | None = None
        highest = 0.0
        for turn in islice(self.in_order(), look):
            if best is not None and turn.round != best.round:
                break
            value = score(turn.owner)
            if best is None or value > highest:
                best, highest = turn, value
        return best

    def bring_forward(self, turn: Turn[Owner]) -> None:
        """An active turn of the front's round changes places with the front, and is the front."""
        front = self.front()
        assert front is not None, "nobody wants service"
        if front is turn:
            return
        assert turn.active, "it wants no service"
        assert turn.round == front.round, f"rounds {turn.round} and {front.round}"
        heap = self._heap
        near = next(number for number, entry in enumerate(heap) if entry[2] is turn and entry[1] == turn.place)
        front.place, turn.place = turn.place, front.place
        heap[0] = (turn.round, turn.place, turn)
        heap[near] = (front.round, front.place, front)

    def serve(self, turn: Turn[Owner], cost: int) -> None:
        """The front, as just given by `front`, is served."""
        self.round, self.place = turn.round, turn.place
        deficit = turn.deficit - cost
        if deficit > 0:
            turn.deficit = deficit
            return
        quantum = turn.quantum
        rounds = -((deficit - 1) // quantum)
        turn.deficit = deficit + rounds * quantum
        turn.round = later = turn.round + rounds
        turn.place = self._places = place = self._places + 1
        heapreplace(self._heap, (later, place, turn))

    def serve_last(self, turn: Turn[Owner], cost: int) -> None:
        """As `serve`, and then it leaves: it wants nothing more."""
        self.round, self.place = turn.round, turn.place
        heappop(self._heap)
        turn.active = turn.listed = False
        self.active -= 1
        deficit = turn.deficit - cost
        if deficit > 0:
            turn.deficit = deficit
            return
        quantum = turn.quantum
        rounds = -((deficit - 1) // quantum)
        turn.deficit = deficit + rounds * quantum
        turn.round += rounds
        self._places = turn.place = self._places + 1

    def serve_past(self, turn: Turn[Owner], cost: int) -> None:
        """An active turn is served that need not be the front: those before it can't be served now.

        They get its round, so that they hoard no credit meanwhile.
        """
        if self.front() is not turn:
            for round_number, place, other in sorted(self._heap, key=lambda entry: entry[:2]):
                if (round_number, place) >= (turn.round, turn.place):
                    break
                if other.place == place and other.active:
                    other.round = turn.round
                    self._places = other.place = self._places + 1
                    heappush(self._heap, (other.round, other.place, other))
            first = self.front()
            assert first is turn, "nobody is before it now"
        self.serve(turn, cost)

    def lift(self, turn: Turn[Owner]) -> None:
        """Virtual time goes on to just before this turn, the front or one that left: newcomers come after it."""
        reached = (turn.round, turn.place - 1)
        if reached > (self.round, self.place):
            self.round, self.place = reached

    def adjust(self, turn: Turn[Owner], cost: int) -> None:
        """What the turn was served costs so much more, or (negative) less. Moves it, active or not, by whole rounds."""
        quantum = turn.quantum
        if not turn.active and self.passed(turn):
            if cost <= 0:
                return
            # It owed nothing; from here on it does.
            turn.round = self.round + 1
            turn.deficit = quantum
            self._places = turn.place = self._places + 1
            turn.listed = False
        deficit = turn.deficit - cost
        if deficit <= 0:
            rounds = -((deficit - 1) // quantum)
        elif deficit > quantum:
            # Not before the round that is being served; what is left lengthens its turn.
            rounds = -min((deficit - 1) // quantum, turn.round - self.round)
        else:
            rounds = 0
        turn.deficit = deficit + rounds * quantum
        if not rounds:
            return
        turn.round += rounds
        self._places = turn.place = self._places + 1
        turn.listed = turn.active
        if turn.active:
            heappush(self._heap, (turn.round, turn.place, turn))

    def forgive(self, turn: Turn[Owner], keep: float) -> None:
        """Keep only such a part (0 … 1) of the rounds that an inactive turn still has to wait."""
        assert not turn.active, "who wants service pays"
        ahead = turn.round - self.round
        if ahead <= 1:
            return
        turn.round = self.round + max(1, int(ahead * keep))
        self._places = turn.place = self._places + 1
        turn.listed = False

    def in_order(self) -> Iterator[Turn[Owner]]:
        """Active turns by round and place, lazily: k turns cost O(k log k). Not to be used across a change."""
        heap = self._heap
        near = [(heap[0][0], heap[0][1], 0)] if heap else []
        while near:
            _, place, number = heappop(near)
            turn = heap[number][2]
            if turn.active and turn.place == place:
                yield turn
            for below in (2 * number + 1, 2 * number + 2):
                if below < len(heap):
                    heappush(near, (heap[below][0], heap[below][1], below))

    def check_integrity(self) -> None:
        """Assert that each active turn has exactly one valid entry that is not passed. Linear."""
        valid = [turn for _, place, turn in self._heap if turn.place == place]
        assert len(valid) == len({id(turn) for turn in valid}), "a turn is listed twice"
        for turn in valid:
            assert turn.listed, "an entry is valid and its turn thinks it isn't listed"
            assert turn.deficit >= 1, f"{turn.deficit=}"
            if turn.active:
                key = (turn.round, turn.place)
                assert key >= (self.round, self.place), f"an active turn at {key} was passed"
        assert sum(turn.active for turn in valid) == self.active, "active turns don't add up"

    def _uncover(self) -> Turn[Owner]:
        """Drop the entries before the first active turn's."""
        heap = self._heap
        while True:
            _, place, turn = heap[0]
            if turn.place == place:
                if turn.active:
                    return turn
                turn.listed = False
            heappop(heap)

    def _compact(self) -> None:
        kept = []
        for entry in self._heap:
            turn = entry[2]
            if turn.place == entry[1]:
                if turn.active:
                    kept.append(entry)
                else:
                    turn.listed = False
        heapify(kept)
        self._heap[:] = kept


def interleave(
    rotation: Rotation[Owner], rows_of: Callable[[Owner], Iterable[int]], cost_of: Callable[[int], int]
) -> Iterator[int]:
    """Rows in the order in which the rotation would serve them if nothing changed; lazy, and charges nothing."""
    waiting: list[tuple[int, int, int, Turn[Owner], Iterator[int]]] = []
    places = rotation._places
    coming = rotation.in_order()
    newcomer = next(coming, None)
    while waiting or newcomer is not None:
        if newcomer is not None and (not waiting or (newcomer.round, newcomer.place) < waiting[0][:2]):
            turn, rows = newcomer, iter(rows_of(newcomer.owner))
            round_number, deficit = turn.round, turn.deficit
            newcomer = next(coming, None)
        else:
            round_number, _, deficit, turn, rows = heappop(waiting)
        for row in rows:
            yield row
            deficit -= cost_of(row)
            if deficit <= 0:
                rounds = -((deficit - 1) // turn.quantum)
                places += 1
                heappush(
                    waiting,
                    (round_number + rounds, places, deficit + rounds * turn.quantum, turn, rows),
                )
                break
