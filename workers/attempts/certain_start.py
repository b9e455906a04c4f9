"""The last gate before the engine: a begun request goes in while its partition is this worker's for sure.

Knows begun requests whose notes are acknowledged, and what stands in a note of one that has to wait here. Does not know
the group (`topics.membership_lease`) or when a request is begun (`workers.attempts.attempts`, which shares the table of
begun requests).

A process that was stopped, or gets no processor, may have written its note too late: the request waits until the group
says whose the partition is. **While it waits its note says that nobody runs it**, so that a worker that loses its
membership again and again, and is killed besides, blames nobody for it. Before it goes in its note says otherwise
again, acknowledged, so what ends its worker in its first step is blamed all the same. So is what ends it while its
prompt is prepared: a note is taken back only of a prompt that has been. Of a request of several sequences, of which
some may be in the engine, it is never taken back; and of no attempt twice, for where an acknowledgement takes longer
than a lease lasts, it would never begin.

Owned by the event loop.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from scheduling.priority import PriorityClass
from topics.progress_journal import ProgressJournal
from topics.record import RecordId
from workers.attempts.begun import Begun
from workers.attempts.carried import Carried
from workers.attempts.note_writing import NoteWriting
from workers.attempts.start_gate import ArrivalKey, StartGate, arrival_key
from workers.intake.staging import StageJob

__all__ = ["CertainStart"]


class CertainStart:
    def __init__(
        self,
        gate: StartGate,
        notes: NoteWriting,
        journal: ProgressJournal,
        begun: Mapping[ArrivalKey, Begun],
        carried: Carried,
        *,
        certain: Callable[[PriorityClass], bool],
        on_noted: Callable[[StageJob], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        """`certain`: the class's partitions are still this worker's. `on_noted`: its attempt is on record. `on_broken`:
        the journal takes nothing any more."""
        self._gate = gate
        self._notes = notes
        self._journal = journal
        self._begun = begun
        self._carried = carried
        self._certain = certain
        self._noted = on_noted
        self._on_broken = on_broken
        self._waiting: list[tuple[StageJob, int]] = []
        """Begun with this attempt, and perhaps another worker's already. Bounded by what is begun."""

    def when_noted(self, job: StageJob, begun: Begun) -> None:
        """Let it in when its attempt's last note is acknowledged."""
        begun.written.add_done_callback(partial(self._on_noted, job, begun.note.attempt))

    def confirmed(self) -> None:
        """A group has just said that this worker is a member, and so that a class's partitions are its own."""
        self.look_again(self.take_waiting())

    def take_waiting(self) -> list[tuple[StageJob, int]]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def look_again(self, waiting: list[tuple[StageJob, int]]) -> None:
        for job, attempt in waiting:
            self._let_in(job, attempt)

    def _on_noted(self, job: StageJob, attempt: int, written: "asyncio.Future[RecordId]") -> None:
        if written.cancelled():
            return
        if (error := written.exception()) is not None:
            # The journal was stopped, which ends the worker; or its topic is not there, or takes nothing from us.
            self._on_broken(error)
        else:
            self._noted(job)
            self._let_in(job, attempt)

    def _let_in(self, job: StageJob, attempt: int) -> None:
        """The note stands in the log: if the partition was ours until then, whoever owns it next finds it there.

        Also called if the partition is gone: the engine lets what it has dropped pass by.
        """
        begun = self._begun.get(arrival_key(job.arrival))
        if begun is None:
            self._gate.begun(job, attempt)
        elif not self._certain(job.arrival.origin_class):
            self._waiting.append((job, attempt))
            self._take_back(job, begun)
        elif begun.note.running or self._carried.is_away(begun):
            self._gate.begun(job, attempt)
        elif not self._journal.has_room:
            self._waiting.append((job, attempt))  # until the group's next answer
        elif self._write(begun, running=True):
            self.when_noted(job, begun)

    def _take_back(self, job: StageJob, begun: Begun) -> None:
        """Nobody runs it: for now, or because its partition is another's, who finds a later attempt of his own."""
        if begun.has_waited or begun.ending or begun.arrival.sequences > 1 or self._carried.is_away(begun):
            return
        if self._journal.has_room and self._gate.is_prepared(job):
            begun.has_waited = self._write(begun, running=False)

    def _write(self, begun: Begun, *, running: bool) -> bool:
        note = replace(begun.note, running=running)
        written = self._notes.write(begun.arrival, note)
        if written is None:
            return False
        begun.note, begun.written = note, written
        return True
