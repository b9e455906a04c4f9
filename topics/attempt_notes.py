"""What `inference.progress` says of a request that was begun: how often, how far it came, how often it ended a worker.

Knows the notes' keys and values, and what the next owner must conclude from the last of them. Does not know Kafka
(`topics.progress_journal`) or what is done about a request that ends workers (`workers.attempts.attempts`). Pure.

The topic is compacted, so each note says all that is known; a tombstone, in the transaction of the request's
terminal reply, takes it away.

**A crash counts** against a request if its last note says that it is being run, and nothing durable says that it came
further than ever before: a request that ends its worker at some token comes to this token again and no further, while
one that merely ran beside it gets on. A note that an owner leaves when it gives a partition back says that nobody runs
the request any more, so no crash is counted.

Notes are fenced by nothing: an owner that was stopped and wakes up after its partition was given away may write behind
the next owner. So of all notes the one of the highest attempt counts, of its own the last; a tombstone says which
attempt it ends. Limits: the log's cleaner knows nothing of that, and keeps the last. And a kill that has nothing to do
with any request counts like any other.
"""

from dataclasses import dataclass, replace

from topics.codec import dumps, loads_object
from topics.errors import RequestError

__all__ = ["AttemptKey", "AttemptNote", "PriorAttempts"]


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """Of which request, for which group."""

    group: str
    partition: int
    offset: int

    def encode(self) -> bytes:
        return f"{self.group}/{self.partition}/{self.offset}".encode()

    @classmethod
    def decode(cls, key: bytes) -> "AttemptKey":
        """Raises `ValueError` for a key that is none."""
        group, partition, offset = key.decode().rsplit("/", 2)
        return cls(group, int(partition), int(offset))


@dataclass(frozen=True, slots=True)
class AttemptNote:
    attempt: int
    """1 for the first."""
    begun_ms: int
    """When the first attempt began, on the clock of its worker, which also stamps its deltas."""
    crashes: int = 0
    """Counted before this attempt."""
    reached: int = 0
    """Tokens of the answer that earlier attempts are known to have come to, at most."""
    tokens: int = 0
    """That this attempt is known to have come to."""
    running: bool = True
    """False: its owner gave the partition back in order, or is not certain of it and does not run it yet."""

    def encode(self) -> bytes:
        return dumps(
            {
                "attempt": self.attempt,
                "begun_ms": self.begun_ms,
                "crashes": self.crashes,
                "reached": self.reached,
                "tokens": self.tokens,
                "running": self.running,
            }
        )

    @classmethod
    def decode(cls, value: bytes) -> "AttemptNote":
        """Fields of later releases are left alone. Raises `ValueError` for a value that is no note."""
        try:
            fields = loads_object(value)
            note = cls(**{name: fields[name] for name in cls.__slots__})
        except (RequestError, KeyError) as error:
            raise ValueError(f"a note that can't be read: {error!r}") from error
        numbers = (note.attempt, note.begun_ms, note.crashes, note.reached, note.tokens)
        if not all(type(number) is int and number >= 0 for number in numbers) or type(note.running) is not bool:
            raise ValueError("a note's fields are numbers, and whether it runs")
        return note

    @property
    def got_on(self) -> bool:
        """Durably further than ever before."""
        return self.tokens > self.reached

    def next(self) -> "AttemptNote":
        """The attempt after this one."""
        return replace(self, attempt=self.attempt + 1, reached=max(self.reached, self.tokens), tokens=0, running=True)


@dataclass(frozen=True, slots=True)
class PriorAttempts:
    """What the next owner finds of a request that has no terminal reply."""

    note: AttemptNote
    """The last that was written."""
    ended: bool
    """A tombstone follows it, so the attempt came to its end; the transaction of that was aborted."""

    @property
    def crashes(self) -> int:
        """Counted, the last attempt's included; those before it came further than ever are forgotten."""
        if self.note.got_on:
            return 0
        return self.note.crashes + (self.note.running and not self.ended)

    def next(self) -> AttemptNote:
        """Of the attempt that follows."""
        return replace(self.note.next(), crashes=self.crashes)
