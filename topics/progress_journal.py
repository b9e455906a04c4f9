"""The journal of attempts, `inference.progress`: read when partitions are assigned, written before a request is begun.

Knows one worker's requests that are begun, and what the log says of those that others began. Does not know when a
request may be begun or what becomes of one that ends workers (`workers.attempts.attempts`), or what notes mean
(`topics.attempt_notes`).

A request's notes stand in the partition with the number of its own, so an owner reads as many as it was given. Reading
is bounded by what the topic holds: it is compacted often, in small segments (`topics.catalogue`). It is read with the
records of open transactions, for it must not wait for another class's: a tombstone in one that is aborted says that
the attempt came to its end, and no more.

Writing is one ordered producer without linger: what comes while a request to the broker is under way goes with the
next one. A note of a request that has ended would stay for ever, so a terminal reply waits for its request's last note
to be acknowledged. What is left all the same is taken away by the next owner.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable, Mapping

from topics.aiokafka_producer import KafkaUnavailableError
from topics.assignment import Progress
from topics.attempt_notes import AttemptKey, AttemptNote, PriorAttempts
from topics.headers import ATTEMPT
from topics.kafka_settings import KafkaSettings
from topics.log_reader import LogReader, Stretch
from topics.record import InboundRecord, RecordId
from topics.record_producer import RecordProducer
from topics.replies import OutboundRecord

__all__ = ["ProgressJournal"]

logger = logging.getLogger(__name__)


class ProgressJournal:
    """Of one worker, for all its classes. Owned by one event loop."""

    def __init__(self, settings: KafkaSettings, topic: str, groups: Mapping[str, str]) -> None:
        """`groups`: the consumer group of each request topic."""
        self._topic = topic
        self._groups = groups
        self._producer = RecordProducer(settings, "progress", max_in_flight_bytes=8 * 2**20)
        self._reader = LogReader(settings, "progress")
        self._partitions = 0
        self._left: dict[tuple[str, int], _Left] = {}
        """By topic and partition."""
        self._unreadable = 0

    async def start(self) -> None:
        """Raises `KafkaUnavailableError`."""
        await self._producer.start()
        self._partitions = await self._reader.partitions(self._topic)

    async def stop(self, grace_s: float = 10.0) -> None:
        await self._reader.close()
        await self._producer.stop(grace_s)

    # --- what others left -------------------------------------------------------------------------------------------

    async def adopt(self, topic: str, partition: int, progress: Progress | None) -> None:
        """Read what is noted of a partition before its first record is handed out. `progress`: what is committed.

        Raises `TimeoutError` while it can't be read.
        """
        group = self._groups[topic]
        found: dict[int, PriorAttempts] = {}

        def take(record: InboundRecord) -> None:
            try:
                key = AttemptKey.decode(record.key or b"")
                if (key.group, key.partition) != (group, partition):
                    return
                known = found.get(key.offset)
                if record.value is not None:
                    note = AttemptNote.decode(record.value)
                    # An owner that wakes up after its partition was given away may still write of its own attempt.
                    if known is None or note.attempt >= known.note.attempt:
                        found[key.offset] = PriorAttempts(note, ended=False)
                elif known is not None and _ended_attempt(record) >= known.note.attempt:
                    found[key.offset] = PriorAttempts(known.note, ended=True)
            except ValueError as error:
                self._unreadable += 1
                logger.warning("the note %s can't be read and is ignored: %s", record.id, error)

        try:
            await self._reader.read(self._topic, {self._partition(partition): Stretch()}, take)
        except KafkaUnavailableError as error:
            raise TimeoutError(str(error)) from error
        complete = {offset for offset in found if progress is not None and progress.covers(offset)}
        for offset in complete:
            prior = found.pop(offset)
            if not prior.ended and self._producer.has_room:
                self._producer.submit(self.tombstone(RecordId(topic, partition, offset), prior.note.attempt))
        self._left[topic, partition] = _Left(found)

    def prior(self, record: RecordId) -> PriorAttempts | None:
        """Of a record that is handed out; once. Each is asked for, in its partition's order."""
        left = self._left.get((record.topic, record.partition))
        return None if left is None else left.take(record.offset)

    def fewest_crashes_left(self, topic: str, partition: int) -> int | None:
        """Of the partition's suspects that are still to be handed out; None: there are none."""
        left = self._left.get((topic, partition))
        return None if left is None else left.fewest_crashes

    def forget(self, topic: str, partition: int) -> None:
        """The partition is another's now."""
        self._left.pop((topic, partition), None)

    # --- what is begun here ------------------------------------------------------------------------------------------

    def write(self, notes: Iterable[tuple[RecordId, AttemptNote]]) -> "list[asyncio.Future[RecordId]]":
        """Of each, the acknowledgement. Raises `ProducerFullError`, `ProducerStoppedError`."""
        return [self._producer.submit(self._record(record, note.encode())) for record, note in notes]

    @property
    def has_room(self) -> bool:
        return self._producer.has_room

    async def wait_for_room(self) -> None:
        await self._producer.wait_for_room()

    def tombstone(self, record: RecordId, attempt: int) -> OutboundRecord:
        """For the transaction of the request's terminal reply. `attempt`: the one that gives it, or the last known."""
        return self._record(record, None, ((ATTEMPT, str(attempt).encode()),))

    def _record(
        self, record: RecordId, value: bytes | None, headers: tuple[tuple[str, bytes], ...] = ()
    ) -> OutboundRecord:
        key = AttemptKey(self._groups[record.topic], record.partition, record.offset)
        return OutboundRecord(self._topic, self._partition(record.partition), key.encode(), value, headers)

    def _partition(self, partition: int) -> int:
        assert self._partitions, "not started"
        return partition % self._partitions


class _Left:
    """What the log says of a partition's records that were not handed out yet: thousands, perhaps, after many crashes.
    Every method takes constant time."""

    def __init__(self, found: Mapping[int, PriorAttempts]) -> None:
        self._by_offset = deque(sorted(found.items()))
        self._suspects = Counter(prior.crashes for prior in found.values() if prior.crashes)
        """How many, by crashes."""

    def take(self, offset: int) -> PriorAttempts | None:
        """Of this record. What stands before it and was not handed out is there no more."""
        while self._by_offset and self._by_offset[0][0] <= offset:
            place, prior = self._by_offset.popleft()
            if crashes := prior.crashes:
                self._suspects[crashes] -= 1
                if not self._suspects[crashes]:
                    del self._suspects[crashes]
            if place == offset:
                return prior
        return None

    @property
    def fewest_crashes(self) -> int | None:
        return min(self._suspects, default=None)


def _ended_attempt(tombstone: InboundRecord) -> int:
    """Which attempt came to its end. Raises `ValueError` if it does not say so."""
    return int(dict(tombstone.headers).get(ATTEMPT, b""))
