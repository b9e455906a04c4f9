"""The gate before the engine: a request goes in when its prompt is staged and its attempt is on record.

Knows the two halves of each request, which come from two threads in any order. Does not know what either is made of.
Both are made at the same time, so the slower of the two is all that a first token waits for.
"""

import threading
from collections.abc import Callable

from topics.record import RecordId
from workers.intake.request import Arrival
from workers.intake.staging import Refused, Staged, StageJob

__all__ = ["StartGate", "arrival_key"]

ArrivalKey = tuple[RecordId, int]


def arrival_key(arrival: Arrival) -> ArrivalKey:
    """A record under one assignment of its partition."""
    return arrival.id, arrival.epoch


def _job_key(job: StageJob) -> tuple[RecordId, int, int]:
    """One of its sequences."""
    return (*arrival_key(job.arrival), job.sequence)


class StartGate:
    """`staged` is the staging thread's, the others are the event loop's. Bounded by what is handed out to be staged."""

    def __init__(self, first: Callable[[Staged | Refused], None], again: Callable[[Staged | Refused], None]) -> None:
        """`first` takes a request that is run for the first time, `again` one that was run before; on either thread.
        They must not block."""
        self._first = first
        self._again = again
        self._lock = threading.Lock()
        self._staged: dict[tuple[RecordId, int, int], Staged | Refused] = {}
        self._begun: dict[tuple[RecordId, int, int], int | None] = {}
        """The attempt; None: it has ended, and its prompt is dropped when it comes."""

    def staged(self, message: Staged | Refused) -> None:
        key = _job_key(message.job)
        with self._lock:
            if key not in self._begun:
                self._staged[key] = message
                return
            attempt = self._begun.pop(key)
        if attempt is not None:
            self._let_in(message, attempt)

    def is_prepared(self, job: StageJob) -> bool:
        """Its prompt is there, and waits for its attempt."""
        with self._lock:
            return _job_key(job) in self._staged

    def begun(self, job: StageJob, attempt: int) -> None:
        """The attempt that the sequence is a part of is acknowledged."""
        key = _job_key(job)
        with self._lock:
            message = self._staged.pop(key, None)
            if message is None:
                self._begun[key] = attempt
                return
        self._let_in(message, attempt)

    def dropped(self, job: StageJob) -> None:
        """The request has ended before it was begun: the sequence never goes in."""
        key = _job_key(job)
        with self._lock:
            if self._staged.pop(key, None) is None:
                self._begun[key] = None

    def _let_in(self, message: Staged | Refused, attempt: int) -> None:
        if attempt == 1:
            self._first(message)
        else:
            self._again(message)
