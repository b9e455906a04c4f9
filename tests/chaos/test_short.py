"""Workers that are killed and stopped at known places: the short versions, and mutations that must be noticed.

A process that can fork workers takes seconds to start, so one serves all stories: the fixture lets them happen, the
tests look at what came of it. The long versions stand in `test_long.py`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.crew import PLACES, Crew, zygote
from tests.chaos.stories import (
    commit_first,
    killed_again_and_again,
    poisoned,
    read_past_open_transactions,
    stopped_and_woken,
    without_the_marker,
)
from topics.local_broker import LocalBroker

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.timeout(280)]


@dataclass(frozen=True)
class End:
    problems: list[str]
    kills: Counter[str]


STORIES: dict[str, Callable[[Crew], Awaitable[list[str]]]] = {
    "kills": lambda workers: killed_again_and_again(workers, kills=5, requests=500),
    "kills while payloads are read again": lambda workers: killed_again_and_again(
        workers, kills=2, requests=500, places=["refetch"], padding=8_000
    ),
    "stopped before the offsets": lambda workers: stopped_and_woken(workers, place="open", stops=1),
    "stopped before the end": lambda workers: stopped_and_woken(workers, place="before-end", stops=1),
    "stopped in mid-stream": lambda workers: stopped_and_woken(workers, place="delta", stops=1),
    "poisoned": lambda workers: poisoned(workers, deadly=[40, 41], requests=200),
    "poisoned prompts": lambda workers: poisoned(workers, deadly=[40], requests=100, place="deadly-prompt"),
    "no marker": without_the_marker,
    "unstable": read_past_open_transactions,
    "commit first": commit_first,
}


@pytest.fixture(scope="module")
def ends(chaos_broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, End]:
    return asyncio.run(_live_through(chaos_broker, tmp_path_factory.mktemp("chaos") / "workers.log"))


async def _live_through(broker: LocalBroker, log: Path) -> dict[str, End]:
    ends: dict[str, End] = {}
    async with zygote("sleeping", log) as workers:
        for name, story in STORIES.items():
            async with Crew(broker.bootstrap_servers, workers) as crew:
                ends[name] = End(await story(crew), crew.kills)
    return ends


def test_workers_killed_at_every_place_lose_no_answer_and_give_none_twice(ends: dict[str, End]) -> None:
    assert ends["kills"].problems == []
    assert ends["kills"].kills == Counter(dict.fromkeys(PLACES, 1))


def test_workers_killed_while_evicted_payloads_are_read_again_lose_no_answer_and_give_none_twice(
    ends: dict[str, End],
) -> None:
    assert ends["kills while payloads are read again"].problems == []
    assert ends["kills while payloads are read again"].kills == Counter(refetch=2)


@pytest.mark.parametrize(
    ("story", "place"),
    [
        ("stopped before the offsets", "open"),
        ("stopped before the end", "before-end"),
        ("stopped in mid-stream", "delta"),
    ],
)
def test_an_owner_that_wakes_up_after_its_partitions_were_given_away_answers_nothing_twice(
    ends: dict[str, End], story: str, place: str
) -> None:
    assert ends[story].problems == []
    assert ends[story].kills == Counter({place: 1})


def test_without_stable_reads_the_checker_finds_an_answer_lost_or_given_twice(ends: dict[str, End]) -> None:
    """Which of them depends on whether the woken owner's transaction still commits."""
    broken = ("answered twice", "without a terminal reply")
    assert any(what in problem for problem in ends["unstable"].problems for what in broken)


def test_with_the_commit_before_the_answers_the_checker_finds_some_lost(ends: dict[str, End]) -> None:
    assert any("without a terminal reply" in problem for problem in ends["commit first"].problems)


def test_requests_that_end_their_workers_are_given_up_and_answered_and_all_others_served(ends: dict[str, End]) -> None:
    assert ends["poisoned"].problems == []
    assert ends["poisoned"].kills["deadly"] >= 3


def test_a_prompt_that_ends_its_workers_at_once_is_given_up_after_three_and_all_others_served(
    ends: dict[str, End],
) -> None:
    assert ends["poisoned prompts"].problems == []
    assert ends["poisoned prompts"].kills == Counter({"deadly-prompt": 3})


def test_without_the_marker_the_checker_finds_a_stream_that_repeats_itself(ends: dict[str, End]) -> None:
    assert any("repeats or lacks a seq" in problem for problem in ends["no marker"].problems)
