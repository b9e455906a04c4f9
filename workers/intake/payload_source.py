"""A request's record for whoever needs it: at once where it is in memory, else when it was read again.

Knows who waits for which record, of one class; and why one may not come. Does not know what stays in memory
(`workers.intake.payloads`) or how a log is read (`topics.record_fetcher`).

Records are read in rounds, each for all that have asked meanwhile; whoever asks during a round is in the next one. The
scheduler hands rows out to be staged about as far ahead as what runs, so a round is on its way before a step misses its
rows. And a round brings more than was asked for: what stands beside a wanted record in the log is restored too, where a
request of ours waits for it, up to a part of the budget. A backlog runs in about the order of its log, so most of what
runs next is in memory when it is asked for.

While the broker is away nothing is given, and who waits goes on waiting: what can't be read can't be answered either.
A record that the log has not any more (retention, compaction) is another matter: its request gets an error.

`stage` is the engine thread's; everything else is the event loop's.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from topics.aiokafka_producer import KafkaUnavailableError
from topics.assignment import PartitionEpoch
from topics.errors import RequestError
from topics.record import InboundRecord
from topics.record_fetcher import RecordFetcher
from workers.intake.payloads import Payloads, PayloadStatistics, record_size
from workers.intake.request import Arrival
from workers.intake.staging import Refused, StageJob
from workers.telemetry.distribution import Distribution, DistributionSnapshot
from workers.telemetry.metric_lookahead import REFETCH_TIME

__all__ = ["Missing", "PayloadSource", "PayloadSourceStatistics"]

log = logging.getLogger(__name__)

_ASKED_A_ROUND = 64
_RESTORED_PART = 4
"""A round restores at most this part (1 ÷ it) of the budget: else it would push out what it has just read."""
_SWEPT_A_TURN = 1_000
"""Payloads of partitions that are gone: about a millisecond."""
_AGAIN_S = 1.0


class Missing(Enum):
    """Why a record does not come."""

    GONE = "gone"
    """Its partition has it no more."""
    UNWANTED = "unwanted"
    """Its request has been answered, or is another worker's now."""


Then = Callable[[InboundRecord | Missing], None]


@dataclass(frozen=True, slots=True)
class PayloadSourceStatistics:
    payloads: PayloadStatistics
    waiting: int
    """For a record that is being read."""
    fetched: int
    """Records that were waited for, and came; since the start."""
    restored: int
    """Others that came with them, and were missing; since the start."""
    gone: int
    fetch_time: DistributionSnapshot
    """Seconds from asking to having, of those that were not in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    arrival: Arrival
    then: Then
    asked_s: float


class PayloadSource:
    def __init__(
        self,
        payloads: Payloads,
        fetcher: RecordFetcher,
        *,
        prepare: Callable[[StageJob, InboundRecord], None],
        refuse: Callable[[Refused], None],
        call_soon: Callable[[Callable[[], None]], object],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`prepare` has a prompt made of a record, from any thread; `refuse`: there is none for this job. `call_soon`:
        on the event loop, from any thread."""
        self.payloads = payloads
        self._fetcher = fetcher
        self._prepare = prepare
        self._refuse = refuse
        self._call_soon = call_soon
        self._monotonic_s = monotonic_s
        # Both bounded by the residency: each is asked for by a request that holds a row.
        self._waiting: deque[_Asked] = deque()
        self._round: dict[tuple[int, int], list[_Asked]] = {}
        """What is being read, by partition and offset."""
        self._assignments: dict[int, PartitionEpoch] = {}
        """The last one of each partition that was read of."""
        self._news = asyncio.Event()
        self._sweeping = False
        self._fetched = self._restored = self._gone = 0
        self._fetch_time = Distribution(REFETCH_TIME.bounds)

    # --- who needs a record ---------------------------------------------------------------------------------------

    def stage(self, job: StageJob) -> None:
        """The engine thread's: have its prompt prepared."""
        record = self.payloads.find(job.arrival)
        if record is None:
            self._call_soon(partial(self.give, job.arrival, partial(self._go_on, job)))
        else:
            self._prepare(job, record)

    def give(self, arrival: Arrival, then: Then) -> None:
        """Call `then` with the request's record, now or later; or with why it does not come."""
        record = self.payloads.find(arrival)
        if record is not None:
            then(record)
        elif not self.payloads.misses(arrival.assignment, arrival.id.offset):
            then(Missing.UNWANTED)
        else:
            self._waiting.append(_Asked(arrival, then, self._monotonic_s()))
            self._news.set()

    async def get(self, arrival: Arrival) -> InboundRecord | Missing:
        """The same, to be awaited."""
        found: asyncio.Future[InboundRecord | Missing] = asyncio.get_running_loop().create_future()

        def take(record: InboundRecord | Missing) -> None:
            if not found.done():  # or who waited was cancelled
                found.set_result(record)

        self.give(arrival, take)
        return await found

    def _go_on(self, job: StageJob, found: InboundRecord | Missing) -> None:
        if not isinstance(found, Missing):
            self._prepare(job, found)
            return
        # Where nobody wants it, its refusal is passed by like its prompt would be; but somebody counts on one of them.
        error = RequestError.record_gone() if found is Missing.GONE else RequestError.cancelled()
        self._refuse(Refused(job, error))

    # --- whose it is ----------------------------------------------------------------------------------------------

    def revoke(self, partition: PartitionEpoch) -> None:
        """It is another worker's now: who waits for one of its records is told so."""
        self.payloads.revoke(partition)
        # Thousands may wait while the broker is away: each is looked at once.
        asked_for = [*self._waiting, *(asked for together in self._round.values() for asked in together)]
        unwanted = [asked for asked in asked_for if asked.arrival.assignment == partition]
        if unwanted:
            self._waiting = deque(asked for asked in self._waiting if asked.arrival.assignment != partition)
            for place, together in self._round.items():
                self._round[place] = [asked for asked in together if asked.arrival.assignment != partition]
        for asked in unwanted:
            asked.then(Missing.UNWANTED)
        if not self._sweeping:
            self._sweep()

    def _sweep(self) -> None:
        """In slices: letting go of a hundred thousand payloads at once would hold the loop up."""
        self._sweeping = self.payloads.sweep(_SWEPT_A_TURN)
        if self._sweeping:
            asyncio.get_running_loop().call_soon(self._sweep)

    # --- reading again --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled: who waits then is left for the next worker."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._waiting:
                    await self._fetch()
        finally:
            await self._fetcher.close()

    async def _fetch(self) -> None:
        """One round."""
        wanted = self._begin_round()
        if not wanted:
            return
        beside: list[InboundRecord] = []
        room = self.payloads.max_bytes // _RESTORED_PART

        def take(record: InboundRecord) -> None:
            nonlocal room
            if not self._came(record) and self._missed(record) and record_size(record) <= room:
                room -= record_size(record)
                beside.append(record)

        try:
            gone = await self._fetcher.fetch(wanted, take)
        except KafkaUnavailableError as error:
            log.warning("%d payloads can't be read again yet: %s", len(self._round), error)
            self._waiting.extendleft(asked for together in self._round.values() for asked in together)
            self._round.clear()
            await asyncio.sleep(_AGAIN_S)
            return
        finally:
            # The last one first: each becomes the oldest of its flow, so that they stand in their order.
            self._restored += sum(self._restore(record) for record in reversed(beside))
        for record in gone:
            self._gone += 1
            log.error("%s waited for its turn, and its topic has it no more: retention or compaction", record)
            for asked in self._round.pop((record.partition, record.offset), ()):
                asked.then(Missing.GONE)
        assert not self._round, f"{list(self._round)} were neither read nor missed"

    def _begin_round(self) -> dict[int, set[int]]:
        """Who is in it; what is wanted, by partition. Who finds his record in memory by now has it."""
        wanted: dict[int, set[int]] = {}
        while self._waiting and len(self._round) < _ASKED_A_ROUND:
            asked = self._waiting.popleft()
            place = asked.arrival.id
            record = self.payloads.find(asked.arrival)
            if record is not None:
                self._have(asked, record)
            else:
                self._round.setdefault((place.partition, place.offset), []).append(asked)
                self._assignments[place.partition] = asked.arrival.assignment
                wanted.setdefault(place.partition, set()).add(place.offset)
        return wanted

    def _came(self, record: InboundRecord) -> bool:
        """Give it to who waits for it. Whether it was asked for."""
        together = self._round.pop((record.id.partition, record.id.offset), None)
        for asked in together or ():
            self.payloads.restore(asked.arrival.assignment, record)
            self._have(asked, record)
        return together is not None

    def _have(self, asked: _Asked, record: InboundRecord) -> None:
        self._fetched += 1
        self._fetch_time.observe(self._monotonic_s() - asked.asked_s)
        asked.then(record)

    def _missed(self, record: InboundRecord) -> bool:
        return self.payloads.misses(self._assignments[record.id.partition], record.id.offset)

    def _restore(self, record: InboundRecord) -> bool:
        return self.payloads.restore(self._assignments[record.id.partition], record)

    def statistics(self) -> PayloadSourceStatistics:
        return PayloadSourceStatistics(
            self.payloads.statistics(),
            len(self._waiting) + len(self._round),
            self._fetched,
            self._restored,
            self._gone,
            self._fetch_time.snapshot(),
        )
