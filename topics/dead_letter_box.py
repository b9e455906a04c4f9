"""The dead letters that stand in their topic: read, and sent again.

Knows the topic's records as letters, and which were sent again. Does not know why a record is given up (`workers`) or
how a letter is written (`topics.dead_letters`).

A letter is sent again in one transaction with the note that it was, which is the progress of a group of its own: base,
and the map of what lies beyond (`topics.offset_map`), as a worker keeps it of requests. So however often it is asked
for, and whatever is killed meanwhile, each letter goes back once. A second process that replays ends the first one's
transaction: both have the same transactional id.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from topics.aiokafka_consumer import close_consumer, inbound_record, log_range, open_consumer
from topics.aiokafka_fencing import wait_for_stable_offsets
from topics.aiokafka_producer import close_producer, open_producer
from topics.assignment import Progress
from topics.catalogue import Catalogue
from topics.committed_progress import CommittedProgress
from topics.dead_letters import DeadLetter
from topics.kafka_settings import KafkaSettings
from topics.offset_map import encode_map, text_of
from topics.offsets import CompletedRun

__all__ = ["DeadLetterBox", "Letter", "LetterPlace", "NoSuchLetterError", "TooManyReplayedError"]

_POLL_MS = 200


class NoSuchLetterError(LookupError):
    """Nothing that can be read as a dead letter stands at this place."""


class TooManyReplayedError(Exception):
    """The note of what was sent again has no room for more gaps: replay from the oldest letter on."""


class LetterPlace(NamedTuple):
    """Where a letter stands in the dead-letter topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}"


@dataclass(frozen=True, slots=True)
class Letter:
    place: LetterPlace
    timestamp_ms: int
    letter: DeadLetter | None
    """None: the record is no dead letter; somebody else wrote it."""
    replayed: bool


class DeadLetterBox:
    """An async context manager."""

    def __init__(self, settings: KafkaSettings, catalogue: Catalogue, *, timeout_s: float = 15.0) -> None:
        """`timeout_s`: of each question to a broker."""
        self._settings = settings
        self._catalogue = catalogue
        self._topic = catalogue.dead_letters
        self._group = f"{catalogue.group_prefix}.{catalogue.dead_letters}"
        self._progress = CommittedProgress(settings, self._group, None, timeout_s=timeout_s)
        self._timeout_s = timeout_s
        self._consumer: Any = None

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError`."""
        self._consumer = await open_consumer(
            self._settings,
            "dead-letters",
            timeout_s=self._timeout_s,
            group_id=self._group,
            isolation_level="read_committed",
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_consumer(self._consumer, timeout_s=self._timeout_s)

    async def letters(self) -> list[Letter]:
        """All that stand there now, the oldest of each partition first. Raises `KafkaError`, `TimeoutError`."""
        async with asyncio.timeout(self._timeout_s):
            numbers = sorted(await self._consumer._client._wait_on_metadata(self._topic))
        places = [TopicPartition(self._topic, number) for number in numbers]
        self._consumer.assign(places)
        replayed = await self._replayed(places)
        found: list[Letter] = []
        for place in places:
            first, end = await log_range(self._consumer, place, timeout_s=self._timeout_s)
            self._consumer.seek(place, first)
            while await self._consumer.position(place) < end:
                batches = await self._consumer.getmany(place, timeout_ms=_POLL_MS)
                found.extend(_letter(record, replayed[place]) for record in batches.get(place, ()))
        return found

    async def replay(self, chosen: Sequence[LetterPlace]) -> list[LetterPlace]:
        """Send these letters' records to the topics they came from, each once: the places of those that were sent now.

        Raises `NoSuchLetterError` before anything is sent, `TooManyReplayedError`, `KafkaError`, `TimeoutError`,
        `KafkaUnavailableError`.
        """
        producer = await open_producer(
            self._settings, "replay", timeout_s=self._timeout_s, transactional_id=self._group, linger_ms=0
        )
        try:
            # Only now: whoever replayed under this id before has ended.
            letters = {letter.place: letter for letter in await self.letters()}
            for place in chosen:
                if place not in letters or letters[place].letter is None:
                    raise NoSuchLetterError(f"no dead letter stands at {place} of {self._topic}")
            due = [place for place in dict.fromkeys(chosen) if not letters[place].replayed]
            if due:
                async with asyncio.timeout(self._timeout_s):
                    await self._send(producer, [letters[place] for place in due], list(letters.values()))
            return due
        finally:
            await close_producer(producer, timeout_s=self._timeout_s)

    async def _send(self, producer: Any, due: Sequence[Letter], known: Sequence[Letter]) -> None:
        offsets = _note(self._topic, {letter.place for letter in due}, known)
        async with producer.transaction():
            for each in due:
                letter = each.letter
                assert letter is not None
                origin = letter.origin.topic
                await producer.send(origin, letter.value, letter.key, headers=list(letter.headers))
            await producer.send_offsets_to_transaction(offsets, self._group)

    async def _replayed(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, Progress | None]:
        # A replay that was killed may hold them, until its transaction is ended.
        stable = await wait_for_stable_offsets(self._consumer, places, timeout_s=self._timeout_s)
        return {place: await self._progress.read(place, committed) for place, committed in stable.items()}


def _letter(record: Any, replayed: Progress | None) -> Letter:
    inbound = inbound_record(record)
    place = LetterPlace(inbound.id.partition, inbound.id.offset)
    try:
        letter = DeadLetter.decode(inbound)
    except ValueError:
        letter = None
    return Letter(place, inbound.timestamp_ms, letter, replayed is not None and replayed.covers(place.offset))


def _note(topic: str, due: set[LetterPlace], known: Sequence[Letter]) -> dict[TopicPartition, OffsetAndMetadata]:
    """The progress of each partition with these sent: what is not to be sent stays below no base."""
    noted: dict[TopicPartition, OffsetAndMetadata] = {}
    for partition in sorted({place.partition for place in due}):
        here = [letter for letter in known if letter.place.partition == partition]
        waiting = [each.place.offset for each in here if not each.replayed and each.place not in due]
        end = here[-1].place.offset + 1
        base = waiting[0] if waiting else end
        runs = []
        for at, offset in enumerate(waiting, start=1):
            following = waiting[at] if at < len(waiting) else end
            if following > offset + 1:
                runs.append(CompletedRun(offset + 1, following - 1))
        text = text_of(encode_map(base, runs)) if runs else ""
        if text is None:
            raise TooManyReplayedError(
                f"partition {partition} of {topic} has {len(runs)} gaps between replayed letters"
            )
        noted[TopicPartition(topic, partition)] = OffsetAndMetadata(base, text)
    return noted
