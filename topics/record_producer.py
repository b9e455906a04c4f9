"""Records to Kafka in order, each acknowledged, through brokers that come and go.

Knows order, bounds, acknowledgements, and when the aiokafka producer underneath must be replaced. Does not know what
the records mean (`topics.replies`) or who waits for them (`topics.producer`).

One task takes records in the order in which they were submitted and hands them to an idempotent producer. A record
leaves the memory when a broker has acknowledged it. An error that ends the idempotent producer (a sequence number
out of order, aiokafka#1017), an acknowledgement that doesn't come within `delivery_timeout_s`, or a broker that is
gone: the producer is abandoned and a new one sends everything unacknowledged again, in the old order. So a record
may stand twice in the log, never not at all: **at least once, in order**; readers tell repetitions by request id,
attempt and `seq`.

What no retry can cure (a topic that doesn't exist, a record too large, no right to write) refuses the one record.

Topics that don't exist are refused at once (`topics.known_topics`).

Bounded by bytes in flight: `submit` raises when they are used up. `wait_for_room` is the way to wait.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any

from aiokafka.errors import BrokerResponseError, KafkaError

from topics.aiokafka_producer import KafkaUnavailableError, close_producer, open_producer
from topics.kafka_settings import KafkaSettings
from topics.known_topics import KnownTopics, RecordRefusedError, hopeless
from topics.record import RecordId
from topics.replies import OutboundRecord

__all__ = [
    "ProducerFullError",
    "ProducerStatistics",
    "ProducerStoppedError",
    "RecordProducer",
    "RecordRefusedError",
]

logger = logging.getLogger(__name__)

_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Between attempts to reach a broker; the last one repeats."""


class ProducerFullError(Exception):
    """The bytes in flight are used up. `wait_for_room` says when to try again."""


class ProducerStoppedError(Exception):
    """The producer was stopped before a broker acknowledged the record; it may stand in the log or not."""


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    connected: bool
    in_flight_records: int
    in_flight_bytes: int
    acknowledged: int
    refused: int
    rebuilds: int
    """How often the producer underneath was replaced."""
    last_error: str | None
    """Of the last replacement."""


@dataclass(slots=True, eq=False)
class _Entry:
    record: OutboundRecord
    size_bytes: int
    acknowledgement: asyncio.Future[RecordId]
    sent_s: float | None = None
    """When the current producer took it, on the loop's clock."""


class RecordProducer:
    """One ordered stream of records. Owned by one event loop; not for use from other threads."""

    def __init__(
        self,
        settings: KafkaSettings,
        role: str,
        *,
        max_in_flight_bytes: int = 16 * 2**20,
        max_record_bytes: int = 8 * 2**20,
        linger_ms: int = 0,
        connect_timeout_s: float = 10.0,
        delivery_timeout_s: float = 20.0,
        metadata_timeout_s: float = 3.0,
        topics_age_s: float = 5.0,
    ) -> None:
        """`role` names the connection in the broker's logs. `max_record_bytes` should be the topics' own limit.

        `metadata_timeout_s`: for a broker to list the topics. `topics_age_s`: for so long a topic that is made may
        still be refused.
        """
        self._settings = settings
        self._role = role
        self._max_in_flight_bytes = max_in_flight_bytes
        self._arguments = {"linger_ms": linger_ms, "max_request_size": max_record_bytes}
        self._connect_timeout_s = connect_timeout_s
        self._delivery_timeout_s = delivery_timeout_s
        self._known = KnownTopics(age_s=topics_age_s, timeout_s=metadata_timeout_s)
        self._task: asyncio.Task[None] | None = None
        self._unacknowledged: dict[int, _Entry] = {}
        """In the order of submission; those that the current producer has taken come first."""
        self._unsent: deque[_Entry] = deque()
        self._in_flight_bytes = 0
        self._generation = 0
        """Of the producer underneath: failures reported by an earlier one no longer matter."""
        self._failure: BaseException | None = None
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._stopping = asyncio.Event()
        self._connected = False
        self._acknowledged = 0
        self._refused = 0
        self._rebuilds = 0
        self._last_error: str | None = None

    async def start(self) -> None:
        """Connect. Raises `KafkaUnavailableError` if no broker answers in time."""
        assert self._task is None, "started twice"
        producer = await self._open()
        self._task = asyncio.create_task(self._run(producer), name=f"kafka-producer-{self._role}")

    async def stop(self, grace_s: float = 10.0) -> None:
        """Deliver what is in flight within `grace_s`, then close. What is left fails with `ProducerStoppedError`.

        Idempotent. Raises what ended the producer's task, if it was a bug.
        """
        if self._task is None:
            return
        self._stopping.set()
        self._wake.set()
        await asyncio.wait({self._task}, timeout=grace_s)
        self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            if (current := asyncio.current_task()) is not None and current.cancelling():
                raise
        finally:
            self._fail_all(ProducerStoppedError("the producer was stopped before the record was acknowledged"))
            self._room.set()

    @property
    def has_room(self) -> bool:
        return self._in_flight_bytes < self._max_in_flight_bytes

    async def wait_for_room(self) -> None:
        """Return when `has_room`, or when the producer has stopped (`submit` then raises)."""
        await self._room.wait()

    def submit(self, record: OutboundRecord) -> asyncio.Future[RecordId]:
        """Queue a record behind all earlier ones. The future resolves when a broker has it, with where it stands.

        It fails with `RecordRefusedError` or `ProducerStoppedError`; whoever isn't interested may drop it. Cancelling
        it changes nothing. The last record before the limit may be of any size, so that a large one gets through.

        Raises `ProducerFullError`, `ProducerStoppedError`.
        """
        if self._task is None or self._stopping.is_set() or self._task.done():
            raise ProducerStoppedError(f"the producer {self._role} is not running")
        if not self.has_room:
            raise ProducerFullError(
                f"{self._in_flight_bytes} bytes are in flight in the producer {self._role}, "
                f"the limit is {self._max_in_flight_bytes}"
            )
        entry = _Entry(record, record.size_bytes, asyncio.get_running_loop().create_future())
        # Marks a failure as seen, so that a future nobody waits for makes no noise.
        entry.acknowledgement.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._unacknowledged[id(entry)] = entry
        self._unsent.append(entry)
        self._in_flight_bytes += entry.size_bytes
        if not self.has_room:
            self._room.clear()
        self._wake.set()
        return entry.acknowledgement

    def statistics(self) -> ProducerStatistics:
        return ProducerStatistics(
            connected=self._connected,
            in_flight_records=len(self._unacknowledged),
            in_flight_bytes=self._in_flight_bytes,
            acknowledged=self._acknowledged,
            refused=self._refused,
            rebuilds=self._rebuilds,
            last_error=self._last_error,
        )

    # --- the task -------------------------------------------------------------------------------------------------

    async def _open(self) -> Any:
        return await open_producer(self._settings, self._role, timeout_s=self._connect_timeout_s, **self._arguments)

    async def _run(self, producer: Any) -> None:
        try:
            while producer is not None:
                self._connected = True
                try:
                    failure = await self._serve(producer)
                finally:
                    self._connected = False
                    # Its late failures must not be taken for the next one's.
                    self._generation += 1
                    # Nothing is in flight after an orderly end; otherwise everything is sent again anyway.
                    await close_producer(producer, timeout_s=2.0)
                if failure is None:
                    return
                logger.warning("Kafka producer %s is replaced after %r", self._role, failure)
                self._rebuilds += 1
                self._last_error = repr(failure)
                producer = await self._reopen()
                self._send_again()
        except Exception as bug:
            self._fail_all(ProducerStoppedError(f"the producer {self._role} failed: {bug!r}"))
            self._room.set()
            raise

    async def _serve(self, producer: Any) -> BaseException | None:
        """Send and await acknowledgements until an orderly end (None) or an error that a new producer may cure."""
        while True:
            while self._unsent and self._failure is None:
                entry = self._unsent[0]
                try:
                    refusal = await self._hand_over(producer, entry)
                except (KafkaError, TimeoutError) as error:
                    return error
                self._unsent.popleft()
                if refusal is not None:
                    self._settle(entry, refusal)
            if self._failure is not None:
                failure, self._failure = self._failure, None
                return failure
            if self._stopping.is_set() and not self._unacknowledged:
                return None
            oldest_s = next((entry.sent_s for entry in self._unacknowledged.values()), None)
            deadline_s = None if oldest_s is None else oldest_s + self._delivery_timeout_s
            self._wake.clear()
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._wake.wait()
            except TimeoutError:
                return TimeoutError(f"no acknowledgement within {self._delivery_timeout_s:g} s")

    async def _hand_over(self, producer: Any, entry: _Entry) -> RecordRefusedError | None:
        """Give one record to aiokafka, which batches it. Raises what a new producer may cure."""
        record = entry.record
        if (refusal := await self._known.refusal(producer, record)) is not None:
            return refusal
        try:
            # Waits while the partition's batch is full.
            async with asyncio.timeout(self._delivery_timeout_s):
                sent = await producer.send(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    headers=list(record.headers),
                )
        except BrokerResponseError as error:
            if hopeless(error):
                return RecordRefusedError(f"a record for {record.topic} was refused: {error!r}")
            raise
        entry.sent_s = asyncio.get_running_loop().time()
        sent.add_done_callback(partial(self._on_result, entry, self._generation))
        return None

    def _on_result(self, entry: _Entry, generation: int, sent: "asyncio.Future[Any]") -> None:
        error = asyncio.CancelledError() if sent.cancelled() else sent.exception()
        if error is None:
            # Also from a producer that was abandoned meanwhile: the record stands in the log.
            place = sent.result()
            self._settle(entry, RecordId(place.topic, place.partition, place.offset))
        elif generation != self._generation:
            return
        elif isinstance(error, BrokerResponseError) and hopeless(error):
            self._settle(entry, RecordRefusedError(f"a record for {entry.record.topic} was refused: {error!r}"))
        else:
            self._failure = self._failure or error
        self._wake.set()

    async def _reopen(self) -> Any | None:
        """A new producer, however long it takes. None when the stop came first and nothing is left to deliver."""
        for pause_s in chain(_BACKOFF_S, repeat(_BACKOFF_S[-1])):
            if self._stopping.is_set() and not self._unacknowledged:
                return None
            try:
                return await self._open()
            except KafkaUnavailableError as error:
                self._last_error = str(error)
            await asyncio.sleep(pause_s)
        return None

    def _send_again(self) -> None:
        self._failure = None
        self._known.forget()
        for entry in self._unacknowledged.values():
            entry.sent_s = None
        self._unsent = deque(self._unacknowledged.values())

    # --- entries --------------------------------------------------------------------------------------------------

    def _settle(self, entry: _Entry, outcome: RecordId | RecordRefusedError) -> None:
        """The one place where an entry leaves. A second result for it (it was sent twice) changes nothing."""
        if self._unacknowledged.pop(id(entry), None) is None:
            return
        self._in_flight_bytes -= entry.size_bytes
        if self.has_room:
            self._room.set()
        if isinstance(outcome, RecordRefusedError):
            self._refused += 1
        else:
            self._acknowledged += 1
        self._resolve(entry, outcome)

    def _fail_all(self, error: ProducerStoppedError) -> None:
        for entry in self._unacknowledged.values():
            self._resolve(entry, error)
        self._unacknowledged.clear()
        self._unsent.clear()
        self._in_flight_bytes = 0

    @staticmethod
    def _resolve(entry: _Entry, outcome: RecordId | Exception) -> None:
        if entry.acknowledgement.done():
            return
        if isinstance(outcome, Exception):
            entry.acknowledgement.set_exception(outcome)
        else:
            entry.acknowledgement.set_result(outcome)
