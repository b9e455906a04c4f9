"""Where a partition begins that has no commit, or whose committed offset is not in the log.

Knows the range of a log. Does not know epochs or who is told of the loss (`topics.consumer`).
"""

import logging
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from topics.aiokafka_consumer import log_range, seek_to_the_start

__all__ = ["LostPositions"]

logger = logging.getLogger(__name__)


class LostPositions:
    """Of one class's consumers. What keeps the brokers from answering is returned: a new consumer may cure it."""

    def __init__(self, *, timeout_s: float) -> None:
        """`timeout_s`: for a broker to answer."""
        self._timeout_s = timeout_s
        self.resets = 0
        self.records_lost = 0

    async def begin_at_the_start(self, consumer: Any, partition: TopicPartition) -> BaseException | None:
        """The group never committed here: it begins with the oldest record, so that nothing is lost."""
        try:
            await seek_to_the_start(consumer, partition, timeout_s=self._timeout_s)
        except IllegalStateError:
            logger.debug("%s was revoked before its position was set", partition)
        except (KafkaError, TimeoutError) as error:
            return error
        return None

    async def back_into_range(self, consumer: Any, partition: TopicPartition, offset: int) -> int | BaseException:
        """The committed offset is not in the log: the oldest record's, to begin with in a new epoch.

        Either retention overtook us, and what lay between is lost; or the log is shorter than our offset, because the
        topic was made anew or an unclean leader cut it off: then what stands there may never have been run, so all of
        it is handed out. Offsets may be used again, hence the new epoch.
        """
        try:
            first, end = await log_range(consumer, partition, timeout_s=self._timeout_s)
        except (KafkaError, TimeoutError) as error:
            return error
        lost = max(0, first - offset)
        logger.error(
            "the offset %d of %s-%d is out of range (%d to %d): going on at %d, %d records lost",
            *(offset, partition.topic, partition.partition, first, end, first, lost),
        )
        self.resets += 1
        self.records_lost += lost
        return first
