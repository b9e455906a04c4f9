"""How many requests may be given up: so that a bad release stops its workers instead of emptying the queue.

Knows what was given up and what was answered lately, by all workers and over their restarts, for it asks the topics.
Does not know why a request is given up (`workers.attempts.attempts`) or what a worker does when the limit is reached.

Two rules over a window, as in arroyo's `DlqLimit`: an absolute number, and a part of all that ended. The part only
counts from a few on: the first request that is given up after a quiet hour is all that ended. Records that nobody could
be answered for are not counted: whoever may send could stop the workers with them.

Limit: answers are counted by offsets, transaction markers included, so there seem to be somewhat more of them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from topics.dead_letters import DeadLetter
from topics.kafka_settings import KafkaSettings
from topics.log_reader import LogReader, Stretch
from topics.record import InboundRecord

__all__ = ["DeadLetterLimit", "DeadLetterRules", "TooManyDeadLettersError"]


class TooManyDeadLettersError(Exception):
    """One more request would be given up than may be."""


@dataclass(frozen=True, slots=True)
class DeadLetterRules:
    window_s: float
    max_count: int
    max_ratio: float
    """Of what ended within the window, from `ratio_from` given up requests on."""
    ratio_from: int = 5

    def broken_by(self, given_up: int, answered: int) -> str | None:
        """Why not so many; None: they may."""
        ended = f"{given_up} requests have ended three workers each within {self.window_s:g} s"
        if given_up > self.max_count:
            return f"{ended}, the limit is {self.max_count}"
        if given_up >= self.ratio_from and given_up > self.max_ratio * (given_up + answered):
            return f"{ended} and {answered} were answered, the limit is {self.max_ratio:.0%} of all"
        return None


class DeadLetterLimit:
    """Asked before each request that is given up, which is rare."""

    def __init__(
        self,
        settings: KafkaSettings,
        rules: DeadLetterRules,
        *,
        letters: str,
        replies: str,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`letters`, `replies`: the topics."""
        self._rules = rules
        self._letters = letters
        self._replies = replies
        self._wall_s = wall_s
        self._reader = LogReader(settings, "dead-letters")

    async def check(self) -> None:
        """Return if one more may be given up. Raises `TooManyDeadLettersError`, `KafkaUnavailableError`."""
        since_ms = int((self._wall_s() - self._rules.window_s) * 1000)
        given_up = 1

        def take(record: InboundRecord) -> None:
            nonlocal given_up
            try:
                given_up += DeadLetter.decode(record).delivery_count > 1
            except ValueError:
                return  # somebody else's

        partitions = range(await self._reader.partitions(self._letters))
        await self._reader.read(self._letters, {each: Stretch(since_ms) for each in partitions}, take)
        answered = await self._reader.length(self._replies, since_ms)
        if (reason := self._rules.broken_by(given_up, answered)) is not None:
            raise TooManyDeadLettersError(
                f"{reason}: nothing more is given up. If a release or a model is at fault, go back; if the requests "
                "are, raise the limit (dead_letters)."
            )

    async def close(self) -> None:
        await self._reader.close()
