"""Which records can't be delivered at all: their topic is not there, or no broker will ever take them.

Knows topics by one broker's word, and errors that no retry cures. Does not know how records are sent
(`topics.record_producer`, `topics.transactional_replies`).

Reply topics are named by clients, so unknown names must not hold up the stream: aiokafka would ask for one again and
again until a time-out. Instead all topics are listed at once, which takes one question to one broker, and at most every
`age_s`: what is not on the list is refused at once. Only names of topics that exist are ever remembered.
"""

import asyncio
from typing import Any

from aiokafka.errors import (
    BrokerResponseError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
)

from topics.aiokafka_producer import list_topics
from topics.replies import OutboundRecord

__all__ = ["KnownTopics", "RecordRefusedError", "hopeless"]

_CURED_BY_A_NEW_PRODUCER = (
    OutOfOrderSequenceNumber,
    UnknownProducerId,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
)


class RecordRefusedError(Exception):
    """This record can't be delivered, however often it is sent. The message says why."""


class KnownTopics:
    """Of one producer; `forget` them when it is replaced."""

    def __init__(self, *, age_s: float, timeout_s: float) -> None:
        """`age_s`: for so long a topic that is made may still be refused. `timeout_s`: for a broker to list them."""
        self._age_s = age_s
        self._timeout_s = timeout_s
        self._partitions_of: dict[str, int] = {}
        self._listed_s: float | None = None
        """When they were listed, on the loop's clock."""

    def forget(self) -> None:
        self._partitions_of = {}
        self._listed_s = None

    async def refusal(self, producer: Any, record: OutboundRecord) -> RecordRefusedError | None:
        """Why the topic or the partition can't be written to. Raises `KafkaError` or `TimeoutError` if nobody knows."""
        if (refusal := self._refusal(record)) is None:
            return None
        now_s = asyncio.get_running_loop().time()
        if self._listed_s is not None and now_s < self._listed_s + self._age_s:
            return refusal
        self._partitions_of = await list_topics(producer, timeout_s=self._timeout_s)
        self._listed_s = now_s
        return self._refusal(record)

    def _refusal(self, record: OutboundRecord) -> RecordRefusedError | None:
        """By what was listed last."""
        partitions = self._partitions_of.get(record.topic)
        if partitions is None:
            return RecordRefusedError(
                f"the topic {record.topic!r} does not exist, or may not be seen by this client: "
                "run `headrace topics create`, or name another"
            )
        if record.partition is not None and not 0 <= record.partition < partitions:
            return RecordRefusedError(f"the topic {record.topic!r} has no partition {record.partition}")
        return None


def hopeless(error: BrokerResponseError) -> bool:
    """Whether the same record would meet the same answer again."""
    return not error.retriable and not isinstance(error, _CURED_BY_A_NEW_PRODUCER)
