"""The chaos tests in full size: `make chaos`. A case that has a result under out/chaos is not run again."""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.chaos.cluster import addresses
from tests.chaos.crew import PLACES, Crew, zygote
from tests.chaos.stories import (
    bounced,
    broker_away,
    joined_and_left,
    killed_again_and_again,
    nodes_bounced,
    poisoned,
    stopped_and_woken,
)
from topics.local_broker import LocalBroker

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(2_400)]

_RESULTS = Path("out/chaos")
_SCALE = float(os.environ.get("CHAOS_SCALE", "1"))
"""Of the full size, for a machine or an hour that has not got it. The results say what was run."""


def sized(count: int, least: int = 1) -> int:
    return max(least, round(count * _SCALE))


@dataclass(frozen=True)
class Case:
    story: Callable[[Crew, Sequence[LocalBroker]], Awaitable[list[str]]]
    nodes: int = 1
    """Of its cluster: 1 or 3."""
    model: str = "sleeping"
    at_least: Counter[str] = field(default_factory=Counter)
    """Where kills must have landed, and how often."""


CASES = {
    "200 kills, SmolLM2, 5,000 requests": Case(
        lambda workers, _: killed_again_and_again(workers, kills=sized(200, 5), requests=sized(5_000, 400)),
        model="smollm2",
        at_least=Counter(dict.fromkeys(PLACES, sized(10))),
    ),
    "200 kills, 5,000 requests": Case(
        lambda workers, _: killed_again_and_again(workers, kills=sized(200, 5), requests=sized(5_000, 400)),
        at_least=Counter(dict.fromkeys(PLACES, sized(10))),
    ),
    "40 kills while evicted payloads are read again, 8,000 requests": Case(
        lambda workers, _: killed_again_and_again(
            workers, kills=sized(40, 2), requests=sized(8_000, 500), places=["refetch"], padding=8_000
        ),
        at_least=Counter(refetch=sized(40, 2)),
    ),
    "3 deadly requests among 2,000": Case(
        lambda workers, _: poisoned(
            workers, deadly=[sized(400), sized(1_000), sized(1_001) + 1], requests=sized(2_000, 200)
        ),
        at_least=Counter({"deadly": 5}),
    ),
    "stopped in mid-stream, 20 times": Case(
        lambda workers, _: stopped_and_woken(workers, place="delta", stops=sized(20)),
        at_least=Counter({"delta": sized(20)}),
    ),
    "stopped before the offsets, 20 times": Case(
        lambda workers, _: stopped_and_woken(workers, place="open", stops=sized(20)),
        at_least=Counter({"open": sized(20)}),
    ),
    "stopped before the end, 20 times": Case(
        lambda workers, _: stopped_and_woken(workers, place="before-end", stops=sized(20)),
        at_least=Counter({"before-end": sized(20)}),
    ),
    "worker bounced hard, 10,000 requests": Case(
        lambda workers, _: bounced(workers, clean=False, bounces=sized(40), requests=sized(10_000, 400))
    ),
    "worker bounced clean, 10,000 requests": Case(
        lambda workers, _: bounced(workers, clean=True, bounces=sized(40), requests=sized(10_000, 400))
    ),
    "node of three bounced hard, 10,000 requests": Case(
        lambda workers, nodes: nodes_bounced(
            workers, nodes, clean=False, bounces=sized(20, 3), requests=sized(10_000, 600)
        ),
        nodes=3,
    ),
    "node of three bounced clean, 10,000 requests": Case(
        lambda workers, nodes: nodes_bounced(
            workers, nodes, clean=True, bounces=sized(20, 3), requests=sized(10_000, 600)
        ),
        nodes=3,
    ),
    "broker away for 60 s": Case(lambda workers, nodes: broker_away(workers, nodes[0], seconds=60.0)),
    "broker away for 60 s, SmolLM2": Case(
        lambda workers, nodes: broker_away(workers, nodes[0], seconds=60.0), model="smollm2"
    ),
    "workers join and leave, 5,000 requests": Case(
        lambda workers, _: joined_and_left(workers, changes=sized(40), every_s=(2.0, 10.0), requests=sized(5_000))
    ),
    # What moves to another worker in mid-answer is computed again there: with answers of a second that is more.
    "workers join and leave in long answers, 1,000 requests": Case(
        lambda workers, _: joined_and_left(
            workers, changes=sized(20, 4), every_s=(2.0, 5.0), requests=sized(1_000, 200), tokens=200, again=0.2
        )
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_lost_and_nothing_said_twice(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    result = _RESULTS / f"{name.replace(' ', '-').replace(',', '')}.json"
    if result.exists():
        pytest.skip(f"done: {result} holds the result")
    case, log = CASES[name], tmp_path / "workers.log"
    nodes = request.getfixturevalue("chaos_nodes") if case.nodes > 1 else [request.getfixturevalue("chaos_broker")]
    began_s = time.monotonic()
    problems, crew = asyncio.run(_live_through(nodes, case, log))
    kills, requests = crew.kills, len(crew.sent)
    again = f"{crew.run_again} run again, {crew.computed_again / crew.to_compute:.1%} computed again"
    print(f"{name}: {requests} requests, {time.monotonic() - began_s:.0f} s, kills landed {dict(kills)}, {again}")
    assert problems == [], log.read_text()[-5_000:]
    assert kills >= case.at_least, f"too few kills landed where they should: {kills}"
    _RESULTS.mkdir(parents=True, exist_ok=True)
    figures = {
        "case": name,
        "scale": _SCALE,
        "requests": requests,
        "seconds": round(time.monotonic() - began_s),
        "kills": kills,
        "run_again": crew.run_again,
        "computed_again": round(crew.computed_again / crew.to_compute, 4),
    }
    result.write_text(json.dumps(figures) + "\n")


async def _live_through(nodes: Sequence[LocalBroker], case: Case, log: Path) -> tuple[list[str], Crew]:
    async with zygote(case.model, log) as workers, Crew(addresses(nodes), workers) as crew:
        return await case.story(crew, nodes), crew
