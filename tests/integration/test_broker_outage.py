"""A broker that dies and comes back, under our producers and consumers.

Starting a broker is what costs time here, so one death and one absence serve all tests: the two fixtures act, the
tests look at what came of it.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.integration.conftest import read_topic
from topics.admin import KafkaAdmin
from topics.assignment import PartitionEpoch
from topics.catalogue import Catalogue, create_missing_topics
from topics.consumer import ClassConsumer, ConsumerStatistics
from topics.kafka_settings import KafkaSettings
from topics.local_broker import LocalBroker
from topics.producer import DeltaProducer, ReplyProducer
from topics.record import InboundRecord, RecordId
from topics.record_producer import ProducerStatistics, ProducerStoppedError, RecordProducer
from topics.replies import OutboundRecord, ReplyContext

pytestmark = [pytest.mark.broker, pytest.mark.timeout(200)]

CATALOGUE = Catalogue("outage", request_partitions=1, reply_partitions=2)


@dataclass
class Death:
    """What was seen of a broker that was killed under load and started again."""

    deltas_sent: int = 0
    delta_records: list[Any] = field(default_factory=list)
    reply_records: list[Any] = field(default_factory=list)
    acknowledged_while_dead: bool = True
    impatient: ProducerStatistics | None = None
    requests_received: list[bytes | None] = field(default_factory=list)
    consumer: ConsumerStatistics | None = None


@dataclass
class Absence:
    """What was seen of clients that were stopped while no broker ran."""

    producer_stop_s: float
    undelivered: BaseException | None
    consumer_stop_s: float
    tasks_left: int


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that no event tells of; the test's time-out is the deadline."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


class Scenario:
    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.settings = KafkaSettings(broker.bootstrap_servers, request_timeout_ms=5_000)
        self.context = ReplyContext("r", 1, CATALOGUE.deltas, CATALOGUE.replies)
        self.request = CATALOGUE.requests("p0")
        self.seen = Death()

    async def create_topics(self) -> None:
        async with KafkaAdmin(self.settings) as admin:
            await create_missing_topics(admin, CATALOGUE)

    def new_consumer(self) -> ClassConsumer:
        def on_records(partition: PartitionEpoch, records: Sequence[InboundRecord]) -> None:
            for record in records:
                self.seen.requests_received.append(record.value)
                assert consumer.complete(partition, record.id.offset) is None

        consumer = ClassConsumer(
            self.settings,
            topic=self.request,
            group=CATALOGUE.group("p0"),
            on_records=on_records,
            commit_interval_s=0.05,
        )
        return consumer

    async def death(self) -> Death:
        await self.create_topics()
        deltas, replies = DeltaProducer(self.settings), ReplyProducer(self.settings, "p0")
        impatient = RecordProducer(self.settings, "impatient", delivery_timeout_s=0.5, metadata_timeout_s=0.5)
        consumer = self.new_consumer()
        for started in (deltas, replies, impatient, consumer):
            await started.start()
        await impatient.submit(OutboundRecord(self.request, 0, b"k", b"before"))
        await eventually(lambda: consumer.statistics().commits == 1)

        back = asyncio.Event()
        sent: list[asyncio.Future[RecordId]] = []

        async def stream() -> None:
            while not back.is_set() or len(sent) < 300:
                await deltas.wait_for_room()
                sent.append(deltas.send(self.context.delta(b"", seq=len(sent), token_ids=[])))
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stream())
            await eventually(lambda: deltas.statistics().acknowledged > 10)
            await asyncio.to_thread(self.broker.kill)
            after = impatient.submit(OutboundRecord(self.request, 0, b"k", b"after"))
            waiting = tasks.create_task(replies.send_terminal(self.context.final(b"whole")))
            await eventually(lambda: impatient.statistics().rebuilds >= 1)
            self.seen.acknowledged_while_dead = waiting.done() or after.done()
            await asyncio.to_thread(self.broker.start)
            back.set()
        await asyncio.gather(after, *sent)
        await eventually(lambda: b"after" in self.seen.requests_received)
        await eventually(lambda: consumer.statistics().commits >= 2)
        self.seen.consumer, self.seen.impatient = consumer.statistics(), impatient.statistics()
        for stopped in (consumer, deltas, replies, impatient):
            await stopped.stop()
        self.seen.deltas_sent = len(sent)
        self.seen.delta_records = await read_topic(self.settings.bootstrap_servers, CATALOGUE.deltas)
        self.seen.reply_records = await read_topic(self.settings.bootstrap_servers, CATALOGUE.replies)
        return self.seen

    async def absence(self) -> Absence:
        loop = asyncio.get_running_loop()
        producer, consumer = RecordProducer(self.settings, "stopped"), self.new_consumer()
        await producer.start()
        await consumer.start()
        await consumer.wait_assigned()
        await producer.submit(OutboundRecord(CATALOGUE.replies, 0, b"k", b"delivered"))
        await asyncio.to_thread(self.broker.stop)
        undelivered = producer.submit(OutboundRecord(CATALOGUE.replies, 0, b"k", b"not delivered"))
        started_s = loop.time()
        await producer.stop(grace_s=0.5)
        producer_s = loop.time()
        await consumer.stop()
        consumer_s = loop.time()
        return Absence(
            producer_s - started_s, undelivered.exception(), consumer_s - producer_s, len(asyncio.all_tasks()) - 1
        )


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    with LocalBroker(tmp_path_factory.mktemp("own-kafka"), start_timeout_s=120.0) as broker:
        yield Scenario(broker)


@pytest.fixture(scope="module")
def death(scenario: Scenario) -> Death:
    return asyncio.run(scenario.death())


@pytest.fixture(scope="module")
def absence(scenario: Scenario, death: Death) -> Absence:
    """The last act: the broker stays away."""
    return asyncio.run(scenario.absence())


def test_a_stream_of_deltas_goes_on_in_order_without_a_gap(death: Death) -> None:
    seqs = [int(dict(record.headers)["seq"]) for record in death.delta_records]
    assert list(dict.fromkeys(seqs)) == list(range(death.deltas_sent))


def test_a_reply_waits_for_the_broker_and_is_delivered(death: Death) -> None:
    assert not death.acknowledged_while_dead
    assert {record.value for record in death.reply_records} == {b"whole"}


def test_a_late_acknowledgement_replaces_the_producer_underneath(death: Death) -> None:
    assert death.impatient is not None
    assert death.impatient.rebuilds >= 1
    assert death.impatient.in_flight_records == 0


def test_a_consumer_goes_on_where_it_was_and_commits(death: Death) -> None:
    assert death.consumer is not None
    assert list(dict.fromkeys(death.requests_received)) == [b"before", b"after"]
    assert (death.consumer.resident, death.consumer.unhealthy) == (0, None)


def test_a_producer_stops_while_no_broker_runs_and_says_what_was_not_delivered(absence: Absence) -> None:
    assert isinstance(absence.undelivered, ProducerStoppedError)
    assert absence.producer_stop_s < 12.0


def test_a_consumer_stops_while_no_broker_runs(absence: Absence) -> None:
    assert absence.consumer_stop_s < 25.0
    assert absence.tasks_left == 0
