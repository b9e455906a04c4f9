"""The event loop is the broker's: nothing blocks it, and heartbeats go on through a long step."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from blockbuster import blockbuster_ctx
from rich.console import Console

from tests.integration.worker.conftest import RunWorker
from tests.workers.engine.wrapped_runner import WrappedRunner
from topics.client import HeadraceClient
from topics.consumer import ConsumerStatistics
from workers.commands.local_worker import local_worker
from workers.configuration.config import WorkerConfig
from workers.models.loaded_model import LoadedModel
from workers.runners.runner import ModelRunner, SequenceInput

pytestmark = [pytest.mark.broker, pytest.mark.model]


async def test_nothing_blocks_the_event_loop(worker_config: WorkerConfig, run_worker: RunWorker) -> None:
    """Blocking calls on the loop's thread raise, and the requests go through all the same."""
    kafka = worker_config.kafka
    async with run_worker(worker_config):
        with blockbuster_ctx():
            async with HeadraceClient(kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix) as client:
                answer = await client.complete("Say hello.", priority="p0", max_tokens=4, stream=True, timeout_s=120)
    assert answer.usage["completion_tokens"] == 4


async def test_a_step_longer_than_the_session_timeout_loses_no_partition(
    worker_config: WorkerConfig, model: LoadedModel
) -> None:
    """The forward holds the engine thread for longer than the broker waits for a heartbeat."""
    kafka = worker_config.kafka.model_copy(update={"session_timeout_ms": 6_000})
    config = worker_config.model_copy(update={"kafka": kafka})
    slow = replace(model, runner=LongFirstStep(model.runner, seconds=9.0))
    async with local_worker(config, slow, Console(quiet=True), partitions=2) as running:
        before = _rebalances(running.worker.statistics().consumers.values())
        async with HeadraceClient(kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix) as client:
            await client.complete("Say hello.", priority="p2", max_tokens=1, timeout_s=240)
        statistics = running.worker.statistics()
    assert statistics.engine.step_seconds > 9.0
    assert _rebalances(statistics.consumers.values()) == before
    assert all(consumer.commits_rejected == 0 for consumer in statistics.consumers.values())


class LongFirstStep(WrappedRunner):
    """The real runner, computing its first step over and over for some seconds."""

    def __init__(self, runner: ModelRunner, seconds: float) -> None:
        super().__init__(runner)
        self._seconds = seconds

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        until_s, self._seconds = time.monotonic() + self._seconds, 0.0
        tokens = super().step(sequences)
        while time.monotonic() < until_s:
            tokens = super().step(sequences)
        return tokens


def _rebalances(consumers: Iterable[ConsumerStatistics]) -> int:
    return sum(consumer.rebalances for consumer in consumers)
