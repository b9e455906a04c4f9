"""A consumer whose fetching died without a word: the watchdog puts a new one in its place, or gives up."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.conftest import KafkaHandle
from topics.admin import KafkaAdmin
from topics.assignment import PartitionEpoch
from topics.catalogue import Catalogue, create_missing_topics
from topics.consumer import ClassConsumer
from topics.consumer_watchdog import ConsumerStalledError, ConsumerWatchdog
from topics.current_consumer import CurrentConsumer
from topics.kafka_settings import KafkaSettings
from topics.record import InboundRecord

pytestmark = pytest.mark.broker


class Reader:
    """A consumer that can be made to poll and never fetch, which is how aiokafka stalls when its fetch task dies."""

    def __init__(self, bootstrap_servers: str, prefix: str) -> None:
        self.catalogue = Catalogue(prefix, group_prefix=prefix, request_partitions=1, reply_partitions=1)
        self.settings = KafkaSettings(bootstrap_servers)
        self.read: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.consumer = ClassConsumer(
            self.settings,
            topic=self.catalogue.requests("p1"),
            group=self.catalogue.group("p1"),
            on_records=self._take,
            session_timeout_ms=6_000,
        )

    def _take(self, partition: PartitionEpoch, records: Sequence[InboundRecord]) -> None:
        for record in records:
            self.read.put_nowait(record.value)

    async def break_down(self) -> None:
        """Nothing is fetched any more, what is under way included."""
        fetcher = self.consumer._current.now._fetcher
        tasks = {fetcher._fetch_task, *fetcher._pending_tasks}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def send(self, value: bytes) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.settings.bootstrap_servers) as producer:
            await producer.send_and_wait(self.catalogue.requests("p1"), value)

    def watchdog(self) -> ConsumerWatchdog:
        return ConsumerWatchdog(self.settings, [self.consumer], stall_s=1.0, interval_s=0.2)


@pytest.fixture
async def reader(kafka: KafkaHandle, topic_prefix: str) -> AsyncIterator[Reader]:
    made = Reader(kafka.bootstrap_servers, topic_prefix)
    async with KafkaAdmin(made.settings) as admin:
        await create_missing_topics(admin, made.catalogue)
    await made.consumer.start()
    await made.send(b"first")
    assert await asyncio.wait_for(made.read.get(), 20) == b"first"
    try:
        yield made
    finally:
        await made.consumer.stop()


@asynccontextmanager
async def watched(watchdog: ConsumerWatchdog) -> AsyncIterator["asyncio.Task[None]"]:
    stop = asyncio.Event()
    task = asyncio.create_task(watchdog.run(stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait({task})


async def test_it_is_replaced_and_reads_on(reader: Reader) -> None:
    async with watched(reader.watchdog()) as task:
        await reader.break_down()
        await reader.send(b"second")
        values = set()
        async with asyncio.timeout(30):
            while b"second" not in values:
                values.add(await reader.read.get())
        assert not task.done()
    assert reader.consumer.statistics().rebuilds == 1


async def test_an_idle_consumer_is_left_alone(reader: Reader) -> None:
    async with watched(reader.watchdog()) as task:
        await asyncio.sleep(2.5)  # a few looks, past the time after which a stalled one would be replaced
        assert not task.done()
    assert reader.consumer.statistics().rebuilds == 0


async def test_when_the_next_one_reads_nothing_either_it_gives_up(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = CurrentConsumer.open

    async def open_broken(current: CurrentConsumer) -> object:
        made = await opened(current)
        made._fetcher._fetch_task.cancel()  # it will not even learn where it stands
        return made

    monkeypatch.setattr(CurrentConsumer, "open", open_broken)
    await reader.break_down()
    await reader.send(b"second")
    async with watched(reader.watchdog()) as task:
        async with asyncio.timeout(30):
            await asyncio.wait({task})
    with pytest.raises(ConsumerStalledError):
        task.result()
