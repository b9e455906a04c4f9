"""Dead letters: records that nobody can be answered for, kept with their bytes and with why they are here.

Knows the header names of KIP-1191 and how to write and read them. Does not know when a record is given up
(`workers`). Source: KIP-1191, dead letter queues for share groups: names `__dlq.errors.*`, values as text.

Key, value and headers stay as they were. Dead-letter headers of an earlier time (a letter that was replayed and
failed again) are replaced, so that each name stands once.
"""

from dataclasses import dataclass
from typing import Self

from topics.record import InboundRecord, RecordId
from topics.replies import OutboundRecord

__all__ = ["DeadLetter"]

_PREFIX = "__dlq.errors."
TOPIC = f"{_PREFIX}topic"
PARTITION = f"{_PREFIX}partition"
OFFSET = f"{_PREFIX}offset"
GROUP = f"{_PREFIX}group"
DELIVERY_COUNT = f"{_PREFIX}delivery.count"
MESSAGE = f"{_PREFIX}message"

_MESSAGE_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record, where it stood, and what was wrong with it."""

    origin: RecordId
    group: str
    """The consumer group that gave it up."""
    delivery_count: int
    """How often it was handed to a worker, this time included."""
    message: str
    """Why, in one sentence; without text of the request. Cut at 2,000 characters."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    """The original ones, without `__dlq.errors.*`."""

    @classmethod
    def of(cls, record: InboundRecord, *, group: str, delivery_count: int, message: str) -> Self:
        return cls(
            origin=record.id,
            group=group,
            delivery_count=delivery_count,
            message=message[:_MESSAGE_CHARACTERS],
            key=record.key,
            value=record.value,
            headers=_without_ours(record.headers),
        )

    def encode(self, topic: str) -> OutboundRecord:
        """The record for the dead-letter topic."""
        ours = {
            TOPIC: self.origin.topic,
            PARTITION: str(self.origin.partition),
            OFFSET: str(self.origin.offset),
            GROUP: self.group,
            DELIVERY_COUNT: str(self.delivery_count),
            MESSAGE: self.message,
        }
        headers = (*self.headers, *((name, text.encode()) for name, text in ours.items()))
        # A record needs a key or a value: a tombstone without a key gets an empty value.
        value = b"" if self.key is None and self.value is None else self.value
        return OutboundRecord(topic, None, self.key, value, headers)

    @classmethod
    def decode(cls, record: InboundRecord) -> Self:
        """Read a record of the dead-letter topic. Raises `ValueError` naming the header that is missing or bad."""
        last = dict(record.headers)
        texts: dict[str, str] = {}
        for name in (TOPIC, PARTITION, OFFSET, GROUP, DELIVERY_COUNT, MESSAGE):
            if name not in last:
                raise ValueError(f"record {record.id} is no dead letter: header {name} is missing")
            texts[name] = last[name].decode(errors="replace")
        numbers: dict[str, int] = {}
        for name in (PARTITION, OFFSET, DELIVERY_COUNT):
            if not texts[name].isdecimal():
                raise ValueError(f"record {record.id}: header {name} = {texts[name]!r} is not a number")
            numbers[name] = int(texts[name])
        return cls(
            origin=RecordId(texts[TOPIC], numbers[PARTITION], numbers[OFFSET]),
            group=texts[GROUP],
            delivery_count=numbers[DELIVERY_COUNT],
            message=texts[MESSAGE],
            key=record.key,
            value=record.value,
            headers=_without_ours(record.headers),
        )


def _without_ours(headers: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    return tuple(header for header in headers if not header[0].startswith(_PREFIX))
