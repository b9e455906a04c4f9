"""Answers that were finished when their partition was taken away, kept in case it comes back to this worker.

Knows terminal replies by the record that they answer, and when one may still be given. Does not know transactions
(`topics.transactional_replies`), assignments or the journal, which others read for it.

Every rebalance takes all partitions away and gives most of them back (`topics.consumer`). What had been computed by
then and did not get into a transaction in time would be computed again, though nobody else may have begun it.

**Why no second terminal reply can come of it.** A kept reply is given as if it had just been computed again: under the
new assignment, in a transaction whose commit carries the new generation. So what fences a reply that is computed fences
this one: an owner that was stopped and wakes up gives it only if the group says that the partition is its own. What is
new is that the reply is an old one, and so three things must hold:

- *No transaction has held it, or that one is aborted.* Only what `Fate.UNDELIVERED` says this of is kept: not where
  the end of a transaction is unknown, nor where delivery is at least once.
- *Nobody has answered the record.* It comes to `claim` out of the log, so the last commit of the group, read stably in
  the new generation, does not cover it.
- *Nobody has begun it meanwhile*, and told the stream's reader so: the journal, read after the partition was given, has
  no attempt after ours. Whoever begins a request has its note acknowledged while the partition is certainly his, so
  what an owner in between has begun is noted before we read. Our own later attempts are noted there, too.

The reply waited for its last delta before it was first tried, so the stream is whole. If the same place in the log is
another record by now (a topic that was made anew), the record differs, and the reply is dropped.

Bounded in bytes; dropped after a session time-out, within which a partition that comes back mostly does.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from topics.attempt_notes import PriorAttempts
from topics.record import RecordId
from topics.terminal_replies import Fate
from workers.answers.terminal_writer import Settled, Terminal
from workers.intake.request import Arrival, FinishReason

__all__ = ["KeptFinals"]

_MOST_BYTES = 16 * 2**20


class KeptFinals:
    """Owned by the event loop."""

    def __init__(
        self,
        keep_s: float,
        on_dropped: Callable[[Settled], None],
        *,
        most_bytes: int = _MOST_BYTES,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_dropped`: this one will not be given any more."""
        self._keep_s = keep_s
        self._on_dropped = on_dropped
        self._most_bytes = most_bytes
        self._monotonic_s = monotonic_s
        self._kept: OrderedDict[RecordId, tuple[float, Settled]] = OrderedDict()
        """And until when; the soonest first."""
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, settled: Settled) -> bool:
        """One that did not get into a transaction in time. False: it is none that may be kept, or there is no room."""
        publication = settled.terminal.publication
        ending = None if publication is None else publication.ending
        if settled.fate is not Fate.UNDELIVERED or ending is None or not isinstance(ending.reason, FinishReason):
            return False
        self._take(settled.terminal.record, drop=True)
        if self._bytes + _size_bytes(settled) > self._most_bytes:
            return False
        self._bytes += _size_bytes(settled)
        self._kept[settled.terminal.record] = (self._monotonic_s() + self._keep_s, settled)
        self._look_later()
        return True

    def claim(self, arrival: Arrival, prior: PriorAttempts | None) -> Terminal | None:
        """The reply to a record that has come back, to be delivered under its new assignment. None: it is to be run.

        `prior`: by the journal, as of the new assignment.
        """
        settled = self._take(arrival.id, drop=False)
        if settled is None:
            return None
        terminal = settled.terminal
        ours = prior is not None and prior.note.attempt == terminal.reply.attempt
        assert terminal.publication is not None, "it was kept"
        if not ours or not terminal.publication.arrival.same_record(arrival):
            self._on_dropped(settled)
            return None
        # Its bytes left the outbox when it was settled for the first time.
        publication = replace(terminal.publication, arrival=arrival, bytes=0)
        return replace(terminal, epoch=arrival.epoch, after=None, publication=publication)

    def drop_all(self) -> None:
        """The worker ends."""
        if self._timer is not None:
            self._timer.cancel()
        for record in list(self._kept):
            self._take(record, drop=True)

    def _take(self, record: RecordId, *, drop: bool) -> Settled | None:
        _, settled = self._kept.pop(record, (0.0, None))
        if settled is not None:
            self._bytes -= _size_bytes(settled)
            if drop:
                self._on_dropped(settled)
        return settled

    def _look_later(self) -> None:
        if self._timer is None and self._kept:
            until_s, _ = next(iter(self._kept.values()))
            delay_s = max(0.0, until_s - self._monotonic_s())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._drop_due)

    def _drop_due(self) -> None:
        self._timer = None
        now_s = self._monotonic_s()
        while self._kept and next(iter(self._kept.values()))[0] <= now_s:
            self._take(next(iter(self._kept)), drop=True)
        self._look_later()


def _size_bytes(settled: Settled) -> int:
    terminal = settled.terminal
    return sum(record.size_bytes for record in terminal.records)
