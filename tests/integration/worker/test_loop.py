"""The event loop is the broker's: nothing blocks it, and heartbeats go on through a long step."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from blockbuster import blockbuster_ctx
from rich.console import Console

from tests.integration.worker.conftest import RunWorker
from topics.client import HeadraceClient
from topics.consumer import ConsumerStatistics
from workers.commands.local_worker import local_worker
from workers.configuration.config import WorkerConfig
from workers.intake.sampling import TokenLogprobs
from workers.models.loaded_model import LoadedModel
from workers.runners.runner import Embedding, ModelLimits, ModelRunner, SequenceInput

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


class LongFirstStep:
    """The real runner, computing its first step over and over for some seconds."""

    def __init__(self, runner: ModelRunner, seconds: float) -> None:
        self._runner = runner
        self._seconds = seconds

    @property
    def limits(self) -> ModelLimits:
        return self._runner.limits

    @property
    def block_size(self) -> int:
        return self._runner.block_size

    @property
    def num_blocks(self) -> int:
        return self._runner.num_blocks

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        until_s, self._seconds = time.monotonic() + self._seconds, 0.0
        tokens = self._runner.step(sequences)
        while time.monotonic() < until_s:
            tokens = self._runner.step(sequences)
        return tokens

    def take_logprobs(self) -> Mapping[int, TokenLogprobs]:
        return self._runner.take_logprobs()

    def take_embeddings(self) -> Mapping[int, Embedding]:
        return self._runner.take_embeddings()


def _rebalances(consumers: Iterable[ConsumerStatistics]) -> int:
    return sum(consumer.rebalances for consumer in consumers)
