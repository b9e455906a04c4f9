"""Giving up requests that ended their workers: one after the other, as long as the limit allows it.

Each waits until the one before has left: the limit counts what stands on the topic, and would not see a letter that is
still under way.

Knows requests that wait to be given up, and the limit. Does not know how they are answered (`workers.answers.egress`),
why they are given up (`workers.attempts.attempts`) or where their records are. Runs on the event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from topics.attempt_notes import PriorAttempts
from topics.dead_letter_limit import DeadLetterLimit
from topics.record import InboundRecord
from workers.attempts.start_gate import ArrivalKey, arrival_key
from workers.intake.payload_source import Missing
from workers.intake.request import Arrival

__all__ = ["GivingUp"]

log = logging.getLogger(__name__)


class GivingUp:
    def __init__(
        self,
        limit: DeadLetterLimit,
        answer: Callable[[Arrival, InboundRecord | None, PriorAttempts], None],
        record_of: Callable[[Arrival], Awaitable[InboundRecord | Missing]],
    ) -> None:
        """`answer` is given the request's record; None: there is none any more."""
        self._limit = limit
        self._record_of = record_of
        self._answer = answer
        # Bounded by the residency: each holds the row of its record.
        self._waiting: deque[tuple[Arrival, PriorAttempts]] = deque()
        self._news = asyncio.Event()
        self._under_way: ArrivalKey | None = None
        self._left = asyncio.Event()

    def put(self, arrival: Arrival, prior: PriorAttempts) -> None:
        self._waiting.append((arrival, prior))
        self._news.set()

    def settled(self, key: ArrivalKey) -> None:
        """The terminal reply of some request is on the broker, or will never be."""
        if key == self._under_way:
            self._left.set()

    async def run(self) -> None:
        """Until it is cancelled: what waits then is left for the next worker.

        Raises `TooManyDeadLettersError`, `KafkaUnavailableError`.
        """
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._waiting:
                    await self._limit.check()
                    arrival, prior = self._waiting.popleft()
                    record = await self._record_of(arrival)
                    if record is Missing.UNWANTED:
                        continue  # its partition is another worker's now
                    log.error(
                        "%s has ended %d workers and is given up",
                        arrival.id,
                        prior.crashes,
                        extra={"traceparent": arrival.headers.traceparent},
                    )
                    self._under_way = arrival_key(arrival)
                    self._left.clear()
                    self._answer(arrival, None if isinstance(record, Missing) else record, prior)
                    await self._left.wait()
        finally:
            await self._limit.close()
