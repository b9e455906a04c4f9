"""A request that was begun, and what goes with its terminal reply.

Knows its attempt's last note. Does not know when notes are written (`workers.attempts.attempts`).
"""

import asyncio
from dataclasses import dataclass, field

from topics.attempt_notes import AttemptNote
from topics.record import RecordId
from topics.replies import OutboundRecord
from workers.answers.reply_stream import StreamStart
from workers.intake.request import Arrival

__all__ = ["Begun", "LastWords"]


@dataclass(slots=True)
class Begun:
    arrival: Arrival
    note: AttemptNote
    """The last that was written."""
    noted_s: float
    written: asyncio.Future[RecordId]
    """Its acknowledgement."""
    suspect: bool
    start: StreamStart = StreamStart()  # noqa: RUF009 - frozen
    ending: bool = False
    tokens: int = 0
    """That this attempt has come to, noted or not."""
    has_waited: bool = False
    """Its note said once that nobody runs it yet."""
    first_epoch: int = field(init=False)
    """Of the assignments under which this attempt has been run."""

    def __post_init__(self) -> None:
        self.first_epoch = self.arrival.epoch

    @property
    def may_go_on(self) -> bool:
        """While its partition is away. Not a suspect, and none of which one sequence may have ended or not begun."""
        return not self.ending and not self.note.crashes and self.arrival.sequences == 1


@dataclass(frozen=True, slots=True)
class LastWords:
    """What goes with a request's terminal reply."""

    beside: tuple[OutboundRecord, ...] = ()
    written: asyncio.Future[RecordId] | None = None
    """The reply must wait for it. None: for nothing."""
