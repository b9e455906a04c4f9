"""Writing notes of attempts, and the last ones of requests whose partitions are given back.

Knows acknowledgements. Does not know when a note is due (`workers.attempts.attempts`) or what notes mean
(`topics.attempt_notes`). Owned by the event loop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from topics.attempt_notes import AttemptNote
from topics.progress_journal import ProgressJournal
from topics.record import RecordId
from topics.record_producer import ProducerStoppedError
from workers.attempts.begun import Begun
from workers.intake.request import Arrival

__all__ = ["NoteWriting"]


class NoteWriting:
    def __init__(self, journal: ProgressJournal, on_broken: Callable[[BaseException], None]) -> None:
        """`on_broken`: the journal takes nothing any more, which ends the worker."""
        self._journal = journal
        self._on_broken = on_broken
        self._given_back: set[asyncio.Future[RecordId]] = set()
        """Last notes of partitions that are another's now."""

    def write(self, arrival: Arrival, note: AttemptNote) -> "asyncio.Future[RecordId] | None":
        """Its acknowledgement; None: the journal takes nothing any more. There must be room."""
        try:
            (written,) = self._journal.write([(arrival.id, note)])
        except ProducerStoppedError as error:
            self._on_broken(error)
            return None
        return written

    def write_last(self, begun: Begun) -> None:
        """Also of one whose reply is on its way: it may not arrive. If it does, its next owner takes the note away.

        What it has come to and was not noted yet is: it ran there, and its worker lived.
        """
        if not self._journal.has_room:
            return  # the broker is away: the next owner will count a crash
        written = self.write(
            begun.arrival, replace(begun.note, tokens=max(begun.note.tokens, begun.tokens), running=False)
        )
        if written is not None:
            begun.written = written
            self._given_back.add(written)
            written.add_done_callback(self._given_back.discard)

    def write_again(self, begun: Begun) -> None:
        """It has got its partition back, and is run. Without room, a crash is not counted."""
        if self._journal.has_room and (written := self.write(begun.arrival, begun.note)) is not None:
            begun.written = written

    async def given_back(self) -> None:
        """Return when the last notes of what was given back are acknowledged."""
        if self._given_back:
            await asyncio.wait(self._given_back)
