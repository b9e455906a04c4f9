"""Requests that an owner before may have begun: each is prepared only after its attempt is on record.

Knows how far each partition's log went when the partition was given to this worker, and whose preparation is held back
for that. Does not know notes (`workers.attempts.attempts`) or how a prompt is prepared.

A prompt is prepared while its attempt's note is on the way. So one that ends its worker at once, in the tokenizer say,
may be faster than its note, and nothing would be known of it: worker after worker would die, and nobody be blamed. But
whoever dies of a record leaves it in the log. So of the records that were there when the partition was given the note
comes first, and one worker at most dies of a record that no note tells of. It also keeps a suspect from being prepared
before its turn. What it costs, a note's acknowledgement, only those requests pay, and the first that comes after them.

`put` is the engine thread's, all else is the event loop's.
"""

from collections.abc import Callable

from topics.record import RecordId
from workers.intake.request import Arrival
from workers.intake.staging import StageJob

__all__ = ["Inherited"]

_JobKey = tuple[RecordId, int, int]


class Inherited:
    """Bounded by what is handed out to be prepared."""

    def __init__(self, prepare: Callable[[StageJob], None], log_end: Callable[[Arrival], int | None]) -> None:
        """`prepare` is called from either thread. `log_end`: behind the last record of the arrival's partition that the
        broker has told of."""
        self._prepare = prepare
        self._log_end = log_end
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}
        """Of each partition: the epoch of its last assignment, and where its log ended then."""
        self._held: set[_JobKey] = set()

    def first(self, arrival: Arrival) -> None:
        """The first record of its partition since that was given to this worker: what came with it was there."""
        record = arrival.id
        end = max(self._log_end(arrival) or 0, record.offset + 1)
        self._ends[record.topic, record.partition] = arrival.epoch, end

    def put(self, job: StageJob) -> None:
        """It is to be prepared: now, or when its attempt is noted."""
        arrival = job.arrival
        epoch, end = self._ends[arrival.id.topic, arrival.id.partition]
        # Under an earlier assignment nobody wants it any more.
        if arrival.epoch != epoch or arrival.id.offset < end:
            self._held.add(_key(job))
        else:
            self._prepare(job)

    def noted(self, job: StageJob) -> None:
        """Its attempt is on record."""
        if (key := _key(job)) in self._held:
            self._held.remove(key)
            self._prepare(job)

    def drop(self, job: StageJob) -> bool:
        """Its request has ended, or is another's. Whether it was held back: it will not be prepared."""
        if (key := _key(job)) not in self._held:
            return False
        self._held.remove(key)
        return True


def _key(job: StageJob) -> _JobKey:
    return job.arrival.id, job.arrival.epoch, job.sequence
