"""A record as it came from Kafka, and its identity.

Knows bytes and where they stood. Does not know what they mean (`topics.headers`, `topics.messages`).
"""

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["InboundRecord", "RecordId"]


class RecordId(NamedTuple):
    """The identity of a request: the record it came in. Two records are two requests, whatever they say."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}"


@dataclass(frozen=True, slots=True)
class InboundRecord:
    id: RecordId
    timestamp_ms: int
    """Milliseconds since the epoch, the record's own (create or append time, as the topic is configured)."""
    key: bytes | None
    value: bytes | None
    """None is a tombstone."""
    headers: tuple[tuple[str, bytes], ...]

    @property
    def size_bytes(self) -> int:
        """Key, value and headers."""
        size = len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:  # a generator takes three times as long, and every record is measured
            size += len(name) + len(value)
        return size
