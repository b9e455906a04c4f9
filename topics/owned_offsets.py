"""The offsets of an assignment as a transaction sees them: what would be committed, in whose name, and what is.

Knows the assignment of one consumer, the membership under which it was given, and the group's commits. Does not know
transactions (`topics.transactional_replies`) or how the consumer works (`topics.consumer`, which owns this).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from topics.aiokafka_fencing import CommittedOffset, GroupMember, fetch_stable_offsets, group_member
from topics.assignment import Assignment, PartitionEpoch, Progress
from topics.committed_progress import CommittedProgress
from topics.current_consumer import CurrentConsumer
from topics.offsets import OffsetRefusal

__all__ = ["OnAdopted", "OwnedOffsets"]

logger = logging.getLogger(__name__)

OnAdopted = Callable[[str, int, Progress | None], Awaitable[None]]
"""Topic, partition and what is committed of it; awaited before its first record. `TimeoutError`: ask again, soon."""


class OwnedOffsets:
    def __init__(
        self,
        current: CurrentConsumer,
        assignment: Assignment,
        committed: CommittedProgress,
        adopt: OnAdopted | None,
        *,
        timeout_s: float,
    ) -> None:
        """`timeout_s`: of one question for what is committed."""
        self._current = current
        self._assignment = assignment
        self._committed = committed
        self._adopt = adopt
        self._timeout_s = timeout_s
        self._member: GroupMember | None = None

    def begun(self) -> None:
        """Epochs begin under the membership of now."""
        if self._current.now is not None:
            self._member = group_member(self._current.now)

    async def on_committed(self, place: TopicPartition, committed: CommittedOffset | None) -> None:
        """What the group's last stable commit says of a partition, before its first record comes.

        Raises `KafkaError`, `TimeoutError` while it can't be read.
        """
        progress = await self._committed.read(place, committed)
        if self._adopt is not None:
            await self._adopt(place.topic, place.partition, progress)
        self._assignment.adopt(place.partition, progress)

    # --- for a transaction ------------------------------------------------------------------------------------------

    @property
    def member(self) -> GroupMember:
        """Under whose name progress of the epochs that last is committed."""
        assert self._member is not None, "no epoch was begun yet"
        return self._member

    def owns(self, partition: PartitionEpoch) -> bool:
        """Whether this epoch lasts, as far as we know: the group may know better."""
        return self._assignment.owns(partition)

    def outlook(self, partition: PartitionEpoch, offsets: Collection[int]) -> Progress | None:
        """The epoch's progress when these offsets, too, are complete. None: it is over."""
        return self._assignment.outlook(partition, offsets)

    def complete(self, partition: PartitionEpoch, offset: int) -> OffsetRefusal | None:
        """This record's answer is delivered."""
        return self._assignment.complete(partition, offset)

    async def read_progress(self, partitions: Collection[PartitionEpoch]) -> dict[PartitionEpoch, Progress | None]:
        """What the group has committed, as of now. What is not stable yet, or can't be read, is left out: ask again."""
        if self._current.now is None:
            return {}
        places = {TopicPartition(each.topic, each.partition): each for each in partitions}
        found: dict[PartitionEpoch, Progress | None] = {}
        try:
            async with asyncio.timeout(self._timeout_s):
                for place, committed in (await fetch_stable_offsets(self._current.now, places)).items():
                    found[places[place]] = await self._committed.read(place, committed)
        except (KafkaError, TimeoutError) as error:
            logger.info("what is committed can't be read yet: %r", error)
        return found
