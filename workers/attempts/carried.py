"""Requests that go on while their partition is taken away: each until its record comes back, or is known not to.

Knows begun requests by their records, and whose partition is away. Does not know the group, the journal, or what is
computed. Shares the table of begun requests with `workers.attempts.attempts`, which tells it of records and partitions.

Every rebalance takes all partitions away and gives most of them back (`topics.consumer`). What is computed by then goes
on meanwhile, as the attempt that it is. **Why nobody is told anything twice by that:**

- *Its terminal reply* is given under the new assignment or not at all: while the partition is away there is none to
  give it under (`workers.answers.kept_finals` has what ends then), and a commit carries the generation.
- *The record must come back.* Then the group's last commit, read stably in the new generation, does not cover it.
- *Nobody has begun it meanwhile*: the journal, read after the partition was given, has no attempt after ours. Whoever
  begins a request has its note acknowledged while the partition is certainly his, so before we read.
- *Deltas* are fenced by attempts all the time: behind the marker of a later attempt ours are void. They need no owner.

Where one of these does not hold the request is given up here, and whatever the engine still says of it is nobody's.
"""

from collections.abc import Callable, Collection, Iterable, MutableMapping, Sequence
from dataclasses import replace

from topics.attempt_notes import PriorAttempts
from topics.record import RecordId
from workers.attempts.begun import Begun
from workers.attempts.start_gate import ArrivalKey, arrival_key
from workers.intake.request import Arrival

__all__ = ["Carried"]


class Carried:
    """Bounded by what the engine has admitted and is about to. Owned by the event loop."""

    def __init__(self, begun: MutableMapping[ArrivalKey, Begun], drop: Callable[[frozenset[RecordId]], None]) -> None:
        """`begun`: all that have not ended, by their present arrivals. `drop`: nobody wants what is computed of these;
        also told of those that have ended."""
        self._begun = begun
        self._drop = drop
        self._by_record: dict[RecordId, Begun] = {}
        """All whose partition was taken away since they were begun."""
        self._away: dict[tuple[str, int], dict[int, Begun]] = {}
        """Of these, those whose records have not come back: by partition, by rising offset."""

    def leave(self, topic: str, partition: int, begun: Iterable[Begun]) -> None:
        """The partition is taken away from them. Some from whom it was taken before may not have come back yet."""
        away = self._away.get((topic, partition), {}) | {each.arrival.id.offset: each for each in begun}
        if away:
            self._away[topic, partition] = dict(sorted(away.items()))
            self._by_record |= {each.arrival.id: each for each in away.values()}

    def come(self, record: RecordId) -> Begun | None:
        """A record of a partition has come: who goes on of it. Whose records were passed over is given up, for records
        come in their order."""
        place = (record.topic, record.partition)
        away = self._away.get(place)
        if away is None:
            return None
        passed = [away.pop(offset) for offset in list(away) if offset < record.offset]
        came = away.pop(record.offset, None)
        if not away:
            del self._away[place]
        self.give_up(passed)
        return came

    def renew(self, begun: Begun, arrival: Arrival, prior: PriorAttempts | None) -> bool:
        """Whether what goes on is this arrival's from now on; else it is given up. `prior`: by the journal, as of the
        new assignment."""
        ours = prior is not None and prior.note.attempt == begun.note.attempt
        if begun.ending or not ours or not begun.arrival.same_record(arrival):
            self.give_up([begun])
            return False
        del self._begun[arrival_key(begun.arrival)]
        begun.arrival = replace(begun.arrival, epoch=arrival.epoch)
        self._begun[arrival_key(begun.arrival)] = begun
        return True

    def given(self, topic: str, partitions: Collection[int]) -> None:
        """The group has said that of the topic's partitions these are this worker's, and no others."""
        lost = [place for place in self._away if place[0] == topic and place[1] not in partitions]
        self.give_up([begun for place in lost for begun in self._away.pop(place).values()])

    def whose(self, arrival: Arrival) -> Arrival | None:
        """Whose it is what is said of an arrival, now that its partition was taken away. None: nobody's."""
        begun = self._by_record.get(arrival.id)
        if begun is None or not begun.first_epoch <= arrival.epoch <= begun.arrival.epoch:
            return None
        return begun.arrival

    def is_away(self, begun: Begun) -> bool:
        """Its record has not come back."""
        place = begun.arrival.id
        return self._away.get((place.topic, place.partition), {}).get(place.offset) is begun

    def ended(self, begun: Begun) -> None:
        """It is carried no more, if it was."""
        if self._by_record.get(begun.arrival.id) is begun:
            self.give_up([begun])

    def give_up(self, those: Sequence[Begun]) -> None:
        """Nobody wants what is computed of these."""
        for begun in those:
            record = begun.arrival.id
            self._begun.pop(arrival_key(begun.arrival), None)
            self._by_record.pop(record, None)
            place = (record.topic, record.partition)
            away = self._away.get(place, {})
            away.pop(record.offset, None)
            if not away:
                self._away.pop(place, None)
        if those:
            self._drop(frozenset(begun.arrival.id for begun in those))
