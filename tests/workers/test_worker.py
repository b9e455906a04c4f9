"""The worker's own decisions, without a broker: who is paused, and who goes on."""

import asyncio
from typing import Any

import pytest
from opentelemetry import trace

from scheduling.priority import PriorityClass
from tests.workers.engine.engine_rig import RATES
from tests.workers.models.tiny_tokenizers import byte_level_tokenizer
from topics.consumer import PartitionEpoch
from topics.kafka_settings import KafkaSettings
from topics.record import InboundRecord, RecordId
from topics.record_producer import ProducerStoppedError
from workers.configuration.config import load_config
from workers.models.loaded_model import LoadedModel
from workers.runners.runner import ModelLimits
from workers.runs.simulated_runner import SimulatedRunner, VirtualClock
from workers.worker import Worker

P3 = PriorityClass.P3


class PlainTokenizer:
    """What the worker asks of a tokenizer; no request gets as far as its template here."""

    chat_template: Any = None
    backend_tokenizer = byte_level_tokenizer()

    def apply_chat_template(self, conversation: Any, **_: Any) -> Any:
        raise AssertionError("not asked for")


LIMITS = ModelLimits(context_tokens=256, vocabulary=300, eos_token_ids=frozenset({1}))


def worker() -> Worker:
    runner = SimulatedRunner(RATES, VirtualClock(), LIMITS, num_blocks=64, block_size=16)
    model = LoadedModel(("m",), runner, PlainTokenizer(), LIMITS, "float32", RATES, None, "a simulated model")
    config = load_config({"ingress": {"max_rows": 40}})
    return Worker(config, model, KafkaSettings("127.0.0.1:9"), trace.get_tracer("test"), instance="test-0")


async def test_a_class_that_was_paused_goes_on_when_its_partitions_are_revoked() -> None:
    built = worker()
    built._delivery.channels[P3].open()
    consumer = built._delivery.channels[P3].consumer
    partition = PartitionEpoch("inference.p3", 0, 1)
    records = [
        InboundRecord(RecordId("inference.p3", 0, offset), 0, None, b'{"prompt": "x"}', ()) for offset in range(30)
    ]
    consumer._on_records(partition, records)
    assert consumer.paused
    await consumer._owner.revoked([partition])
    assert not consumer.paused


async def test_a_worker_that_is_told_to_stop_before_it_starts_starts_nothing() -> None:
    stop = asyncio.Event()
    stop.set()
    built = worker()
    await asyncio.wait_for(built.run(stop), 5)
    assert not built._computing.alive


def test_an_engine_that_was_ended_does_not_count_as_hanging() -> None:
    computing = worker()._computing
    computing.start_engine()
    assert computing.stop_engine(5)
    # The watchdog counts the seconds in which this stands still: delivering what is left may take longer than a step.
    seen_s = computing.last_sign_s
    assert computing.last_sign_s > seen_s > computing.last_turn_s


async def test_groups_are_left_though_nothing_can_be_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    built, stop = worker(), asyncio.Event()
    left = []

    async def leave_groups() -> None:
        left.append(True)

    async def give_back() -> None:
        raise ProducerStoppedError("the producer progress is not running")

    monkeypatch.setattr(built._delivery, "leave_groups", leave_groups)
    monkeypatch.setattr(built._delivery, "give_back", give_back)
    built._loop = asyncio.get_running_loop()
    built._drain_ordered.set()
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as tasks:
            await built._serve(stop, tasks, 1)
    assert left
