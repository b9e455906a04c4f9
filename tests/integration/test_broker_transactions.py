"""Terminal replies and the commit of their requests as one transaction, against the shared broker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.conftest import KafkaHandle, read_topic
from topics.admin import KafkaAdmin
from topics.aiokafka_fencing import GroupMember
from topics.assignment import PartitionEpoch, Progress
from topics.catalogue import Catalogue, create_missing_topics
from topics.consumer import ClassConsumer
from topics.kafka_settings import KafkaSettings
from topics.known_topics import RecordRefusedError
from topics.offsets import CompletedRun
from topics.record import InboundRecord
from topics.replies import OutboundRecord
from topics.terminal_replies import Fate, TerminalReply
from topics.transactional_replies import TransactionalReplies

pytestmark = [pytest.mark.broker, pytest.mark.timeout(90)]


class Scene:
    """A consumer of p0 and its transactional replies, as a worker has them."""

    def __init__(
        self,
        settings: KafkaSettings,
        catalogue: Catalogue,
        instance: str,
        instance_id: str | None = None,
        transaction_timeout_ms: int = 10_000,
    ) -> None:
        self.received: list[tuple[PartitionEpoch, int, bytes]] = []
        self.news = asyncio.Event()
        self.catalogue = catalogue
        self.consumer = ClassConsumer(
            settings,
            topic=catalogue.requests("p0"),
            group=catalogue.group("p0"),
            on_records=self.on_records,
            settle=self.settle,
            maps_topic=catalogue.offsets,
            instance_id=instance_id,
            session_timeout_ms=6_000,
        )
        self.replies = TransactionalReplies(
            settings,
            self.consumer.offsets,
            role="replies-p0",
            transactional_id=f"{catalogue.group('p0')}.{instance}",
            maps_topic=catalogue.offsets,
            transaction_timeout_ms=transaction_timeout_ms,
        )

    async def settle(self) -> None:
        await self.replies.settle()

    def on_records(self, partition: PartitionEpoch, records: Sequence[InboundRecord]) -> None:
        for record in records:
            self.received.append((partition, record.id.offset, record.value or b""))
        self.news.set()

    async def receive(self, count: int) -> list[bytes]:
        while len(self.received) < count:
            self.news.clear()
            await self.news.wait()
        return [value for _, _, value in self.received]

    def reply(self, value: bytes, topic: str | None = None, body: bytes | None = None) -> TerminalReply:
        """The answer to the request of this value: `re: ` and the value itself."""
        partition, offset = next((place, offset) for place, offset, got in self.received if got == value)
        record = OutboundRecord(topic or self.catalogue.replies, None, value, body or b"re: " + value)
        return TerminalReply(record, partition, offset)

    async def progress(self, number: int = 0) -> Progress | None:
        """What the group has committed, once it is stable."""
        (place,) = self.consumer._assignment.current([number])
        while place not in (found := await self.consumer.offsets.read_progress([place])):  # noqa: ASYNC110 - only Kafka knows
            await asyncio.sleep(0.02)
        return found[place]


NewScene = Callable[..., Awaitable[Scene]]
Visible = Callable[[int], Awaitable[list[bytes]]]
Produce = Callable[[Iterable[bytes]], Awaitable[None]]


@pytest.fixture
def settings(kafka: KafkaHandle) -> KafkaSettings:
    return KafkaSettings(kafka.bootstrap_servers)


@pytest.fixture
async def catalogue(settings: KafkaSettings, topic_prefix: str) -> Catalogue:
    catalogue = Catalogue(topic_prefix, group_prefix=topic_prefix, request_partitions=1, reply_partitions=2)
    async with KafkaAdmin(settings) as admin:
        await create_missing_topics(admin, catalogue)
    return catalogue


@pytest.fixture
async def scene(settings: KafkaSettings, catalogue: Catalogue) -> AsyncIterator[NewScene]:
    async with AsyncExitStack() as stack:

        async def new(instance: str = "host-0", instance_id: str | None = None, **options: int) -> Scene:
            built = Scene(settings, catalogue, instance, instance_id, **options)
            await built.replies.start()
            stack.push_async_callback(built.replies.stop, 2.0)
            await built.consumer.start()
            stack.push_async_callback(built.consumer.stop)
            return built

        yield new


@pytest.fixture
async def produce(settings: KafkaSettings, catalogue: Catalogue) -> AsyncIterator[Produce]:
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers) as producer:

        async def send(values: Iterable[bytes]) -> None:
            for value in values:
                await producer.send(catalogue.requests("p0"), value)
            await producer.flush()

        yield send


@pytest.fixture
def visible(settings: KafkaSettings, catalogue: Catalogue) -> Visible:
    """What a reader of committed replies sees, once it sees so many."""

    async def read(count: int) -> list[bytes]:
        while True:
            records = await read_topic(settings.bootstrap_servers, catalogue.replies, isolation_level="read_committed")
            # The markers of a transaction are written a moment after its end.
            if len(records) >= count:
                return sorted(record.value for record in records)

    return read


def texts(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


async def test_replies_and_the_progress_of_their_requests_become_visible_together(
    scene: NewScene, produce: Produce, visible: Visible
) -> None:
    await produce(texts(0, 6))
    worker = await scene()
    await worker.receive(6)
    outcomes = await worker.replies.deliver([worker.reply(value) for value in (b"0", b"2", b"3")])
    assert outcomes == [Fate.DELIVERED] * 3
    assert await visible(3) == [b"re: 0", b"re: 2", b"re: 3"]
    assert await worker.progress() == Progress(1, (CompletedRun(2, 3),))
    assert worker.replies.transactions().committed == 1
    worker.consumer.check_integrity()


async def test_the_next_owner_gets_what_was_not_answered_and_nothing_else(scene: NewScene, produce: Produce) -> None:
    await produce(texts(0, 6))
    first = await scene()
    await first.receive(6)
    await first.replies.deliver([first.reply(value) for value in (b"0", b"2", b"5")])
    await first.consumer.stop()
    second = await scene("host-1")
    assert await second.receive(3) == [b"1", b"3", b"4"]


async def test_a_reply_that_cannot_be_delivered_concerns_no_other(
    scene: NewScene, produce: Produce, visible: Visible
) -> None:
    await produce(texts(0, 4))
    worker = await scene()
    await worker.receive(4)
    bad = worker.reply(b"0", topic=f"{worker.catalogue.prefix}.nowhere")
    too_large = worker.reply(b"1", topic=worker.catalogue.control, body=bytes(2 * 2**20))
    outcomes = await worker.replies.deliver([bad, worker.reply(b"2"), too_large, worker.reply(b"3")])
    assert [isinstance(outcome, RecordRefusedError) for outcome in outcomes] == [True, False, True, False]
    assert await visible(2) == [b"re: 2", b"re: 3"]
    assert await worker.progress() == Progress(0, (CompletedRun(2, 3),))


@pytest.mark.parametrize("committed", [True, False])
async def test_a_transaction_whose_end_is_not_known_is_looked_up_and_nothing_is_said_twice(
    scene: NewScene, produce: Produce, visible: Visible, committed: bool
) -> None:
    await produce(texts(0, 3))
    worker = await scene()
    await worker.receive(3)
    commit = worker.replies._producer.commit_transaction

    async def no_answer() -> None:
        if committed:
            await commit()
        raise TimeoutError

    worker.replies._producer.commit_transaction = no_answer
    assert await worker.replies.deliver([worker.reply(value) for value in texts(0, 2)]) == [Fate.DELIVERED] * 2
    assert worker.replies.statistics().rebuilds == 1
    assert await visible(2) == [b"re: 0", b"re: 1"]
    assert await worker.progress() == Progress(2)
    assert await worker.replies.deliver([worker.reply(b"2")]) == [Fate.DELIVERED]
    assert await worker.progress() == Progress(3)


async def test_what_takes_longer_than_its_transaction_may_goes_in_smaller_ones(
    scene: NewScene, produce: Produce, visible: Visible, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that takes 0.15 s for each reply: sixteen take longer than the second that a transaction has."""
    await produce(texts(0, 16))
    worker = await scene(transaction_timeout_ms=1_000)
    await worker.receive(16)
    sizes: list[int] = []
    send_all = TransactionalReplies._send_all

    async def slowly(replies: TransactionalReplies, producer: Any, batch: Any) -> None:
        sizes.append(len(batch))
        await send_all(replies, producer, batch)
        await asyncio.sleep(0.15 * len(batch))

    monkeypatch.setattr(TransactionalReplies, "_send_all", slowly)
    outcomes = await worker.replies.deliver([worker.reply(value) for value in texts(0, 16)])
    assert outcomes == [Fate.DELIVERED] * 16
    assert sizes[:2] == [16, 8]
    assert await visible(16) == sorted(b"re: " + value for value in texts(0, 16))
    assert await worker.progress() == Progress(16, ())


async def test_a_refused_generation_ends_in_lost_replies_that_nobody_sees(
    scene: NewScene, produce: Produce, visible: Visible
) -> None:
    await produce(texts(0, 2))
    worker = await scene()
    await worker.receive(2)
    member = worker.consumer.offsets.member
    worker.consumer.offsets._member = GroupMember(member.group, member.member_id, member.generation - 1)
    assert await worker.replies.deliver([worker.reply(b"0")]) == [Fate.UNDELIVERED]
    assert worker.replies.transactions().fenced == 1
    worker.consumer.offsets._member = member
    assert await worker.replies.deliver([worker.reply(b"1")]) == [Fate.DELIVERED]
    assert await visible(1) == [b"re: 1"]


async def test_what_is_revoked_before_it_is_sent_is_lost(scene: NewScene, produce: Produce, visible: Visible) -> None:
    await produce(texts(0, 1))
    worker = await scene()
    await worker.receive(1)
    reply = worker.reply(b"0")
    await worker.consumer.revoked([0])
    assert await worker.replies.deliver([reply]) == [Fate.UNDELIVERED]
    assert await visible(0) == []


async def test_a_revocation_waits_for_the_open_transaction(scene: NewScene, produce: Produce, visible: Visible) -> None:
    await produce(texts(0, 1))
    worker = await scene()
    await worker.receive(1)
    begun, go_on = asyncio.Event(), asyncio.Event()
    commit = worker.replies._producer.commit_transaction

    async def slow_commit() -> None:
        begun.set()
        await go_on.wait()
        await commit()

    worker.replies._producer.commit_transaction = slow_commit
    delivering = asyncio.create_task(worker.replies.deliver([worker.reply(b"0")]))
    await begun.wait()
    revoking = asyncio.create_task(worker.consumer.revoked([0]))
    await asyncio.sleep(0)
    assert not revoking.done()
    go_on.set()
    await revoking
    assert await delivering == [Fate.DELIVERED]
    assert await visible(1) == [b"re: 0"]


async def test_a_start_under_the_same_name_ends_what_a_killed_worker_left_open(
    scene: NewScene, produce: Produce, visible: Visible
) -> None:
    await produce(texts(0, 2))
    killed = await scene()
    await killed.receive(2)
    reached = asyncio.Event()

    async def never() -> None:
        reached.set()
        await asyncio.Event().wait()

    killed.replies._producer.commit_transaction = never
    dying = asyncio.create_task(killed.replies.deliver([killed.reply(b"0")]))
    await reached.wait()
    dying.cancel()
    await asyncio.wait({dying})
    (place,) = killed.consumer._assignment.current([0])
    assert await killed.consumer.offsets.read_progress([place]) == {}, "its offset is not stable"

    heir = Scene(killed.consumer._settings, killed.catalogue, "host-0")
    await heir.replies.start()
    try:
        assert await killed.progress() is None
        assert await visible(0) == []
    finally:
        await heir.replies.stop()


async def test_a_reply_that_may_have_been_delivered_is_not_called_undelivered(
    scene: NewScene, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of its transaction is unknown when its partition is taken away, and nobody has looked yet."""
    await produce(texts(0, 1))
    worker = await scene()
    await worker.receive(1)

    async def no_answer() -> None:
        raise TimeoutError

    async def not_yet(_: object) -> dict[PartitionEpoch, Progress | None]:
        return {}

    monkeypatch.setattr(worker.replies._producer, "commit_transaction", no_answer)
    monkeypatch.setattr(worker.consumer.offsets, "read_progress", not_yet)
    delivering = asyncio.create_task(worker.replies.deliver([worker.reply(b"0")]))
    while not worker.replies.statistics().rebuilds:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.01)
    await worker.consumer.revoked([0])
    assert await delivering == [Fate.LOST]


async def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
    scene: NewScene, produce: Produce, visible: Visible
) -> None:
    await produce(texts(0, 2))
    old = await scene("host-0", "static-0")
    await old.receive(2)
    late = old.reply(b"0")
    member = old.consumer.offsets.member
    await old.consumer.stop()
    new = await scene("host-1", "static-0")
    await new.receive(2)
    assert new.consumer.offsets.member.generation == member.generation
    assert new.consumer.offsets.member.member_id != member.member_id
    assert await old.replies.deliver([late]) == [Fate.UNDELIVERED]
    assert await new.replies.deliver([new.reply(value) for value in texts(0, 2)]) == [Fate.DELIVERED] * 2
    assert await visible(2) == [b"re: 0", b"re: 1"]


async def test_a_map_without_room_in_the_commit_stands_in_a_record_of_the_transaction(
    scene: NewScene, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.offset_map.METADATA_BYTES", 10)
    await produce(texts(0, 40))
    first = await scene()
    await first.receive(40)
    await first.replies.deliver([first.reply(value) for value in texts(0, 40)[1::2]])
    assert first.replies.transactions().overflowed_maps == 1
    await first.consumer.stop()
    second = await scene("host-1")
    assert await second.receive(20) == texts(0, 40)[0::2]
    assert second.consumer.statistics().metadata_unreadable == 0


async def test_metadata_that_cannot_be_read_is_counted_and_the_base_believed(
    scene: NewScene, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    await produce(texts(0, 4))
    first = await scene()
    await first.receive(4)
    with monkeypatch.context() as patched:
        patched.setattr("topics.transactional_replies.text_of", lambda _body: "h9 of a later release")
        await first.replies.deliver([first.reply(value) for value in (b"0", b"2")])
    await first.consumer.stop()
    second = await scene("host-1")
    assert await second.receive(3) == [b"1", b"2", b"3"]
    assert second.consumer.statistics().metadata_unreadable == 1


async def test_a_stop_leaves_no_task_behind(settings: KafkaSettings, catalogue: Catalogue) -> None:
    built: Any = Scene(settings, catalogue, "host-0")
    await built.replies.start()
    await built.replies.stop(0.5)
    assert len(asyncio.all_tasks()) == 1
