"""A partition of the reply topics that one client reads alone, and request ids whose replies come there.

Knows how Kafka's producers choose a partition by key. Does not know readers or requests.

Replies have the request's id as their key, so an id decides where they stand: a client that draws its ids until one
falls into its partition (as many draws as there are partitions, on average; some microseconds each) gets all of its
replies there, by any worker, and need not read other clients' answers. Several clients may share a partition.

Limit: it holds for the number of partitions that the client saw when it was opened. Of a topic that gets more of them
afterwards, replies may come elsewhere: open the client again.
"""

import uuid
from dataclasses import dataclass

from aiokafka.partitioner import murmur2

__all__ = ["OwnPartition"]


@dataclass(frozen=True, slots=True)
class OwnPartition:
    """Of both reply topics, which have the same number of partitions or else different ones."""

    deltas: int
    """Partitions of the topic of deltas."""
    replies: int
    """Partitions of the topic of terminal replies."""
    delta_partition: int
    reply_partition: int

    @classmethod
    def draw(cls, deltas: int, replies: int) -> "OwnPartition":
        """Some place: where a random request id would be answered."""
        digest = _digest(uuid.uuid4().hex)
        return cls(deltas, replies, digest % deltas, digest % replies)

    def holds(self, request_id: str) -> bool:
        """Whether the replies to this id come here."""
        digest = _digest(request_id)
        return (digest % self.deltas, digest % self.replies) == (self.delta_partition, self.reply_partition)

    def new_id(self) -> str:
        """A request id that nobody has, whose replies come here."""
        while True:
            request_id = uuid.uuid4().hex
            if self.holds(request_id):
                return request_id


def _digest(key: str) -> int:
    """Java's, which every Kafka producer of keyed records uses: murmur2 without its sign."""
    return int(murmur2(key.encode())) & 0x7FFFFFFF
