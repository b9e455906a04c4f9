"""Who asks for a record gets it once, or is told why not: read again in rounds, from a log in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.workers.intake.test_payloads import SIZE, arrival_of, record_of, sender_of
from topics.aiokafka_producer import KafkaUnavailableError
from topics.kafka_settings import KafkaSettings
from topics.record import InboundRecord, RecordId
from workers.intake import payload_source
from workers.intake.payload_source import Missing, PayloadSource
from workers.intake.payloads import Payloads
from workers.intake.staging import Refused, StageJob


class Log:
    """A partition. A read brings what was asked for and the next few records."""

    def __init__(self, beside: int) -> None:
        self.beside = beside
        self.records: dict[int, InboundRecord] = {}
        self.reads: list[list[int]] = []
        self.away = False
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.closed = False

    async def fetch(
        self, wanted: Mapping[int, Collection[int]], take: Callable[[InboundRecord], None]
    ) -> list[RecordId]:
        offsets = sorted(wanted[0])
        self.reads.append(offsets)
        await self.go_on.wait()
        if self.away:
            raise KafkaUnavailableError(KafkaSettings("127.0.0.1:1"), TimeoutError())
        read = sorted({offset + more for offset in offsets for more in range(self.beside + 1)} & self.records.keys())
        for offset in read:
            take(self.records[offset])
        return [RecordId("p1", 0, offset) for offset in offsets if offset not in self.records]

    async def close(self) -> None:
        self.closed = True


class Scene:
    """Ten requests of one flow, of which the first four have their payloads."""

    def __init__(self, beside: int = 0, requests: int = 10, budget: int = 4) -> None:
        self.log = Log(beside)
        self.prepared: list[tuple[int, InboundRecord]] = []
        self.refused: list[Refused] = []
        fetcher: Any = self.log
        self.source = PayloadSource(
            Payloads(budget * SIZE, sender_of),
            fetcher,
            prepare=lambda job, record: self.prepared.append((job.arrival.id.offset, record)),
            refuse=self.refused.append,
            call_soon=lambda call: asyncio.get_running_loop().call_soon(call),
        )
        self.payloads = self.source.payloads
        self.arrivals = [arrival_of(offset) for offset in range(requests)]
        for arrival in self.arrivals:
            self.log.records[arrival.id.offset] = record_of(arrival)
            self.payloads.keep(arrival, record_of(arrival))

    @property
    def at_hand(self) -> list[int]:
        return [arrival.id.offset for arrival in self.arrivals if self.payloads.find(arrival) is not None]

    def stage(self, *offsets: int) -> None:
        for offset in offsets:
            self.source.stage(StageJob(offset, self.arrivals[offset]))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.source.run())
        yield
        task.cancel()
        await asyncio.wait({task})
        assert self.log.closed


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - no event of the code under test says so
            await asyncio.sleep(0)


async def test_what_is_in_memory_is_prepared_at_once() -> None:
    scene = Scene()
    scene.stage(0)
    assert [offset for offset, _ in scene.prepared] == [0]


async def test_what_is_asked_for_during_a_round_is_read_in_one_that_follows() -> None:
    scene = Scene()
    async with scene.running():
        scene.log.go_on.clear()
        scene.stage(4)
        await until(lambda: len(scene.log.reads) == 1)
        scene.stage(7, 5, 6)
        await asyncio.sleep(0)
        scene.log.go_on.set()
        await until(lambda: len(scene.prepared) == 4)
    assert scene.log.reads == [[4], [5, 6, 7]]
    assert all(record.id.offset == offset for offset, record in scene.prepared)
    assert scene.source.statistics().fetched == 4


async def test_what_stands_beside_is_restored_within_a_part_of_the_budget() -> None:
    scene = Scene(beside=5, requests=20, budget=8)
    async with scene.running():
        for offset in range(4):
            scene.payloads.drop(scene.arrivals[offset].assignment, offset)
        scene.stage(8)
        await until(lambda: len(scene.prepared) == 1)
        assert scene.at_hand == [4, 5, 6, 7, 8, 9, 10]
        scene.stage(9)
        assert len(scene.prepared) == 2, "it is there before it is asked for"
    statistics = scene.source.statistics()
    assert (statistics.fetched, statistics.restored) == (1, 2)


async def test_what_stands_beside_pushes_out_the_end_of_the_backlog_and_not_its_head() -> None:
    scene = Scene(beside=2, requests=20, budget=8)
    async with scene.running():
        scene.stage(12)
        await until(lambda: len(scene.prepared) == 1)
    assert scene.at_hand == [0, 1, 2, 3, 4, 12, 13, 14]


async def test_a_record_that_the_log_has_no_more_is_refused_with_the_reason() -> None:
    scene = Scene()
    del scene.log.records[6]
    async with scene.running():
        scene.stage(5, 6)
        await until(lambda: bool(scene.prepared and scene.refused))
    (refused,) = scene.refused
    assert (refused.job.row, refused.error.code) == (6, "record_gone")
    assert scene.source.statistics().gone == 1


async def test_who_waits_during_an_outage_is_served_after_it(monkeypatch: Any) -> None:
    monkeypatch.setattr(payload_source, "_AGAIN_S", 0.0)
    scene = Scene()
    scene.log.away = True
    async with scene.running():
        scene.stage(4, 5)
        await until(lambda: len(scene.log.reads) == 3)
        assert not scene.prepared
        scene.log.away = False
        await until(lambda: len(scene.prepared) == 2)
    assert not scene.refused


async def test_a_partition_that_goes_while_its_record_is_read_frees_who_waits() -> None:
    scene = Scene()
    told: list[InboundRecord | Missing] = []
    async with scene.running():
        scene.log.go_on.clear()
        scene.stage(4)
        await until(lambda: len(scene.log.reads) == 1)
        scene.source.give(scene.arrivals[5], told.append)
        scene.source.revoke(scene.arrivals[0].assignment)
        assert told == [Missing.UNWANTED]
        assert [refused.job.row for refused in scene.refused] == [4], "the gate before the engine counts on one of them"
        scene.log.go_on.set()
        scene.stage(6)  # the engine has not heard of it yet
        await until(lambda: len(scene.refused) == 2)
        await until(lambda: scene.payloads.statistics().evicted == 0)
    assert (scene.prepared, scene.payloads.statistics().resident) == ([], 0)


async def test_a_record_that_comes_back_to_this_worker_meanwhile_is_another_one() -> None:
    """Its partition is revoked and given back during the read: the new request must not be taken for the old one."""
    scene = Scene()
    async with scene.running():
        scene.log.go_on.clear()
        scene.stage(4)
        await until(lambda: len(scene.log.reads) == 1)
        scene.source.revoke(scene.arrivals[0].assignment)
        again = arrival_of(4, epoch=2)
        scene.payloads.keep(again, record_of(again))
        scene.log.go_on.set()
        await until(lambda: scene.source.statistics().waiting == 0)
        assert scene.payloads.find(again) is not None
        assert not scene.prepared


async def test_get_waits_for_the_record() -> None:
    scene = Scene()
    async with scene.running(), asyncio.timeout(5):
        found = await scene.source.get(scene.arrivals[9])
        assert isinstance(found, InboundRecord)
        assert found.id.offset == 9
        scene.payloads.drop(scene.arrivals[8].assignment, 8)
        assert await scene.source.get(scene.arrivals[8]) is Missing.UNWANTED
