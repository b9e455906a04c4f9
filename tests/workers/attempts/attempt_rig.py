"""Attempts over a journal in memory, which acknowledges at once or when it is told to."""

import asyncio
from collections.abc import Iterable
from typing import Any

from tests.workers.producer_double import ProducerDouble
from topics.attempt_notes import AttemptNote, PriorAttempts
from topics.record import RecordId
from topics.record_producer import ProducerStoppedError
from topics.replies import OutboundRecord
from workers.attempts.attempts import Attempts
from workers.intake.request import Arrival
from workers.intake.staging import Refused, Staged, StageJob

__all__ = ["AttemptRig", "Journal"]


class Journal(ProducerDouble):
    def __init__(self) -> None:
        super().__init__("progress")
        self.left: dict[RecordId, PriorAttempts] = {}
        self.written: list[tuple[RecordId, AttemptNote]] = []
        self.stopped = False

    def prior(self, record: RecordId) -> PriorAttempts | None:
        return self.left.pop(record, None)

    def fewest_crashes_left(self, topic: str, partition: int) -> int | None:
        left = [prior.crashes for each, prior in self.left.items() if each[:2] == (topic, partition)]
        return min(filter(None, left), default=None)

    def forget(self, topic: str, partition: int) -> None:
        self.left = {record: prior for record, prior in self.left.items() if record[:2] != (topic, partition)}

    def write(self, notes: Iterable[tuple[RecordId, AttemptNote]]) -> list[asyncio.Future[RecordId]]:
        if self.stopped:
            raise ProducerStoppedError
        those = list(notes)
        self.written += those
        return self.take(len(those))

    def tombstone(self, record: RecordId, attempt: int) -> OutboundRecord:
        return OutboundRecord("progress", 0, str(record).encode(), None, (("attempt", b"%d" % attempt),))


class AttemptRig:
    def __init__(self) -> None:
        self.journal = Journal()
        self.now_s = 0.0
        self.full = False
        self.certain = True
        self.log_end = 0
        self.queued: list[Arrival] = []
        self.resumed: list[Arrival] = []
        self.dropped: list[RecordId] = []
        self.staging: list[StageJob] = []
        self.let_in: list[Staged | Refused] = []
        self.going_on: list[Staged] = []
        self.given_up: list[Arrival] = []
        self.answered: list[Arrival] = []
        """Whose answer is kept."""
        self.broken: list[BaseException] = []
        journal: Any = self.journal
        self.attempts = Attempts(
            journal,
            accept=self.queued.append,
            resume=self.resumed.append,
            drop=self.dropped.extend,
            stage=self.staging.append,
            let_in=self.let_in.append,
            go_on=self.going_on.append,
            give_up=lambda arrival, _: self.given_up.append(arrival),
            answered=lambda arrival, _: arrival in self.answered,
            on_broken=self.broken.append,
            call_soon=lambda call: call(),
            full=lambda _: self.full,
            certain=lambda _: self.certain,
            log_end=lambda _: self.log_end,
            wall_ms=lambda: int(self.now_s * 1000),
            monotonic_s=lambda: self.now_s,
        )

    async def acknowledged(self) -> None:
        """Let the callbacks of acknowledgements run."""
        self.journal.acknowledge()
        await asyncio.sleep(0)
