"""Terminal replies exactly once: a batch of them and the commit of their requests' offsets are one transaction.

Knows when a transaction begins and ends, what is committed with it, and what to do when its end is not known. Does not
know what replies say, or Kafka's requests (`topics.aiokafka_fencing`). One for each class, beside its consumer.

A transaction is: the replies → acknowledged → the progress of their partitions with these offsets complete (base, and
the map beyond it, in the name of the member under which the records came) → commit. A map that outgrows the commit's
metadata goes before it, as a record of the same transaction, and the metadata says where it stands. (The other way, to
dispatch only what adds no run, would put a second order beside the scheduler's, and hold a tenant back for where its
records happen to stand.)

So a reader of `read_committed` sees a reply if and only if its request is complete for whoever owns the partition next.

**When the end is not known** (a time-out, a broker that is gone, an error of the producer): the commit may have
happened. The producer is given up and opened again under the same transactional id, which ends the open transaction
one way or the other; then what is committed is read again, stably; replies that it covers are delivered, the rest is
sent again; in smaller transactions, if this one took long (`topics.transaction_size`).

**When the group refuses the commit** (this member's generation is over) the transaction is aborted and the replies are
lost to us: the next owner answers.

Every wait has a deadline, for aiokafka's own have none (aiokafka#1101, #1039).

Source: KIP-98, KIP-447; design as in Kafka Streams' `exactly_once_v2`. Cost: some 30 ms a transaction, whatever its
size, so the caller batches. Limit: one transaction at a time for a class, so about 30 a second.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import BrokerResponseError, KafkaError

from topics.aiokafka_batches import send_together
from topics.aiokafka_fencing import CommitFencedError, CommittedOffset, commit_in_transaction
from topics.aiokafka_producer import KafkaUnavailableError, close_producer, open_producer, producer_is_broken
from topics.aiokafka_transaction_start import begin_transactions_soon
from topics.assignment import PartitionEpoch, Progress
from topics.kafka_settings import KafkaSettings
from topics.known_topics import KnownTopics, RecordRefusedError, hopeless
from topics.offset_map import MapPlace, encode_map, place_text, text_of
from topics.owned_offsets import OwnedOffsets
from topics.record_producer import ProducerStatistics, ProducerStoppedError
from topics.terminal_replies import Fate, Outcome, TerminalReply
from topics.transaction_size import TransactionSize

__all__ = ["TransactionStatistics", "TransactionalReplies"]

logger = logging.getLogger(__name__)

_PRODUCE_BYTES = 128 * 2**10
"""To one partition, together. aiokafka takes the next only when these are sent; and a topic that a client names takes
a batch of this size, if it is as it was made (1 MiB)."""
_BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Between attempts; the last one repeats."""


@dataclass(frozen=True, slots=True)
class TransactionStatistics:
    committed: int
    fenced: int
    """Aborted because the group had moved on."""
    overflowed_maps: int
    """Maps of completed offsets that did not fit into their commit: many records wait before many that are done."""


class _RefusedInTransactionError(Exception):
    """Some records of the transaction can't be delivered: it is aborted, and they are looked at one by one."""

    def __init__(self, places: Mapping[int, RecordRefusedError]) -> None:
        super().__init__(f"{len(places)} records were refused")
        self.refusals = places


class TransactionalReplies:
    """`TerminalReplies` of one class. Owned by one event loop."""

    def __init__(
        self,
        settings: KafkaSettings,
        offsets: OwnedOffsets,
        *,
        role: str,
        transactional_id: str,
        maps_topic: str,
        transaction_timeout_ms: int = 10_000,
        max_record_bytes: int = 8 * 2**20,
        connect_timeout_s: float = 10.0,
        metadata_timeout_s: float = 3.0,
    ) -> None:
        """`transactional_id`: this worker's and this class's alone, and the same after a restart, which so ends what
        the last process left open. `transaction_timeout_ms`: after that the broker ends it, if nobody comes back.
        """
        self._settings = settings
        self._offsets = offsets
        self._role = role
        self._maps_topic = maps_topic
        self._arguments = {
            "transactional_id": transactional_id,
            "transaction_timeout_ms": transaction_timeout_ms,
            "max_request_size": max_record_bytes,
            "linger_ms": 0,
            "max_batch_size": _PRODUCE_BYTES,
        }
        # The broker gives the transaction up after this: later there is nothing to wait for.
        self._deadline_s = transaction_timeout_ms / 1000
        self._connect_timeout_s = connect_timeout_s
        self._size = TransactionSize(self._deadline_s)
        self._known = KnownTopics(age_s=5.0, timeout_s=metadata_timeout_s)
        self._producer: Any = None
        self._turn = asyncio.Lock()
        """Who holds it may have a transaction open."""
        self._stopping = asyncio.Event()
        self._in_flight_records = self._in_flight_bytes = 0
        self._acknowledged = self._refused = self._rebuilds = 0
        self._last_error: str | None = None
        self._committed = self._fenced = self._overflowed_maps = 0

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, and end what this transactional id left open. Raises `KafkaUnavailableError`."""
        self._producer = await self._open()

    async def stop(self, grace_s: float = 10.0) -> None:
        """Let the open transaction end within `grace_s`, then close; what waits raises `ProducerStoppedError`."""
        self._stopping.set()
        try:
            async with asyncio.timeout(grace_s):
                await self.settle()
        except TimeoutError:
            logger.warning("a transaction of %s did not end within %g s: the broker ends it", self._role, grace_s)
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer, timeout_s=2.0)

    async def settle(self) -> None:
        """Return when no transaction is open."""
        async with self._turn:
            return

    def statistics(self) -> ProducerStatistics:
        return ProducerStatistics(
            connected=self._producer is not None,
            in_flight_records=self._in_flight_records,
            in_flight_bytes=self._in_flight_bytes,
            acknowledged=self._acknowledged,
            refused=self._refused,
            rebuilds=self._rebuilds,
            last_error=self._last_error,
        )

    def transactions(self) -> TransactionStatistics:
        return TransactionStatistics(self._committed, self._fenced, self._overflowed_maps)

    # --- delivery -------------------------------------------------------------------------------------------------

    async def deliver(self, replies: Sequence[TerminalReply]) -> list[Outcome]:
        """See `TerminalReplies`. Not to be called again before it has returned."""
        size_bytes = sum(record.size_bytes for reply in replies for record in reply.records)
        self._in_flight_records += len(replies)
        self._in_flight_bytes += size_bytes
        try:
            outcomes = await self._deliver(replies)
        finally:
            self._in_flight_records -= len(replies)
            self._in_flight_bytes -= size_bytes
        self._acknowledged += outcomes.count(Fate.DELIVERED)
        self._refused += sum(isinstance(outcome, RecordRefusedError) for outcome in outcomes)
        return outcomes

    async def _deliver(self, replies: Sequence[TerminalReply]) -> list[Outcome]:
        work = _Work(replies)
        pauses = chain(_BACKOFF_S, repeat(_BACKOFF_S[-1]))
        while work.left:
            if self._stopping.is_set():
                raise ProducerStoppedError(f"the producer {self._role} was stopped before the replies were delivered")
            # Given up between two attempts, so that `settle` waits for a transaction and not for the whole batch.
            async with self._turn:
                progressed = await self._attempt(work)
            if not progressed:
                await self._stopping_within(next(pauses))
        return work.outcomes()

    async def _attempt(self, work: "_Work") -> bool:
        """One step towards the end of the batch. False: wait before the next."""
        work.lose(self._offsets)
        if not work.left:
            return True
        try:
            if self._producer is None:
                self._producer = await self._open()
            if work.unsure:
                return await self._look_what_was_committed(work)
            if await self._refuse_unknown_topics(work):
                return True
            batch = work.batch(self._size.most)
            await self._timed(batch)
        except CommitFencedError as error:
            self._fenced += 1
            logger.info("%s: %s", self._role, error)
            if error.for_good:
                for place in batch:
                    work.settle(place, Fate.UNDELIVERED)
            return error.for_good
        except _RefusedInTransactionError as error:
            work.refuse(error.refusals)
            return True
        except (KafkaError, TimeoutError, KafkaUnavailableError) as error:
            await self._give_up_producer(error)
            # The commit may have happened, or happen yet.
            work.unsure = True
            return False
        for place, reply in batch.items():
            self._offsets.complete(reply.partition, reply.offset)
            work.settle(place, Fate.DELIVERED)
        return True

    async def _timed(self, batch: Mapping[int, TerminalReply]) -> None:
        """A transaction, whose size and time decide how large the next ones may be."""
        begun_s = time.monotonic()
        try:
            await self._transact(batch)
        except (KafkaError, TimeoutError):
            self._size.failed(len(batch), time.monotonic() - begun_s)
            raise
        self._size.ended(len(batch), time.monotonic() - begun_s)

    async def _transact(self, batch: Mapping[int, TerminalReply]) -> None:
        """All of the batch, and its offsets, or nothing.

        Raises `CommitFencedError` and `_RefusedInTransactionError` after the abort; anything else leaves the end open.
        """
        producer = self._producer
        if producer_is_broken(producer):
            raise KafkaError(f"the producer {self._role} has ended")
        async with asyncio.timeout(self._deadline_s):
            await producer.begin_transaction()
            try:
                await self._send_all(producer, batch)
                # Together: a later member must not vouch for the progress of an earlier assignment.
                progress, member = self._outlook(batch), self._offsets.member
                offsets = {place: await self._commit_of(producer, place, each) for place, each in progress.items()}
                await commit_in_transaction(producer, offsets, member)
            except (CommitFencedError, _RefusedInTransactionError):
                await producer.abort_transaction()
                raise
            await producer.commit_transaction()
        self._committed += 1

    async def _send_all(self, producer: Any, batch: Mapping[int, TerminalReply]) -> None:
        records = [(place, record) for place, reply in batch.items() for record in reply.records]
        refused: dict[int, RecordRefusedError] = {}
        outcomes = await send_together(producer, [record for _, record in records])
        for (place, record), outcome in zip(records, outcomes, strict=True):
            if isinstance(outcome, BrokerResponseError) and hopeless(outcome):
                refused[place] = RecordRefusedError(f"a record for {record.topic} was refused: {outcome!r}")
            elif outcome is not None:
                raise outcome
        if refused:
            raise _RefusedInTransactionError(refused)

    def _outlook(self, batch: Mapping[int, TerminalReply]) -> dict[TopicPartition, Progress]:
        """Of each partition, with the batch complete."""
        offsets: dict[PartitionEpoch, set[int]] = defaultdict(set)
        for reply in batch.values():
            offsets[reply.partition].add(reply.offset)
        progress: dict[TopicPartition, Progress] = {}
        for partition, completed in offsets.items():
            outlook = self._offsets.outlook(partition, completed)
            if outlook is None:
                raise CommitFencedError(f"{partition.topic}-{partition.partition} was revoked", for_good=False)
            progress[TopicPartition(partition.topic, partition.partition)] = outlook
        return progress

    async def _commit_of(self, producer: Any, place: TopicPartition, progress: Progress) -> CommittedOffset:
        """What stands in the commit; a map without room in it goes before."""
        if not progress.runs:
            return CommittedOffset(progress.base, "")
        body = encode_map(progress.base, progress.runs)
        text = text_of(body)
        if text is None:
            self._overflowed_maps += 1
            key = f"{self._offsets.member.group}/{place.topic}/{place.partition}".encode()
            sent = await producer.send_and_wait(self._maps_topic, body, key)
            text = place_text(MapPlace(sent.partition, sent.offset))
        return CommittedOffset(progress.base, text)

    # --- when something is not as it should be ----------------------------------------------------------------------

    async def _look_what_was_committed(self, work: "_Work") -> bool:
        """After a transaction whose end is not known, and a new producer, before which it has ended."""
        partitions = {reply.partition for reply in work.left.values()}
        found = await self._offsets.read_progress(partitions)
        if found.keys() != partitions:
            return False
        for place, reply in list(work.left.items()):
            progress = found[reply.partition]
            if progress is not None and progress.covers(reply.offset):
                self._offsets.complete(reply.partition, reply.offset)
                work.settle(place, Fate.DELIVERED)
        work.unsure = False
        return True

    async def _refuse_unknown_topics(self, work: "_Work") -> bool:
        refusals: dict[tuple[str, int | None], RecordRefusedError | None] = {}
        for place, reply in list(work.left.items()):
            where = reply.record.topic, reply.record.partition
            if where not in refusals:
                refusals[where] = await self._known.refusal(self._producer, reply.record)
            if (refusal := refusals[where]) is not None:
                work.settle(place, refusal)
        return any(refusals.values())

    async def _open(self) -> Any:
        self._known.forget()
        producer = await open_producer(self._settings, self._role, timeout_s=self._connect_timeout_s, **self._arguments)
        begin_transactions_soon(producer)
        return producer

    async def _give_up_producer(self, error: BaseException) -> None:
        self._last_error = repr(error)
        producer, self._producer = self._producer, None
        if producer is not None:
            self._rebuilds += 1
            logger.warning("the transactional producer %s is replaced after %r", self._role, error)
            await close_producer(producer, timeout_s=0.0)

    async def _stopping_within(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._stopping.wait()
        except TimeoutError:
            return


class _Work:
    """A batch on its way: what is left of it, and what came of the rest."""

    def __init__(self, replies: Sequence[TerminalReply]) -> None:
        self.left = dict(enumerate(replies))
        self.unsure = False
        """A transaction with some of them may have been committed."""
        self._settled: dict[int, Outcome] = {}
        self._alone: list[int] = []
        """Were in a transaction with a record that was refused: which one it was, only one by one can tell."""

    def batch(self, most: int | None) -> dict[int, TerminalReply]:
        """For the next transaction, which takes `most` at most."""
        self._alone = [place for place in self._alone if place in self.left]
        if self._alone:
            return {self._alone[0]: self.left[self._alone[0]]}
        return dict(islice(self.left.items(), most))

    def settle(self, place: int, outcome: Outcome) -> None:
        del self.left[place]
        self._settled[place] = outcome

    def lose(self, offsets: OwnedOffsets) -> None:
        """What belongs to epochs that are over."""
        for place, reply in list(self.left.items()):
            if not offsets.owns(reply.partition):
                self.settle(place, Fate.LOST if self.unsure else Fate.UNDELIVERED)

    def refuse(self, refusals: Mapping[int, RecordRefusedError]) -> None:
        """aiokafka fails all records of a partition together: one that stood alone is refused, the others try alone."""
        if len(refusals) == 1:
            ((place, refusal),) = refusals.items()
            self.settle(place, refusal)
        else:
            self._alone = list(refusals)

    def outcomes(self) -> list[Outcome]:
        return [self._settled[place] for place in sorted(self._settled)]
