"""The class consumer against the shared broker: hand-out, commits, pauses, rebalances, lost offsets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from tests.integration.conftest import KafkaHandle
from tests.topics.raw_batches import RawName, send_raw
from topics.admin import KafkaAdmin
from topics.assignment import PartitionEpoch
from topics.consumer import ClassConsumer
from topics.kafka_settings import KafkaSettings
from topics.offsets import OffsetRefusal
from topics.record import InboundRecord

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


class Member:
    """A consumer and what it was given. Completes nothing by itself."""

    def __init__(self, settings: KafkaSettings, topic: str, **options: object) -> None:
        self.received: list[tuple[PartitionEpoch, InboundRecord]] = []
        self.assigned: list[PartitionEpoch] = []
        self.revoked: list[PartitionEpoch] = []
        self.completes = False
        self._news = asyncio.Event()
        arguments = {
            "on_records": self.on_records,
            "on_assigned": self.assigned.extend,
            "on_revoked": self.on_revoked,
            "commit_interval_s": 0.05,
            **options,
        }
        self.consumer = ClassConsumer(settings, topic=topic, group=f"g.{topic}", **arguments)  # type: ignore[arg-type]

    def on_records(self, partition: PartitionEpoch, records: Sequence[InboundRecord]) -> None:
        for record in records:
            self.received.append((partition, record))
            if self.completes:
                assert self.consumer.complete(partition, record.id.offset) is None
        self._news.set()

    async def on_revoked(self, partitions: Sequence[PartitionEpoch]) -> None:
        self.revoked.extend(partitions)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for _, record in self.received]

    async def received_at_least(self, count: int) -> None:
        while len(self.received) < count:
            self._news.clear()
            await self._news.wait()

    def complete(self, values: Iterable[bytes]) -> None:
        wanted = set(values)
        for partition, record in self.received:
            if record.value in wanted:
                assert self.consumer.complete(partition, record.id.offset) is None


NewMember = Callable[..., Awaitable[Member]]
Produce = Callable[..., Awaitable[None]]


@pytest.fixture
def settings(kafka: KafkaHandle) -> KafkaSettings:
    return KafkaSettings(kafka.bootstrap_servers)


@pytest.fixture
async def topic(settings: KafkaSettings, topic_prefix: str) -> str:
    async with KafkaAdmin(settings) as admin:
        await admin.create_topic(topic_prefix, partitions=4, replication_factor=1, configs={})
    return topic_prefix


@pytest.fixture
async def produce(settings: KafkaSettings, topic: str) -> AsyncIterator[Produce]:
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers) as producer:

        async def send(values: Iterable[bytes], partition: int | None = 0) -> None:
            for number, value in enumerate(values):
                await producer.send(topic, value, partition=number % 4 if partition is None else partition)
            await producer.flush()

        yield send


@pytest.fixture
async def join(settings: KafkaSettings, topic: str) -> AsyncIterator[NewMember]:
    async with AsyncExitStack() as stack:

        async def new(**options: object) -> Member:
            member = Member(settings, topic, **options)
            await member.consumer.start()
            stack.push_async_callback(member.consumer.stop)
            return member

        yield new


async def committed(consumer: ClassConsumer, topic: str, partition: int = 0) -> int | None:
    offset: int | None = await consumer._current.now.committed(TopicPartition(topic, partition))
    return offset


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - nothing says so
            await asyncio.sleep(0.02)


async def assigned(member: Member, times: int) -> None:
    """Return when it has been given partitions so often."""
    await until(lambda: len(member.assigned) >= times)


def texts(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


async def test_a_new_group_gets_everything_from_the_start_in_order(join: NewMember, produce: Produce) -> None:
    await produce(texts(0, 300))
    member = await join()
    await member.received_at_least(300)
    assert member.values == texts(0, 300)
    assert {partition.epoch for partition, _ in member.received} == {member.received[0][0].epoch}
    member.consumer.check_integrity()


async def test_a_restart_goes_on_at_the_base_and_repeats_nothing_that_is_complete_beyond_it(
    join: NewMember, produce: Produce
) -> None:
    await produce(texts(0, 6))
    member = await join()
    await member.received_at_least(6)
    member.complete(texts(0, 2))
    member.complete(texts(3, 5))
    await member.consumer.stop()

    again = await join()
    await again.received_at_least(2)
    assert again.values == [b"2", b"5"]
    assert member.consumer.complete(member.received[2][0], 2) is OffsetRefusal.STALE_EPOCH


async def test_commits_follow_completion_by_themselves(join: NewMember, produce: Produce, topic: str) -> None:
    await produce(texts(0, 5))
    member = await join()
    await member.received_at_least(5)
    assert await committed(member.consumer, topic) is None
    member.complete(texts(0, 5))
    while await committed(member.consumer, topic) != 5:  # noqa: ASYNC110 - only the broker knows
        await asyncio.sleep(0.02)
    statistics = member.consumer.statistics()
    assert (statistics.resident, statistics.completed_beyond_base, statistics.unread) == (0, 0, 0)
    assert (statistics.commits_failed, statistics.commits_rejected, statistics.unhealthy) == (0, 0, None)


async def test_a_paused_consumer_gets_nothing_until_it_goes_on_and_misses_nothing(
    join: NewMember, produce: Produce
) -> None:
    member = await join()
    member.consumer.set_paused(True)
    await member.consumer.wait_assigned()
    await produce(texts(0, 50))
    # Long enough for several polls to have found the records, had they been allowed to.
    polled_s = member.consumer.statistics().last_poll_s
    while member.consumer.statistics().last_poll_s < polled_s + 1.0:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert member.values == []
    member.consumer.set_paused(False)
    await member.received_at_least(50)
    assert member.values == texts(0, 50)


async def test_a_second_member_takes_its_share_and_gives_it_back(join: NewMember, produce: Produce) -> None:
    first = await join()
    first.completes = True
    await first.consumer.wait_assigned()
    assert sorted(partition.partition for partition in first.assigned) == [0, 1, 2, 3]

    second = await join()
    second.completes = True
    await second.consumer.wait_assigned()
    assert first.revoked == first.assigned[:4]
    await produce(texts(0, 40), partition=None)
    while len(first.received) + len(second.received) < 40:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert sorted(map(int, filter(None, [*first.values, *second.values]))) == list(range(40))
    assert len(first.received) == len(second.received) == 20

    await second.consumer.stop()
    await produce(texts(40, 80), partition=None)
    await first.received_at_least(20 + 40)
    assert sorted(map(int, filter(None, first.values[20:]))) == list(range(40, 80))


async def test_members_keep_what_they_have_as_others_come_and_go(join: NewMember) -> None:
    first = await join()
    await first.consumer.wait_assigned()
    second = await join()
    await assigned(first, 4 + 2)
    await assigned(second, 2)
    third = await join()
    await assigned(third, 1)
    await until(lambda: len(first.assigned) + len(second.assigned) == 4 + 2 + 2 + 3)
    await third.consumer.stop()
    await until(lambda: len(first.assigned) + len(second.assigned) == 4 + 2 + 2 + 3 + 4)
    for member in (first, second):
        had = [partition.partition for partition in member.assigned[4 if member is first else 0 :][:2]]
        later = [partition.partition for partition in member.assigned[6 if member is first else 2 :]]
        assert set(later) == set(had), "it was given another's"


async def test_a_member_of_an_earlier_release_shares_its_partitions(
    settings: KafkaSettings, join: NewMember, topic: str
) -> None:
    """It knows round robin alone."""
    new = await join()
    await new.consumer.wait_assigned()
    old = AIOKafkaConsumer(topic, bootstrap_servers=settings.bootstrap_servers, group_id=f"g.{topic}")
    async with old:
        await assigned(new, 4 + 2)
        await until(lambda: len(old.assignment()) == 2)


async def test_unfinished_work_of_a_revoked_partition_comes_again_in_a_new_epoch(
    join: NewMember, produce: Produce
) -> None:
    await produce(texts(0, 8), partition=None)
    first = await join()
    await first.received_at_least(8)
    first.complete(texts(0, 4))

    second = await join()
    await second.consumer.wait_assigned()
    while len(first.received) + len(second.received) < 8 + 4:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    again = [*first.received[8:], *second.received]
    assert sorted(record.value or b"" for _, record in again) == texts(4, 8)
    for partition, record in first.received[:8]:
        assert first.consumer.complete(partition, record.id.offset) is OffsetRefusal.STALE_EPOCH


async def test_records_that_expired_unread_are_counted_and_the_rest_goes_on_in_a_new_epoch(
    settings: KafkaSettings, join: NewMember, produce: Produce, topic: str
) -> None:
    await produce(texts(0, 10))
    member = await join()
    await member.received_at_least(10)
    member.complete(texts(0, 2))
    await member.consumer.stop()
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    await admin.start()
    await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=6)})
    await admin.close()

    again = await join()
    again.completes = True
    await again.received_at_least(4)
    statistics = again.consumer.statistics()
    assert again.values == texts(6, 10)
    assert (statistics.offset_resets, statistics.records_lost) == (1, 4)
    assert [partition for partition in again.revoked if partition.partition == 0] != []
    assert again.received[0][0].epoch > again.revoked[0].epoch
    while await committed(again.consumer, topic) != 10:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_markers_and_aborted_records_leave_holes_that_hold_nothing_back(
    settings: KafkaSettings, join: NewMember, topic: str
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers, transactional_id=topic) as producer:
        async with producer.transaction():
            await producer.send(topic, b"a", partition=0)
        await producer.begin_transaction()
        await producer.send(topic, b"aborted", partition=0)
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(topic, b"b", partition=0)
    member = await join()
    member.completes = True
    await member.received_at_least(2)
    assert member.values == [b"a", b"b"]
    assert [record.id.offset for _, record in member.received] == [0, 4]
    while await committed(member.consumer, topic) != 5:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_a_header_name_that_is_not_utf_8_stops_neither_its_record_nor_its_neighbours(
    settings: KafkaSettings, join: NewMember, topic: str
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers) as producer:
        bad = (b"k", b"bad", [(RawName(b"\xff\xfe"), b"value"), ("request-id", b"r")])
        await send_raw(producer, topic, 0, [(b"k", b"before", []), bad, (b"k", b"behind", [])])
        await send_raw(producer, topic, 0, [(b"k", b"later", [])])
    member = await join()
    member.completes = True
    await member.received_at_least(4)
    assert member.values == [b"before", b"bad", b"behind", b"later"]
    assert member.received[1][1].headers == ((r"\xff\xfe", b"value"), ("request-id", b"r"))
    while await committed(member.consumer, topic) != 4:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert member.consumer.statistics().rebuilds == 0


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
async def test_records_arrive_whatever_their_producer_compresses_with(
    settings: KafkaSettings, join: NewMember, topic: str, codec: str
) -> None:
    values = [bytes([65 + number]) * 2_000 for number in range(5)]
    async with AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap_servers, compression_type=codec, linger_ms=50
    ) as producer:
        for value in values:
            await producer.send(topic, value, partition=0)
        await producer.flush()
    member = await join()
    await member.received_at_least(5)
    assert member.values == values


async def test_a_failing_callback_is_counted_and_makes_the_consumer_unhealthy(
    join: NewMember, produce: Produce
) -> None:
    async def fail(partitions: Sequence[PartitionEpoch]) -> None:
        raise RuntimeError("cannot drain")

    first = await join(on_revoked=fail)
    await first.consumer.wait_assigned()
    second = await join()
    await second.consumer.wait_assigned()
    statistics = first.consumer.statistics()
    assert statistics.callback_failures == 1
    assert "cannot drain" in str(statistics.unhealthy)
    await produce(texts(0, 8), partition=None)
    await first.received_at_least(4)


async def test_a_callback_that_takes_too_long_does_not_hold_the_group_up(join: NewMember) -> None:
    never = asyncio.Event()

    async def hang(partitions: Sequence[PartitionEpoch]) -> None:
        await never.wait()

    first = await join(on_revoked=hang, revoke_timeout_s=0.2)
    await first.consumer.wait_assigned()
    second = await join()
    async with asyncio.timeout(20.0):
        await second.consumer.wait_assigned()


async def test_a_bug_in_on_records_ends_the_consumer_and_is_raised(
    settings: KafkaSettings, topic: str, produce: Produce
) -> None:
    def fail(partition: PartitionEpoch, records: Sequence[InboundRecord]) -> None:
        raise ZeroDivisionError

    member = Member(settings, topic, on_records=fail)
    await member.consumer.start()
    await produce(texts(0, 1))
    with pytest.raises(ZeroDivisionError):
        await member.consumer.wait_closed()
    assert "ZeroDivisionError" in str(member.consumer.statistics().unhealthy)
    with pytest.raises(ZeroDivisionError):
        await member.consumer.stop()


async def test_what_was_complete_before_a_bug_is_committed_by_stop(
    settings: KafkaSettings, join: NewMember, topic: str, produce: Produce
) -> None:
    def take(partition: PartitionEpoch, records: Sequence[InboundRecord]) -> None:
        for record in records:
            assert member.consumer.complete(partition, record.id.offset) is None
        if records[-1].value == b"2":
            raise ZeroDivisionError

    member = Member(settings, topic, on_records=take, commit_interval_s=60.0)
    await member.consumer.start()
    await produce(texts(0, 3))
    with pytest.raises(ZeroDivisionError):
        await member.consumer.wait_closed()
    with pytest.raises(ZeroDivisionError):
        await member.consumer.stop()
    assert member.consumer.statistics().commits == 1
    again = await join()
    await produce([b"3"])
    await again.received_at_least(1)
    assert again.values == [b"3"]


@pytest.mark.parametrize("task", ["consume", "commit"])
async def test_a_task_that_is_ended_from_outside_is_no_orderly_end(
    settings: KafkaSettings, topic: str, task: str
) -> None:
    member = Member(settings, topic)
    await member.consumer.start()
    await member.consumer.wait_assigned()
    assert member.consumer.unhealthy is None
    (running,) = [each for each in asyncio.all_tasks() if each.get_name() == f"{task}-{topic}"]
    running.cancel()
    async with asyncio.timeout(5.0):
        with pytest.raises(RuntimeError, match=f"{task}-{topic}.*from outside"):
            await member.consumer.wait_closed()
    assert member.consumer.unhealthy is not None
    with pytest.raises(RuntimeError, match="from outside"):
        await member.consumer.stop()
    assert len(asyncio.all_tasks()) == 1


async def test_a_commit_that_fails_unexpectedly_ends_the_consumer_and_the_epochs(
    settings: KafkaSettings, topic: str, produce: Produce
) -> None:
    member = Member(settings, topic)
    await member.consumer.start()
    await produce(texts(0, 1))
    await member.received_at_least(1)
    (partition, record) = member.received[0]
    # A bug of ours, as good as any: an offset that is none.
    member.consumer._assignment._held[0].tracker._stretch.base = "no offset"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="no offset"):
        await member.consumer.wait_closed()
    with pytest.raises(ValueError, match="no offset"):
        await member.consumer.revoked([0])
    assert member.consumer.complete(partition, record.id.offset) is OffsetRefusal.STALE_EPOCH
    with pytest.raises(ValueError, match="no offset"):
        await member.consumer.stop()


async def test_a_fault_that_every_new_consumer_meets_is_met_slowly_and_forgotten_when_it_is_gone(
    settings: KafkaSettings, join: NewMember, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers, compression_type="zstd") as producer:
        await producer.send_and_wait(topic, bytes(5_000), partition=0)
    with monkeypatch.context() as without:
        # An installation without the library that decompresses.
        without.setattr("aiokafka.codec.cramjam", None)
        member = await join()
        while member.consumer.statistics().rebuilds < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        second_s = asyncio.get_running_loop().time()
        assert "replaced after" in str(member.consumer.unhealthy)
    await member.received_at_least(1)
    assert asyncio.get_running_loop().time() - second_s >= 1.0
    while member.consumer.unhealthy is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_large_records_are_handed_out_one_by_one_and_the_loop_has_its_turn_between(
    settings: KafkaSettings, topic: str, join: NewMember, produce: Produce
) -> None:
    turns = 0
    calls: list[tuple[int, int]] = []

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def take(partition: PartitionEpoch, records: Sequence[InboundRecord]) -> None:
        calls.append((turns, sum(record.size_bytes for record in records)))

    await produce([bytes(200_000)] * 6)
    member = await join(on_records=take, max_bytes=450_000)
    counting = asyncio.create_task(count())
    while sum(size for _, size in calls) < 1_200_000:  # noqa: ASYNC110
        await asyncio.sleep(0)
    counting.cancel()
    assert max(size for _, size in calls) <= 450_000
    assert len({turn for turn, _ in calls}) == len(calls)
    assert member.consumer.statistics().records == 6


async def test_stop_leaves_no_task_behind(settings: KafkaSettings, topic: str) -> None:
    member = Member(settings, topic)
    await member.consumer.start()
    await member.consumer.stop()
    assert len(asyncio.all_tasks()) == 1
