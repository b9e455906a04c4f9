"""One class's requests out of Kafka: a consumer and a group of its own, handed out record by record.

Knows assignments and their epochs, what is handed out and complete, pausing, commits, and how to get over rebalances,
lost offsets and a consumer that failed. Does not know what the records say, or when to pause. Raw aiokafka objects
never leave this module and `topics.aiokafka_consumer`.

What is committed is each partition's base, the lowest offset that is not complete, and a map of what is complete
beyond it (`topics.offsets`, `topics.offset_map`). A partition begins where the last stable commit says, and records
that its map covers are not handed out. A record counts as complete when its owner says so, after the answer is
delivered.
Who commits: this consumer, regularly (**at least once**); or the transaction that delivers the answers (**exactly
once**, `topics.transactional_replies`), and then this consumer only waits for the open one before it gives partitions
back. Never both: a plain commit that follows a transaction's wins over it, though it was read before.

One task is always inside `getmany(timeout_ms=…)`: aiokafka leaves the group when nobody polls, and a cancelled poll
breaks its bookkeeping, so the poll is never cancelled while the consumer lives, and no lock is held around it.

A consumer that fails is replaced, after a pause (`topics.current_consumer`).

Every rebalance revokes all partitions and assigns anew (aiokafka knows only the eager protocol), so each assignment
gets a new **epoch**. `on_revoked` runs while the group waits for us: it must be short, and has a deadline.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import (
    ConsumerStoppedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)

from topics.aiokafka_assignor import keep_partitions
from topics.aiokafka_consumer import inbound_record, join_group, watch_membership
from topics.aiokafka_fencing import read_positions_stably
from topics.assignment import Assignment, PartitionEpoch
from topics.assignment_callbacks import AssignmentCallbacks, OnAssigned, OnRevoked
from topics.committed_progress import CommittedProgress
from topics.consumer_statistics import ConsumerStatistics
from topics.current_consumer import CurrentConsumer, set_within
from topics.hand_out import hand_outs
from topics.kafka_settings import KafkaSettings
from topics.lost_positions import LostPositions
from topics.membership_lease import MembershipLease
from topics.offset_commits import OffsetCommits
from topics.offsets import OffsetRefusal
from topics.owned_offsets import OnAdopted, OwnedOffsets
from topics.record import InboundRecord

__all__ = ["ClassConsumer", "ConsumerStatistics", "PartitionEpoch"]

logger = logging.getLogger(__name__)

_POLL_MS = 200


class ClassConsumer:
    """A member of a class's group. Owned by one event loop; every method belongs to its thread.

    `on_records(partition, records)` gets each record of the log in order, once an epoch; it must not block, and should
    be quick: `max_records` and `max_bytes` bound a call, and the loop has its turn between two. The other two tell
    their owner of assignments: see `topics.assignment_callbacks`.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        topic: str,
        group: str,
        on_records: Callable[[PartitionEpoch, Sequence[InboundRecord]], None],
        on_assigned: OnAssigned | None = None,
        on_revoked: OnRevoked | None = None,
        settle: Callable[[], Awaitable[None]] | None = None,
        adopt: OnAdopted | None = None,
        on_confirmed: Callable[[], None] = lambda: None,
        maps_topic: str | None = None,
        instance_id: str | None = None,
        session_timeout_ms: int = 10_000,
        commit_interval_s: float = 0.5,
        commit_timeout_s: float = 5.0,
        revoke_timeout_s: float = 3.0,
        connect_timeout_s: float = 10.0,
        fetch_max_bytes: int = 8 * 2**20,
        max_records: int = 64,
        max_bytes: int = 2**20,
    ) -> None:
        """`settle` returns when no transaction is open; whoever gives it commits. None: this consumer commits.

        `adopt`: is told what is committed of a partition before it is given one of its records.

        `on_confirmed`: the group says that this member is one (`lease`).

        `maps_topic`: where maps of completed offsets stand that outgrow their commit.

        `instance_id`: static membership (KIP-345). Whoever comes back under it within the session time-out gets the
        same partitions without a rebalance, and leaving in order doesn't give them back either. None: dynamic.

        `fetch_max_bytes` bounds what is fetched ahead, from each broker.

        `max_records`, `max_bytes`: of one call of `on_records`. A record that is larger comes alone.
        """
        self._settings = settings
        self._topic = topic
        self._group = group
        self._on_records = on_records
        self._owner = AssignmentCallbacks(topic, on_assigned, on_revoked, revoke_timeout_s=revoke_timeout_s)
        self._settle = settle
        self._settle_timeout_s = revoke_timeout_s
        self._commit_interval_s = commit_interval_s
        self._commit_timeout_s = commit_timeout_s
        self._max_records = max_records
        self._max_bytes = max_bytes
        arguments = {
            "group_id": group,
            "group_instance_id": instance_id,
            "session_timeout_ms": session_timeout_ms,
            "heartbeat_interval_ms": session_timeout_ms // 4,
            "max_poll_interval_ms": 300_000,
            # How long an answer without records may take is also how long a resumed partition waits for its fetch.
            "fetch_max_wait_ms": 100,
            "fetch_max_bytes": fetch_max_bytes,
            # A request in a transaction that is aborted was never sent.
            "isolation_level": "read_committed",
        }
        self._current = CurrentConsumer(
            settings, topic, self._prepare, timeout_s=connect_timeout_s, arguments=arguments
        )
        self._assignment = Assignment(topic)
        self._commits = OffsetCommits(self._assignment, group, timeout_s=commit_timeout_s)
        self._committed = CommittedProgress(settings, group, maps_topic, timeout_s=connect_timeout_s)
        self.offsets = OwnedOffsets(
            self._current, self._assignment, self._committed, adopt, timeout_s=connect_timeout_s
        )
        """For whoever commits in our place."""
        self.lease = MembershipLease(session_timeout_ms / 1000, on_confirmed)
        """Whether the partitions are certainly still ours."""
        self._positions = LostPositions(timeout_s=connect_timeout_s)
        self._paused = False
        self._stopping = asyncio.Event()
        self._has_assignment = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._committer: asyncio.Task[None] | None = None
        self._records = 0
        self._rebalances = 0
        self._last_poll_s = time.monotonic()
        self._failure: BaseException | None = None
        """The bug that ended one of the two tasks."""
        self._closed = asyncio.Event()

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and begin to join the group. Raises `KafkaUnavailableError`."""
        assert self._pump is None, "started twice"
        consumer = await self._current.open()
        self._pump = asyncio.create_task(self._run(consumer), name=f"consume-{self._topic}")
        self._committer = asyncio.create_task(self._commit_regularly(), name=f"commit-{self._topic}")
        for task in (self._pump, self._committer):
            task.add_done_callback(self._on_task_end)

    async def stop(self) -> None:
        """Hand out nothing more, commit what is complete, leave the group. Idempotent.

        `on_revoked` is not called. Then raises what ended one of the consumer's tasks before, if anything: a bug (also
        of `on_records`).
        """
        if self._pump is None or self._committer is None:
            return
        self._stopping.set()
        try:
            await asyncio.wait({self._pump}, timeout=2 * _POLL_MS / 1000)
            await asyncio.wait({self._committer}, timeout=self._commit_timeout_s)
            await self.commit()
        finally:
            if self._current.now is not None:
                await self._current.close(self._current.now)
            # Only a poll that waits for an assignment is still there; its consumer is gone, so it may be cancelled.
            for task in (self._pump, self._committer):
                task.cancel()
            await asyncio.wait({self._pump, self._committer})
            self._assignment.end(self._assignment.current(self._assignment.partitions))
        if self._failure is not None:
            raise self._failure

    async def wait_assigned(self) -> None:
        """Return when the group has given this member its partitions, none included."""
        await self._has_assignment.wait()

    async def wait_closed(self) -> None:
        """Return when `stop` has ended the consumer. Raises what ended one of its tasks before, which is a bug."""
        assert self._pump is not None, "not started"
        await self._closed.wait()
        if self._failure is not None:
            raise self._failure

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """The pump or the committer has ended: as it should, after `stop`, or by a bug, which ends us."""
        failure: BaseException | None = None
        if not task.cancelled():
            failure = task.exception()
        if failure is None and not self._stopping.is_set():
            failure = RuntimeError(f"the task {task.get_name()} of the consumer was ended from outside")
        if failure is not None:
            self._failure = self._failure or failure
        if failure is not None or task is self._pump:
            self._closed.set()

    # --- work -----------------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        return self._paused

    def set_paused(self, paused: bool) -> None:
        """Hand out nothing, or go on. A paused partition drops what it had fetched: use hysteresis.

        A pause stays through rebalances. The batch that is being handed out is handed out whole.
        """
        if paused != self._paused:
            self._paused = paused
            self._current.pause(paused)

    def complete(self, partition: PartitionEpoch, offset: int) -> OffsetRefusal | None:
        """This record is answered and the answer acknowledged. None: it will be committed."""
        return self._assignment.complete(partition, offset)

    async def commit(self) -> None:
        """Commit what is complete. Never raises for what Kafka says: the statistics count it."""
        if self._current.now is not None and self._settle is None:
            await self._commits.commit(self._current.now)

    def positions(self) -> dict[int, int | None]:
        """Partition → the offset that is read next; None while it is being asked for."""
        return self._current.positions()

    def log_end(self, partition: int) -> int | None:
        """Behind the last record that the broker has told of; None: not told, or not this consumer's."""
        return self._current.end(partition)

    def replace(self, reason: str) -> None:
        """Put a new consumer in the place of this one, as if it had failed."""
        self._current.replace(reason)

    @property
    def unhealthy(self) -> str | None:
        """Why this consumer can't be relied on now; None: all is well (again)."""
        failed = None if self._failure is None else f"failed: {self._failure!r}"
        return "; ".join(filter(None, (failed, self._current.fault, self._owner.trouble))) or None

    def statistics(self) -> ConsumerStatistics:
        held, commits = self._assignment.statistics(), self._commits.statistics()
        return ConsumerStatistics(
            topic=self._topic,
            group=self._group,
            assigned=held.partitions,
            paused=self._paused,
            unread=sum(map(self._unread, self._assignment.partitions)),
            resident=held.resident,
            completed_beyond_base=held.completed_beyond_base,
            records=self._records,
            rebalances=self._rebalances,
            commits=commits.made,
            commits_rejected=commits.rejected,
            commits_failed=commits.failed,
            offset_resets=self._positions.resets,
            records_lost=self._positions.records_lost,
            rebuilds=self._current.replaced,
            callback_failures=self._owner.failures,
            metadata_unreadable=self._committed.unreadable,
            last_poll_s=self._last_poll_s,
            unhealthy=self.unhealthy,
        )

    def check_integrity(self) -> None:
        """Raise `AssertionError` if the parts contradict one another."""
        self._assignment.check_integrity()

    # --- the pump -------------------------------------------------------------------------------------------------

    async def _run(self, consumer: Any) -> None:
        while consumer is not None:
            began_s = time.monotonic()
            failure = await self._poll(consumer)
            if failure is None:
                return
            pause_s = self._current.give_up(failure, self._last_poll_s - began_s)
            await self._lose(self._assignment.partitions)
            await self._current.close(consumer)
            if await set_within(self._stopping, pause_s):
                return
            consumer = await self._current.open_again(self._stopping)

    async def _poll(self, consumer: Any) -> BaseException | None:
        """Hand out records until the stop (None) or an error that only a new consumer may cure."""
        while not self._stopping.is_set():
            if (asked := self._current.asked) is not None:
                return asked
            try:
                batches = await consumer.getmany(timeout_ms=_POLL_MS, max_records=self._max_records)
                await self._hand_out(batches)
            except NoOffsetForPartitionError as error:
                if (failure := await self._positions.begin_at_the_start(consumer, error.args[0])) is not None:
                    return failure
            except OffsetOutOfRangeError as error:
                for partition, offset in error.args[0].items():
                    if (failure := await self._back_into_range(consumer, partition, offset)) is not None:
                        return failure
            except KafkaError as error:
                # It is also told to have stopped when `stop` gives up waiting for this task.
                return None if self._stopping.is_set() and isinstance(error, ConsumerStoppedError) else error
            else:
                self._current.fault = None
            self._last_poll_s = time.monotonic()
            # A poll that finds records at hand returns without ever suspending: let the loop have its turn.
            await asyncio.sleep(0)
        return None

    async def _hand_out(self, batches: Mapping[TopicPartition, Sequence[Any]]) -> None:
        """In pieces, between which the loop has its turn.

        If the group takes the partitions back meanwhile, or the stop comes, the rest is dropped: it was not handed
        out, so it is not committed, and whoever owns the partition next gets it.
        """
        rebalances = self._rebalances
        for place, records in batches.items():
            partition = place.partition
            if partition not in self._assignment:
                # aiokafka fetches as soon as it has the assignment, which may be before it tells the listener.
                self._begin([partition])
            (assigned,) = self._assignment.current([partition])
            for piece in hand_outs(map(inbound_record, records), self._max_records, self._max_bytes):
                fresh = [record for record in piece if self._assignment.hand_out(partition, record.id.offset)]
                self._records += len(fresh)
                if fresh:
                    self._on_records(assigned, fresh)
                await asyncio.sleep(0)
                if self._rebalances != rebalances or self._stopping.is_set():
                    return

    async def _back_into_range(self, consumer: Any, partition: TopicPartition, offset: int) -> BaseException | None:
        """The committed offset is not in the log: a new epoch, from the oldest record on."""
        first = await self._positions.back_into_range(consumer, partition, offset)
        if isinstance(first, BaseException):
            return first
        await self._lose([partition.partition])
        try:
            consumer.seek(partition, first)
        except IllegalStateError:
            logger.debug("%s was revoked before its position was set", partition)
        else:
            self._begin([partition.partition])
        return None

    # --- assignments ----------------------------------------------------------------------------------------------

    def _prepare(self, consumer: Any) -> None:
        read_positions_stably(consumer, self.offsets.on_committed)
        watch_membership(consumer, self.lease.confirmed)
        keep_partitions(consumer, self._topic)
        join_group(consumer, self._topic, on_assigned=self.assigned, on_revoked=self.revoked)

    async def revoked(self, partitions: Collection[int]) -> None:
        """The group takes partitions back. Their owner ends its work, then progress is saved."""
        self._rebalances += 1
        epochs = self._assignment.current(partitions)
        try:
            await self._owner.revoked(epochs)
            if self._current.now is not None and self._settle is None:
                await self._commits.commit(self._current.now, epochs)
        finally:
            # Whatever happened: they are another member's now.
            self._assignment.end(epochs)
        if self._settle is not None:
            # None begins with these epochs any more. One that stays open is fenced, and the next owner waits for it.
            try:
                async with asyncio.timeout(self._settle_timeout_s):
                    await self._settle()
            except TimeoutError:
                logger.warning("a transaction of %s is open while its partitions are revoked", self._topic)

    def assigned(self, partitions: Collection[int]) -> None:
        """The group gives partitions. Some may have begun: see `_hand_out`."""
        self._begin([partition for partition in partitions if partition not in self._assignment])
        self._owner.assigned(self._assignment.current(partitions))
        self._current.pause(self._paused)
        self._has_assignment.set()

    async def _lose(self, partitions: Collection[int]) -> None:
        """Partitions are gone without a last commit."""
        epochs = self._assignment.current(partitions)
        self._assignment.end(epochs)
        await self._owner.revoked(epochs)

    def _begin(self, partitions: Collection[int]) -> None:
        self.offsets.begun()
        self._assignment.begin(partitions)

    def _unread(self, partition: int) -> int:
        end, begin = self._current.end(partition), self._assignment.next_offset(partition)
        return 0 if end is None or begin is None else max(0, end - begin)

    # --- commits --------------------------------------------------------------------------------------------------

    async def _commit_regularly(self) -> None:
        while not await set_within(self._stopping, self._commit_interval_s):
            await self.commit()
