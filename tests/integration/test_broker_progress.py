"""The journal of attempts and the limit on dead letters, against the broker."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.conftest import KafkaHandle, read_topic
from topics.admin import KafkaAdmin
from topics.assignment import Progress
from topics.attempt_notes import AttemptNote, PriorAttempts
from topics.catalogue import Catalogue, create_missing_topics
from topics.dead_letter_limit import DeadLetterLimit, DeadLetterRules, TooManyDeadLettersError
from topics.dead_letters import DeadLetter
from topics.kafka_settings import KafkaSettings
from topics.log_reader import LogReader, Stretch, StretchTooLongError
from topics.progress_journal import ProgressJournal
from topics.record import InboundRecord, RecordId
from topics.record_producer import RecordProducer
from topics.replies import OutboundRecord

pytestmark = [pytest.mark.broker, pytest.mark.timeout(90)]


@pytest.fixture
def settings(kafka: KafkaHandle) -> KafkaSettings:
    return KafkaSettings(kafka.bootstrap_servers)


@pytest.fixture
async def catalogue(settings: KafkaSettings, topic_prefix: str) -> Catalogue:
    catalogue = Catalogue(topic_prefix, group_prefix=topic_prefix, request_partitions=2, reply_partitions=2)
    async with KafkaAdmin(settings) as admin:
        await create_missing_topics(admin, catalogue)
    return catalogue


@pytest.fixture
async def journal(settings: KafkaSettings, catalogue: Catalogue) -> AsyncIterator[ProgressJournal]:
    groups = {catalogue.requests(label): catalogue.group(label) for label in ("p0", "p1")}
    opened = ProgressJournal(settings, catalogue.progress, groups)
    await opened.start()
    yield opened
    await opened.stop()


async def test_the_next_owner_finds_what_was_begun_and_nothing_of_others(
    journal: ProgressJournal, catalogue: Catalogue
) -> None:
    topic, note = catalogue.requests("p1"), AttemptNote(attempt=1, begun_ms=5)
    begun = [RecordId(topic, 1, 7), RecordId(topic, 0, 7), RecordId(catalogue.requests("p0"), 1, 7)]
    await asyncio.gather(*journal.write((record, note) for record in begun))
    await asyncio.gather(*journal.write([(begun[0], note.next())]))
    await journal.adopt(topic, 1, None)
    assert journal.prior(begun[0]) == PriorAttempts(note.next(), ended=False)
    assert journal.prior(begun[0]) is None, "it is told once"
    assert journal.prior(begun[1]) is None


async def test_a_tombstone_of_an_aborted_transaction_says_that_the_attempt_came_to_its_end(
    journal: ProgressJournal, catalogue: Catalogue, settings: KafkaSettings
) -> None:
    record, note = RecordId(catalogue.requests("p1"), 0, 3), AttemptNote(attempt=1, begun_ms=5)
    await asyncio.gather(*journal.write([(record, note)]))
    tombstone = journal.tombstone(record, 1)
    async with AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap_servers, transactional_id=catalogue.prefix
    ) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(
            tombstone.topic, None, key=tombstone.key, partition=tombstone.partition, headers=list(tombstone.headers)
        )
        # Open: another class's transaction must hold nobody up.
        await journal.adopt(record.topic, 0, None)
        await producer.abort_transaction()
    found = journal.prior(record)
    assert found == PriorAttempts(note, ended=True)
    assert found.crashes == 0


async def test_an_owner_that_wakes_up_says_nothing_of_the_next_ones_attempt(
    journal: ProgressJournal, catalogue: Catalogue
) -> None:
    record, first = RecordId(catalogue.requests("p1"), 0, 3), AttemptNote(attempt=1, begun_ms=5)
    second = first.next()
    await asyncio.gather(*journal.write([(record, first), (record, second), (record, replace(first, running=False))]))
    late = journal.tombstone(record, 1)
    await journal._producer.submit(late)
    await journal.adopt(record.topic, 0, None)
    assert journal.prior(record) == PriorAttempts(second, ended=False)


async def test_notes_of_what_is_complete_are_taken_away(
    journal: ProgressJournal, catalogue: Catalogue, settings: KafkaSettings
) -> None:
    record, note = RecordId(catalogue.requests("p1"), 0, 3), AttemptNote(attempt=1, begun_ms=5)
    await asyncio.gather(*journal.write([(record, note)]))
    await journal.adopt(record.topic, 0, Progress(4))
    assert journal.prior(record) is None
    await journal.stop()
    left = await read_topic(settings.bootstrap_servers, catalogue.progress)
    assert [each.value for each in left] == [note.encode(), None]


async def test_a_stretch_is_read_from_a_time_to_an_offset_and_refused_where_it_is_too_long(
    settings: KafkaSettings, catalogue: Catalogue
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers) as producer:
        for time_ms in range(1_000, 1_010):
            await producer.send_and_wait(catalogue.deltas, b"%d" % time_ms, partition=time_ms % 2, timestamp_ms=time_ms)

    def nothing(record: InboundRecord) -> None:
        pytest.fail(f"{record} was read")

    reader, found = LogReader(settings, "test"), list[InboundRecord]()
    try:
        stretches = {0: Stretch(since_ms=1_003), 1: Stretch(since_ms=1_003, end=4)}
        await reader.read(catalogue.deltas, stretches, found.append)
        assert sorted(record.value or b"" for record in found) == [b"1003", b"1004", b"1005", b"1006", b"1007", b"1008"]
        await reader.read(catalogue.deltas, {0: Stretch(since_ms=2_000)}, nothing)
        with pytest.raises(StretchTooLongError):
            await reader.read(catalogue.deltas, {0: Stretch()}, nothing, max_offsets=4)
        assert await reader.length(catalogue.deltas, 1_002) == 8
    finally:
        await reader.close()


async def test_the_limit_counts_requests_that_were_given_up_and_not_records_nobody_could_be_answered_for(
    settings: KafkaSettings, catalogue: Catalogue
) -> None:
    producer = RecordProducer(settings, "letters")
    await producer.start()

    async def letters(count: int, attempts: int) -> None:
        for offset in range(count):
            record = InboundRecord(RecordId(catalogue.requests("p1"), 0, offset), 0, b"k", b"{}", ())
            letter = DeadLetter.of(record, group="g", delivery_count=attempts, message="trouble")
            await producer.submit(letter.encode(catalogue.dead_letters))

    limit = DeadLetterLimit(
        settings, DeadLetterRules(60.0, 10, 0.5), letters=catalogue.dead_letters, replies=catalogue.replies
    )
    try:
        await letters(30, attempts=1)
        await letters(4, attempts=3)
        with pytest.raises(TooManyDeadLettersError, match=r"5 requests .* and 0 were answered"):
            await limit.check()
        for _ in range(5):
            await producer.submit(OutboundRecord(catalogue.replies, 0, b"r", b"{}"))
        await limit.check()
        await letters(6, attempts=3)
        with pytest.raises(TooManyDeadLettersError, match="the limit is 10"):
            await limit.check()
    finally:
        await limit.close()
        await producer.stop()
