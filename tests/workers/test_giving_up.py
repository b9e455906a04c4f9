"""Requests are given up one after the other, each when the one before has left."""

import asyncio
from typing import Any

from tests.workers.engine_rig import Rig
from topics.attempt_notes import AttemptNote, PriorAttempts
from workers.attempts.giving_up import GivingUp
from workers.attempts.start_gate import arrival_key
from workers.intake.request import Arrival


class Limit:
    """Asked, and closed."""

    def __init__(self) -> None:
        self.checks = 0

    async def check(self) -> None:
        self.checks += 1

    async def close(self) -> None: ...


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_limit_is_asked_again_when_the_letter_before_is_on_its_topic() -> None:
    limit: Any = Limit()
    answered: list[Arrival] = []
    giving_up = GivingUp(limit, lambda arrival, _: answered.append(arrival))
    rig = Rig()
    first, second = rig.arrive("first"), rig.arrive("second")
    task = asyncio.create_task(giving_up.run())
    for arrival in (first, second):
        giving_up.put(arrival, PriorAttempts(AttemptNote(3, 0, crashes=2), ended=False))
    await turns()
    giving_up.settled(arrival_key(second))
    await turns()
    assert (limit.checks, answered) == (1, [first])
    giving_up.settled(arrival_key(first))
    await turns()
    assert (limit.checks, answered) == (2, [first, second])
    task.cancel()
    await asyncio.wait({task})
