"""The batch scheduler under random arrivals, sizes, pools, staging delays, cancels and deadlines."""

import random
from math import inf

import pytest
from hypothesis import given, settings

from scheduling.preemption_rules import PreemptionMode
from scheduling.priority import PriorityClass
from tests.properties.batch_model import simulate
from tests.properties.batch_worlds import Case, World, worlds


@given(worlds())
def test_every_promise_holds(world: World) -> None:
    simulate(world)


@settings(max_examples=settings().max_examples // 4)
@given(worlds())
def test_the_same_events_give_the_same_plans(world: World) -> None:
    assert simulate(world).plans == simulate(world).plans


@pytest.mark.parametrize("mode", [PreemptionMode.RECOMPUTE, PreemptionMode.SWAP, PreemptionMode.AUTO])
@pytest.mark.parametrize("discipline", ["htb", "strict"])
def test_a_short_pool_preempts_a_lot_and_loses_nothing(discipline: str, mode: PreemptionMode) -> None:
    """The generator's worlds preempt now and then; this one does most of the time, so the rules above are met."""
    draw = random.Random(7)
    cases = [
        Case(
            priority=PriorityClass(draw.randrange(4)),
            turn=draw.randrange(150),
            prompt=draw.randrange(1, 20),
            estimate=draw.randrange(1, 60),
            answer=20,
            tenant=draw.choice("ab"),
            staging_turns=draw.randrange(4),
            deadline_s=inf,
            cancel_turn=draw.choice([None, None, None, draw.randrange(250)]),
            family=draw.randrange(4),
        )
        for _ in range(150)
    ]
    simulation = simulate(
        World(
            cases=cases,
            discipline=discipline,
            blocks=12,
            block_size=4,
            max_sequences=8,
            step_tokens=24,
            step_max_s=0.04,
            prefill_floor=4,
            backfill_limit=4,
            staged_rows=16,
            predicted=2,
            paused_turns=frozenset(),
            mode=mode,
            parts=True,
            swap_places=8,
            cache=True,
        )
    )
    statistics = simulation.rig.scheduler.statistics()
    assert statistics.preemptions > 60
    assert statistics.readmitted > 40
    assert statistics.backfills > 3
    assert (statistics.suspensions.swapped > 10) == (mode is not PreemptionMode.RECOMPUTE)
    assert statistics.suspensions.lost_tokens > 0, "the swap pool is full now and then"
