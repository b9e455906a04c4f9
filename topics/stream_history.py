"""A stream as it stands in the log: what the attempts before have told, so that the next one goes on from there.

Knows the rules by which deltas count. Does not know Kafka (`topics.log_reader`) or how text is made of tokens. Pure.

The records of one request stand in one partition in their order. An `attempt` marker opens an attempt: what earlier
attempts write behind it (an owner that was stopped and wakes up) is void, for every reader alike. A `reset` begins the
stream again from its first token. A delta that stands there twice, because its producer sent it again after an outage,
counts once.
"""

from topics.headers import ReplyEvent
from topics.reply_chunks import read_chunk
from topics.reply_reader import Reply

__all__ = ["StreamHistory"]


class StreamHistory:
    """Of one request. Feed it with `take`, in the order of the log."""

    def __init__(self) -> None:
        self._attempt = 0
        self._begin_again()

    def _begin_again(self) -> None:
        self.seq = 0
        """Of the next delta."""
        self.token_ids: list[int] = []
        self.finished = False
        """The finish reason was told."""
        self.usage_told = False
        self.models: set[str | None] = set()
        self.broken = False
        """Something is missing, or can't be read: nobody can go on from here."""
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def take(self, reply: Reply) -> None:
        if reply.event.terminal or reply.attempt < self._attempt:
            return
        self._attempt = reply.attempt
        if reply.event is ReplyEvent.RESET:
            self._begin_again()
        elif reply.event is ReplyEvent.DELTA and reply.seq is not None:
            self._take_delta(reply, reply.seq)

    def _take_delta(self, reply: Reply, seq: int) -> None:
        if seq < self.seq:
            return
        chunk = read_chunk(reply.value) if seq == self.seq else None
        if chunk is None:
            self.broken = True
            return
        self.seq += 1
        self.token_ids.extend(reply.token_ids)
        self._pieces.append(chunk.text)
        self.models.add(chunk.model)
        self.finished = self.finished or chunk.finish_reason is not None
        self.usage_told = self.usage_told or chunk.usage
