"""Committing an assignment's progress to its group: base, and in the metadata what is complete beyond it.

Knows what is unsaved and what a group's answer to a commit means. Does not know when to commit or who completes what
(`topics.consumer`). For delivery at least once; exactly once, the commit stands in the transaction of the replies
(`topics.transactional_replies`).

Runs that find no room in the metadata are left out, farthest first: a crash then runs their records again.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import OffsetAndMetadata, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from topics.assignment import Assignment, PartitionEpoch
from topics.offset_map import encode_map_within

__all__ = ["CommitStatistics", "OffsetCommits"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitStatistics:
    made: int
    rejected: int
    """The group had moved on. Their records come again, to whoever owns the partition now."""
    failed: int
    """No answer in time, or an error; tried again with the next one."""


class OffsetCommits:
    """One commit at a time, so that an earlier base never follows a later one."""

    def __init__(self, assignment: Assignment, group: str, *, timeout_s: float) -> None:
        self._assignment = assignment
        self._group = group
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._made = 0
        self._rejected = 0
        self._failed = 0

    async def commit(self, consumer: Any, epochs: Sequence[PartitionEpoch] | None = None) -> None:
        """Of these epochs, or of all that are held. What Kafka says against it is counted, not raised.

        aiokafka would retry a commit that no broker answers for ever (aiokafka#848): hence the time-out.
        """
        async with self._lock:
            unsaved = self._assignment.unsaved(epochs)
            if not unsaved:
                return
            offsets = {
                TopicPartition(assigned.topic, assigned.partition): OffsetAndMetadata(
                    progress.base, encode_map_within(progress.base, progress.runs)
                )
                for assigned, progress, _ in unsaved
            }
            try:
                async with asyncio.timeout(self._timeout_s):
                    await consumer.commit(offsets)
            except (CommitFailedError, IllegalStateError) as error:
                self._rejected += 1
                logger.info("the group %s has moved on, a commit was rejected: %r", self._group, error)
            except (KafkaError, TimeoutError) as error:
                self._count_failure(error)
            except asyncio.CancelledError as error:
                # A task of aiokafka's own may have been cancelled, while its consumer closes: not we.
                if (current := asyncio.current_task()) is not None and current.cancelling():
                    raise
                self._count_failure(error)
            else:
                self._made += 1
                self._assignment.saved(unsaved)

    def _count_failure(self, error: BaseException) -> None:
        self._failed += 1
        logger.warning("a commit of the group %s failed and will be tried again: %r", self._group, error)

    def statistics(self) -> CommitStatistics:
        return CommitStatistics(self._made, self._rejected, self._failed)
