"""One class between the broker and the worker: its consumer, its terminal replies, and what it may hold meanwhile.

Knows in which order a class's records come, are answered and leave, and when its partitions pause. Does not know what
is in a record (`workers.intake.ingress`) or how it is served. One for each class, on the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from scheduling.priority import PriorityClass
from topics.catalogue import Catalogue
from topics.consumer import ClassConsumer, PartitionEpoch
from topics.kafka_settings import KafkaSettings
from topics.owned_offsets import OnAdopted
from topics.producer import ReplyProducer
from topics.record import InboundRecord
from topics.terminal_replies import AtLeastOnceReplies, Fate, TerminalReplies
from topics.transactional_replies import TransactionalReplies, TransactionStatistics
from workers.answers.terminal_writer import ReplyTopics, Settled, TerminalWriter
from workers.configuration.config import WorkerConfig
from workers.intake.residency import Residency

__all__ = ["ClassChannel"]

log = logging.getLogger(__name__)

_DRAIN = 0.125
"""Of a session time-out: for what is in the middle of its answer, while the whole group waits."""


class ClassChannel:
    """Records go to `on_record` for as long as the channel is open; answered or lost, each is told to `on_settled`."""

    def __init__(
        self,
        priority: PriorityClass,
        config: WorkerConfig,
        kafka: KafkaSettings,
        catalogue: Catalogue,
        topics: ReplyTopics,
        residency: Residency,
        *,
        instance: str,
        on_batch: Callable[[str, Sequence[InboundRecord]], None],
        on_record: Callable[[PriorityClass, int, InboundRecord], None],
        adopt: OnAdopted,
        on_confirmed: Callable[[], None],
        on_revoked: Callable[[PartitionEpoch], None],
        on_given: Callable[[str, Collection[int]], None],
        told: Callable[[Collection[PartitionEpoch]], Awaitable[None]],
        given_back: Callable[[], Awaitable[None]],
        on_settled: Callable[[Settled], None],
    ) -> None:
        """`instance`: this worker's name, unlike that of any other that lives. `on_batch`: records of a topic come, and
        each of them after that to `on_record`, which has it enter the residency. `adopt`: is told what is committed of
        a partition before its first record. `on_confirmed`: the group says that we are a member. `on_revoked`: a
        partition is taken away, and its requests with it; `told` returns when of these partitions nobody is in the
        middle of his answer; `given_back` when the next owner can know all that we leave it. `on_given`: of a topic's
        partitions these are ours now, and no others."""
        self._priority = priority
        self._residency = residency
        self._on_batch = on_batch
        self._on_record = on_record
        self._on_revoked = on_revoked
        self._told = told
        self._given_back = given_back
        self._on_settled = on_settled
        self._open = False
        self._drain_s = _DRAIN * config.kafka.session_timeout_ms / 1000
        exactly_once = config.delivery == "exactly-once"
        topic, group = catalogue.requests(priority.label), catalogue.group(priority.label)
        self.consumer = ClassConsumer(
            kafka,
            topic=topic,
            group=group,
            on_records=self._take,
            on_revoked=self._lose,
            on_assigned=lambda given: on_given(topic, [each.partition for each in given]),
            settle=self._settle_replies if exactly_once else None,
            adopt=adopt,
            on_confirmed=on_confirmed,
            maps_topic=catalogue.offsets,
            instance_id=instance if config.kafka.static_membership else None,
            session_timeout_ms=config.kafka.session_timeout_ms,
            commit_interval_s=config.kafka.commit_interval_ms / 1000,
        )
        self.replies: TerminalReplies = (
            TransactionalReplies(
                kafka,
                self.consumer.offsets,
                role=f"replies-{priority.label}",
                transactional_id=f"{group}.{instance}",
                maps_topic=catalogue.offsets,
                transaction_timeout_ms=config.kafka.transaction_timeout_ms,
            )
            if exactly_once
            else AtLeastOnceReplies(ReplyProducer(kafka, priority.label), self.consumer.complete)
        )
        self.writer = TerminalWriter(self.replies, topics, self._settled)

    def transactions(self) -> TransactionStatistics | None:
        """None: delivery is at least once."""
        return self.replies.transactions() if isinstance(self.replies, TransactionalReplies) else None

    def open(self) -> None:
        """Take records from now on."""
        self._open = True

    def close(self) -> None:
        """Take none any more: what comes is left for the next worker. Replies still leave."""
        self._open = False
        self.consumer.set_paused(True)

    # --- records come ---------------------------------------------------------------------------------------------

    def _take(self, partition: PartitionEpoch, records: Sequence[InboundRecord]) -> None:
        if not self._open:
            return  # not complete, so not committed: the next worker gets them
        self._on_batch(partition.topic, records)
        for record in records:
            self._on_record(self._priority, partition.epoch, record)
        if self._residency.paused(self._priority):
            self.consumer.set_paused(True)

    async def _lose(self, partitions: Sequence[PartitionEpoch]) -> None:
        for partition in partitions:
            self._residency.revoke(self._priority, partition.partition)
            self._on_revoked(partition)
        # What kept the class paused may just have left with them. Before the waiting, which the callback's deadline may
        # cut short: nobody would look again.
        self._resume_if_low()
        # Answers that are ready, or soon will be, still leave, within that deadline.
        try:
            async with asyncio.timeout(self._drain_s):
                await self._told(partitions)
        except TimeoutError:
            log.debug("some answers of %s are not complete: they go on if their partition comes back", partitions)
        await self.writer.wait_idle()
        await self._given_back()

    async def _settle_replies(self) -> None:
        await self.replies.settle()

    # --- replies go -----------------------------------------------------------------------------------------------

    def _settled(self, settled: Settled) -> None:
        """A terminal reply is on the broker and its record complete; or it is another worker's to answer."""
        terminal, partition = settled.terminal, settled.terminal.partition
        if settled.fate is not Fate.DELIVERED:
            log.info("%s was answered, but its partition is gone: its next owner answers", terminal.record)
        self._residency.leave(self._priority, partition.partition, partition.epoch, terminal.held_bytes)
        self._resume_if_low()
        self._on_settled(settled)

    def _resume_if_low(self) -> None:
        if self._open and not self._residency.paused(self._priority):
            self.consumer.set_paused(False)
