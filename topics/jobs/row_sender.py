"""Rows as requests on their topic, in large batches, with a watermark of what is surely there.

Knows headers, partitions, batches and acknowledgements. Does not know where rows come from or where the watermark is
kept (`topics.jobs.submission`).

Rows go in *stretches* of some thousand: while one is on its way the next one is made. Batches are built here and handed
to aiokafka whole: a future a row, as `RecordProducer` has, would be half of the time.

**Partitions.** All partitions get rows, so that all workers help with one job. Rows that begin with the same system
messages go to one partition `_TOGETHER` at a time before the next partition gets some: its worker computes the shared
prefix once and finds it in its cache for the others, and no worker gets all of them.

**Flows.** A job is one flow of its tenant, so jobs of a tenant go on side by side whatever their length. A job of
weight w is w flows.

Delivery: an idempotent producer, in order. A batch that is not acknowledged in `_ACKNOWLEDGE_TIMEOUT_S` ends the
sending with an error; whoever submits again sends what is missing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

from aiokafka.errors import KafkaError

from topics.aiokafka_producer import close_producer, open_producer
from topics.codec import dumps
from topics.headers import BAGGAGE, CUSTOM_ID, FLOW, REQUEST_ID, TRACEPARENT, TRACESTATE, RequestHeaders
from topics.jobs.errors import JobFailedError
from topics.jobs.records import JobOrder, JobRun
from topics.jobs.rows import BatchRow, RowProblem
from topics.kafka_settings import KafkaSettings

__all__ = ["RowSender", "SendProgress", "SendingBrokeError"]

_STRETCH_ROWS = 4_096
_STRETCH_BYTES = 8 * 2**20
_BATCH_BYTES = 768 * 2**10
_TOGETHER = 64
"""Rows with one prefix that go to one partition in a row: the prefix is then computed for one row in 64."""
_REMEMBERED_PREFIXES = 10_000
_ACKNOWLEDGE_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 10.0


class SendingBrokeError(JobFailedError):
    """The brokers took only a part of the rows. Submitting again sends the rest."""


@dataclass(frozen=True, slots=True)
class SendProgress:
    rows: int
    """Rows of the run dealt with so far, acknowledged: all below `sent_rows`."""
    sent_rows: int
    request_offsets: Mapping[int, int]


@dataclass(slots=True)
class _Stretch:
    end_row: int
    acknowledgements: list[tuple[int, int, "asyncio.Future[Any]"]]
    """Partition, rows, and the future of a batch's first offset."""


@dataclass(slots=True)
class _Prefix:
    """Rows that begin with the same system messages."""

    key: bytes | None
    """The affinity key that `HeadraceClient` gives such a request; None where nothing is shared."""
    home: int
    """Where its first rows go, modulo the partitions."""
    dealt: int = 0
    """Rows so far."""

    @classmethod
    def of(cls, system_messages: bytes, tenant: str | None) -> "_Prefix":
        if not system_messages:
            return cls(None, 0)
        shared = b"[%s,%s]" % (dumps(tenant), system_messages)
        digest = blake2b(shared, digest_size=8).digest()
        return cls(digest.hex().encode(), int.from_bytes(digest, "big"))


_PlacedRow = tuple[BatchRow | RowProblem, int, bytes | None]
"""A row, its partition, its record's key."""


class RowSender:
    """An async context manager for one run of one job."""

    def __init__(
        self,
        settings: KafkaSettings,
        order: JobOrder,
        run: JobRun,
        *,
        request_topic: str,
        request_partitions: int,
        reply_topic: str,
        trace: Mapping[str, str],
    ) -> None:
        """`trace`: the W3C headers of the span that sends, empty where none is."""
        self._settings = settings
        self._order = order
        self._run = run
        self._topic = request_topic
        self._partitions = request_partitions
        self._producer: Any = None
        self._exit = AsyncExitStack()
        self._batches: dict[int, tuple[Any, int]] = {}
        """Partition → the batch that is being filled, and its rows."""
        self._prefixes: dict[bytes, _Prefix] = {}
        self._offsets = dict(run.request_offsets)
        self._rows = 0
        self._job_id = order.job_id.encode()
        self._common_headers = [
            header
            for header in RequestHeaders(
                request_id="",
                tenant=order.tenant,
                deadline_ms=run.expires_at_ms,
                reply_topic=reply_topic,
                reply_partition=order.reply_partition,
                job_id=order.job_id,
                traceparent=trace.get(TRACEPARENT),
                tracestate=trace.get(TRACESTATE),
                baggage=trace.get(BAGGAGE),
            ).encode()
            if header[0] != REQUEST_ID
        ]
        """What all rows of the run have."""

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError`."""
        async with AsyncExitStack() as stack:
            self._producer = await open_producer(
                self._settings,
                "submit",
                timeout_s=_CONNECT_TIMEOUT_S,
                max_batch_size=_BATCH_BYTES,
                max_request_size=4 * 2**20,
                compression_type="lz4",
            )
            stack.push_async_callback(close_producer, self._producer, timeout_s=2.0)
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    async def send(
        self,
        rows: Iterable[BatchRow | RowProblem],
        wanted: Callable[[int], bool],
        on_progress: Callable[[SendProgress], Awaitable[bool]],
    ) -> int:
        """Send those of the job's rows that are `wanted`, in order; rows with a problem are passed over.

        `on_progress` is awaited when a stretch is acknowledged, and says whether to go on. What is on its way then is
        still waited for. Returns the row that it stopped before: all wanted ones below it are on the broker.

        `rows` are all rows of the job, since where a row goes depends on those before it.

        Raises `KafkaUnavailableError`, `SendingBrokeError`, and what `on_progress` raises.
        """
        underway: _Stretch | None = None
        for rows_of_stretch in self._stretches(rows):
            before, underway = underway, await self._hand_over_stretch(rows_of_stretch, wanted)
            if before is not None and not await self._acknowledged(before, on_progress):
                break
        if underway is None:
            return 0
        await self._acknowledged(underway, on_progress)
        return underway.end_row

    def _stretches(self, rows: Iterable[BatchRow | RowProblem]) -> Iterator[list[_PlacedRow]]:
        """Rows with their places, some thousand at a time."""
        stretch: list[_PlacedRow] = []
        size = 0
        for row in rows:
            if isinstance(row, BatchRow):
                prefix = self._prefix_of(row)
                stretch.append((row, self._next_partition(prefix), prefix.key))
                size += len(row.body)
            else:
                stretch.append((row, 0, None))
            if len(stretch) == _STRETCH_ROWS or size >= _STRETCH_BYTES:
                yield stretch
                stretch, size = [], 0
        if stretch:
            yield stretch

    async def _hand_over_stretch(self, stretch: Sequence[_PlacedRow], wanted: Callable[[int], bool]) -> _Stretch:
        acknowledgements: list[tuple[int, int, asyncio.Future[Any]]] = []
        try:
            async with asyncio.timeout(_ACKNOWLEDGE_TIMEOUT_S):
                for row, partition, key in stretch:
                    if isinstance(row, BatchRow) and wanted(row.row):
                        self._rows += 1
                        if (full := self._append(row, partition, key)) is not None:
                            acknowledgements.append(await self._hand_over(partition, full))
                for partition, batch in list(self._batches.items()):
                    acknowledgements.append(await self._hand_over(partition, batch))
        except (KafkaError, TimeoutError) as error:
            raise self._broke(error) from error
        self._batches.clear()
        return _Stretch(stretch[-1][0].row + 1, acknowledgements)

    def _append(self, row: BatchRow, partition: int, key: bytes | None) -> tuple[Any, int] | None:
        """Put a row into its partition's batch; the batch before it if that one is full now."""
        batch, rows = self._batches.get(partition) or (self._producer.create_batch(), 0)
        full = None
        headers = self._headers(row)
        if batch.append(timestamp=None, key=key, value=row.body, headers=headers) is None:
            full = (batch, rows)
            batch, rows = self._producer.create_batch(), 0
            # An empty batch takes one record of any size.
            assert batch.append(timestamp=None, key=key, value=row.body, headers=headers) is not None
        self._batches[partition] = (batch, rows + 1)
        return full

    async def _hand_over(self, partition: int, batch: tuple[Any, int]) -> tuple[int, int, "asyncio.Future[Any]"]:
        """Waits while the partition's last batch has not left: this is the back-pressure."""
        builder, rows = batch
        builder.close()
        return partition, rows, await self._producer.send_batch(builder, self._topic, partition=partition)

    async def _acknowledged(self, stretch: _Stretch, on_progress: Callable[[SendProgress], Awaitable[bool]]) -> bool:
        try:
            async with asyncio.timeout(_ACKNOWLEDGE_TIMEOUT_S):
                for partition, rows, acknowledgement in stretch.acknowledgements:
                    first = await acknowledgement
                    self._offsets[partition] = first.offset + rows
        except (KafkaError, TimeoutError) as error:
            raise self._broke(error) from error
        return await on_progress(SendProgress(self._rows, stretch.end_row, dict(self._offsets)))

    def _broke(self, error: BaseException) -> SendingBrokeError:
        return SendingBrokeError(
            f"the brokers did not take all rows of {self._order.job_id} ({type(error).__name__}: {error}): submit it "
            "again, and what is missing is sent"
        )

    # --- one row --------------------------------------------------------------------------------------------------

    def _prefix_of(self, row: BatchRow) -> "_Prefix":
        known = self._prefixes.get(row.shared_prefix)
        if known is None:
            if len(self._prefixes) >= _REMEMBERED_PREFIXES:
                self._prefixes.clear()
            known = self._prefixes[row.shared_prefix] = _Prefix.of(row.shared_prefix, self._order.tenant)
        return known

    def _next_partition(self, prefix: "_Prefix") -> int:
        turn = prefix.dealt // (1 if prefix.key is None else _TOGETHER)
        prefix.dealt += 1
        return (prefix.home + turn) % self._partitions

    def _headers(self, row: BatchRow) -> list[tuple[str, bytes]]:
        order = self._order
        headers = [
            (REQUEST_ID, b"%s~%d~%d" % (self._job_id, self._run.run, row.row)),
            (CUSTOM_ID, row.custom_id.encode()),
            *self._common_headers,
        ]
        if order.weight > 1:
            headers.append((FLOW, b"%s#%d" % (self._job_id, row.row % order.weight)))
        return headers
