"""Workers killed with SIGKILL at known places: no answer is lost, none is given twice."""

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.crew import BROKER_PROPERTIES, PLACES, Crew, crew
from tests.chaos.raw_checker import problems
from topics.local_broker import LocalBroker

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """One with short sessions, so that a killed worker's partitions are free soon."""
    folder = tmp_path_factory.mktemp("chaos-kafka")
    with LocalBroker(folder, start_timeout_s=120.0, extra_properties=BROKER_PROPERTIES) as broker:
        yield broker


async def kill_again_and_again(workers: Crew, kills: int, requests: int) -> None:
    """Each of `kills` workers dies at the next place; the last one may finish."""
    chance = random.Random(7)
    await workers.send(requests)
    for number in range(kills):
        place = PLACES[number % len(PLACES)]
        worker = await workers.start(kill=(place, chance.randint(2, 5)))
        await worker.ended.wait()
    assert len(set(workers.seen)) < requests, "nothing was left for the last worker: more requests, or fewer kills"
    last = await workers.start()
    await workers.answered(requests)
    workers.signal(last, signal.SIGTERM)
    await last.ended.wait()


async def found(workers: Crew) -> list[str]:
    told = await problems(workers.bootstrap_servers, workers.catalogue.prefix, workers.group, workers.sent)
    if len(workers.seen) != len(set(workers.seen)):
        told.append("a reader during the run saw a request answered twice")
    return told


async def test_no_answer_is_lost_or_given_twice(broker: LocalBroker, topic_prefix: str, tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    async with crew(broker.bootstrap_servers, topic_prefix, "sleeping", log) as workers:
        await kill_again_and_again(workers, kills=10, requests=800)
        assert await found(workers) == [], log.read_text()
        assert dict(workers.kills) == dict.fromkeys(PLACES, 2)
