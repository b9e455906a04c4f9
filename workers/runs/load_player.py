"""Plays a stream of requests against a running stack at its arrival times, and notes what comes back.

Knows Kafka's side of it: sending, and the two reply topics. Does not know figures.

**Open loop**: a request is sent when it is due, whatever became of the earlier ones, and its times count from when it
was *due*, not from when it was sent. So a stack that stalls can't slow its own measurement down (coordinated
omission), and if this side can't keep up, that shows as `late_s` and in every latency.
"""

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

from topics.catalogue import Catalogue
from topics.codec import loads
from topics.headers import ReplyEvent
from topics.kafka_settings import KafkaSettings
from topics.record_producer import RecordProducer, RecordRefusedError
from topics.replies import OutboundRecord
from topics.reply_reader import Reply, ReplyReader
from topics.stage_times import StageTimes

__all__ = ["LoadPlayer", "Observation"]

_CONNECT_TIMEOUT_S = 10.0
_SHOW_EVERY_S = 1.0


@dataclass(slots=True)
class Observation:
    """What was seen of one request. Times are seconds since the run's start."""

    late_s: float = 0.0
    """By so much later than it was due it was handed to the producer."""
    delta_s: "array[float]" = field(default_factory=lambda: array("d"))
    delta_tokens: "array[int]" = field(default_factory=lambda: array("I"))
    """When deltas came, and how many tokens each covered."""
    ended_s: float | None = None
    """When the terminal reply came. None: it never did."""
    error: str | None = None
    """The code of the error that it was answered with, or `refused`: the broker did not take it."""
    completion_tokens: int = 0
    """As the final says."""
    stages: StageTimes | None = None


class LoadPlayer:
    """`async with LoadPlayer(…) as player: observations = await player.play(…)`, once."""

    def __init__(self, kafka: KafkaSettings, catalogue: Catalogue) -> None:
        self._producer = RecordProducer(kafka, "load")
        self._seen: dict[str, Observation] = {}
        """By request id, of all that were sent: what comes twice must be told from what is somebody else's."""
        self._unfinished: set[str] = set()
        self._next_seq: dict[str, int] = {}
        self._finished = asyncio.Event()
        self._all_sent = False
        self._start_s = 0.0
        self._readers = [
            ReplyReader(
                kafka,
                topic,
                read_committed=topic == catalogue.replies,
                wanted=self._unfinished.__contains__,
                on_reply=self._take,
            )
            for topic in (catalogue.deltas, catalogue.replies)
        ]
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError`."""
        async with AsyncExitStack() as stack:
            for reader in self._readers:
                stack.push_async_callback(reader.close, _CONNECT_TIMEOUT_S)
                await reader.start(_CONNECT_TIMEOUT_S)
            stack.push_async_callback(self._producer.stop)
            await self._producer.start()
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    async def play(
        self,
        records: Sequence[tuple[float, str, Callable[[], OutboundRecord]]],
        *,
        timeout_s: float,
        on_progress: Callable[[int, int], None] = lambda _sent, _ended: None,
    ) -> list[Observation]:
        """`records`: when each is due (seconds from now, ascending), its request id, and what makes it.

        Returns when every request has its terminal reply, or `timeout_s` after the last was sent. `on_progress(sent,
        ended)` is called about once a second. Raises what breaks a reader or the producer.
        """
        self._start_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(reader.run()) for reader in self._readers]
            showing = tasks.create_task(self._show(on_progress))
            await self._send_all(records)
            self._all_sent = True
            self._look_if_finished()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._finished.wait()
            except TimeoutError:
                pass  # what has not come stays unended, and is counted
            showing.cancel()
            for reader in self._readers:
                reader.stop()
            await asyncio.wait(reading)
        on_progress(len(self._seen), len(self._seen) - len(self._unfinished))
        return [self._seen[request_id] for _, request_id, _ in records]

    async def _send_all(self, records: Sequence[tuple[float, str, Callable[[], OutboundRecord]]]) -> None:
        for due_s, request_id, make in records:
            record = make()
            if (wait_s := self._start_s + due_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            while not self._producer.has_room:
                await self._producer.wait_for_room()
            seen = self._seen[request_id] = Observation(late_s=time.monotonic() - self._start_s - due_s)
            self._unfinished.add(request_id)
            self._producer.submit(record).add_done_callback(partial(self._acknowledged, request_id, seen))

    def _acknowledged(self, request_id: str, seen: Observation, acknowledged: asyncio.Future[None]) -> None:
        if not acknowledged.cancelled() and isinstance(acknowledged.exception(), RecordRefusedError):
            self._end(request_id, seen, "refused")

    async def _show(self, on_progress: Callable[[int, int], None]) -> None:
        while True:
            await asyncio.sleep(_SHOW_EVERY_S)
            on_progress(len(self._seen), len(self._seen) - len(self._unfinished))

    # --- replies --------------------------------------------------------------------------------------------------

    def _take(self, reply: Reply) -> None:
        seen = self._seen[reply.request_id]
        if reply.event is ReplyEvent.DELTA:
            # What is sent again after an outage, or by the next worker, is not a second token.
            if reply.token_ids and (reply.seq or 0) >= self._next_seq.get(reply.request_id, 0):
                self._next_seq[reply.request_id] = (reply.seq or 0) + 1
                seen.delta_s.append(time.monotonic() - self._start_s)
                seen.delta_tokens.append(len(reply.token_ids))
        elif reply.event.terminal:
            seen.stages = reply.stages
            body = loads(reply.value)
            if reply.event is ReplyEvent.ERROR:
                detail = body["error"]
                self._end(reply.request_id, seen, detail.get("code") or str(detail["status_code"]))
            else:
                seen.completion_tokens = body["usage"]["completion_tokens"]
                self._end(reply.request_id, seen, None)

    def _end(self, request_id: str, seen: Observation, error: str | None) -> None:
        seen.ended_s = time.monotonic() - self._start_s
        seen.error = error
        self._unfinished.discard(request_id)
        self._next_seq.pop(request_id, None)
        self._look_if_finished()

    def _look_if_finished(self) -> None:
        if self._all_sent and not self._unfinished:
            self._finished.set()
