"""Requests are given up one after the other, each when the one before has left."""

import asyncio
from typing import Any

from tests.workers.engine.engine_rig import Rig
from topics.attempt_notes import AttemptNote, PriorAttempts
from topics.record import InboundRecord
from workers.attempts.giving_up import GivingUp
from workers.attempts.start_gate import arrival_key
from workers.intake.payload_source import Missing
from workers.intake.request import Arrival


class Limit:
    """Asked, and closed."""

    def __init__(self) -> None:
        self.checks = 0

    async def check(self) -> None:
        self.checks += 1

    async def close(self) -> None: ...


async def record_of(arrival: Arrival) -> InboundRecord | Missing:
    return InboundRecord(arrival.id, arrival.timestamp_ms, None, b"{}", ())


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_limit_is_asked_again_when_the_letter_before_is_on_its_topic() -> None:
    limit: Any = Limit()
    answered: list[Arrival] = []
    giving_up = GivingUp(limit, lambda arrival, _record, _prior: answered.append(arrival), record_of)
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


async def test_one_whose_record_is_gone_is_given_up_without_it_and_one_that_left_is_not() -> None:
    limit: Any = Limit()
    answered: list[tuple[Arrival, InboundRecord | None]] = []
    rig = Rig()
    left, gone = rig.arrive("left"), rig.arrive("gone")

    async def missing(arrival: Arrival) -> InboundRecord | Missing:
        return Missing.UNWANTED if arrival is left else Missing.GONE

    giving_up = GivingUp(limit, lambda arrival, record, _prior: answered.append((arrival, record)), missing)
    task = asyncio.create_task(giving_up.run())
    for arrival in (left, gone):
        giving_up.put(arrival, PriorAttempts(AttemptNote(3, 0, crashes=2), ended=False))
    await turns()
    assert answered == [(gone, None)]
    task.cancel()
    await asyncio.wait({task})
