"""A class's channel: when its partitions pause and go on."""

import asyncio
from collections.abc import Collection
from typing import Any

from scheduling.priority import PriorityClass
from topics.assignment import PartitionEpoch
from topics.catalogue import Catalogue
from topics.kafka_settings import KafkaSettings
from workers.answers.terminal_writer import ReplyTopics
from workers.configuration.config import WorkerConfig
from workers.intake.class_channel import ClassChannel
from workers.intake.residency import Residency

P1 = PriorityClass.P1


async def test_a_full_class_goes_on_when_its_partitions_leave_however_long_the_last_notes_take() -> None:
    noted = asyncio.Event()
    residency = Residency({P1: 1.0}, max_rows=10, max_held_bytes=10**6)
    channel = ClassChannel(
        P1,
        WorkerConfig(),
        KafkaSettings("127.0.0.1:1"),
        Catalogue(),
        ReplyTopics("deltas", "replies", "dlq"),
        residency,
        instance="w",
        adopt=_unused,
        on_batch=lambda _topic, _records: None,
        on_record=lambda _priority, _epoch, _record: None,
        on_confirmed=lambda: None,
        on_revoked=lambda _partition: None,
        on_given=lambda _topic, _partitions: None,
        told=_nobody_speaks,
        given_back=lambda: _wait(noted),
        on_settled=lambda _settled: None,
    )
    channel.open()
    channel.consumer.assigned([0])
    for _ in range(10):
        residency.enter(P1, 0, 1, 1)
    channel.consumer.set_paused(True)
    revoking = asyncio.create_task(channel.consumer.revoked([0]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not revoking.done()
    assert not channel.consumer.paused, "the deadline of a revocation may end it here, and nobody looks again"
    noted.set()
    await revoking


async def test_being_told_of_partitions_makes_nobody_certain_of_them() -> None:
    """The process may have been stopped since the group gave them: only when it asked for them counts."""
    channel = ClassChannel(
        P1,
        WorkerConfig(),
        KafkaSettings("127.0.0.1:1"),
        Catalogue(),
        ReplyTopics("deltas", "replies", "dlq"),
        Residency({P1: 1.0}, max_rows=10, max_held_bytes=10**6),
        instance="w",
        adopt=_unused,
        on_batch=lambda _topic, _records: None,
        on_record=lambda _priority, _epoch, _record: None,
        on_confirmed=lambda: None,
        on_revoked=lambda _partition: None,
        on_given=lambda _topic, _partitions: None,
        told=_nobody_speaks,
        given_back=lambda: _wait(asyncio.Event()),
        on_settled=lambda _settled: None,
    )
    channel.consumer.assigned([0])
    assert not channel.consumer.lease.holds


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _nobody_speaks(_partitions: Collection[PartitionEpoch]) -> None:
    pass


async def _unused(*_: Any) -> None:
    raise AssertionError("no record is read")
