"""Dead letters in their topic: listed, shown, sent again once."""

import json
from collections.abc import Callable

import pytest

from tests.integration.conftest import KafkaHandle, read_topic
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_missing_topics
from topics.dead_letter_box import DeadLetterBox, LetterPlace, NoSuchLetterError
from topics.dead_letters import DeadLetter
from topics.kafka_settings import KafkaSettings
from topics.record import InboundRecord, RecordId
from topics.record_producer import RecordProducer
from workers.cli import main

pytestmark = [pytest.mark.broker, pytest.mark.timeout(90)]

NewBox = Callable[[], DeadLetterBox]


@pytest.fixture
def settings(kafka: KafkaHandle) -> KafkaSettings:
    return KafkaSettings(kafka.bootstrap_servers)


@pytest.fixture
async def catalogue(settings: KafkaSettings, topic_prefix: str) -> Catalogue:
    """With five letters in it, of p1."""
    catalogue = Catalogue(topic_prefix, group_prefix=topic_prefix, request_partitions=1, reply_partitions=1)
    async with KafkaAdmin(settings) as admin:
        await create_missing_topics(admin, catalogue)
    producer = RecordProducer(settings, "letters")
    await producer.start()
    for number in range(5):
        record = InboundRecord(
            RecordId(catalogue.requests("p1"), 0, number), 0, b"k", b"body %d" % number, (("tenant", b"acme"),)
        )
        letter = DeadLetter.of(record, group="g", delivery_count=1, message=f"trouble {number}")
        await producer.submit(letter.encode(catalogue.dead_letters))
    await producer.stop()
    return catalogue


@pytest.fixture
def box(settings: KafkaSettings, catalogue: Catalogue) -> NewBox:
    return lambda: DeadLetterBox(settings, catalogue)


async def requests(settings: KafkaSettings, catalogue: Catalogue) -> list[bytes]:
    records = await read_topic(settings.bootstrap_servers, catalogue.requests("p1"), isolation_level="read_committed")
    return [record.value for record in records]


async def test_letters_are_read_with_where_they_came_from_and_why(box: NewBox, catalogue: Catalogue) -> None:
    async with box() as opened:
        letters = await opened.letters()
    assert [letter.place for letter in letters] == [LetterPlace(0, number) for number in range(5)]
    inner = letters[3].letter
    assert inner is not None
    assert (str(inner.origin), inner.message) == (f"{catalogue.requests('p1')}-0-3", "trouble 3")
    assert not any(letter.replayed for letter in letters)


async def test_a_letter_is_sent_again_once_with_its_key_its_bytes_and_its_own_headers(
    box: NewBox, settings: KafkaSettings, catalogue: Catalogue
) -> None:
    async with box() as opened:
        assert await opened.replay([LetterPlace(0, 3), LetterPlace(0, 1)]) == [LetterPlace(0, 3), LetterPlace(0, 1)]
    async with box() as opened:
        assert await opened.replay([LetterPlace(0, 1), LetterPlace(0, 4)]) == [LetterPlace(0, 4)]
        assert await opened.replay([LetterPlace(0, 1), LetterPlace(0, 4)]) == []
        assert [letter.replayed for letter in await opened.letters()] == [False, True, False, True, True]
    topic = catalogue.requests("p1")
    (first, *_) = await read_topic(settings.bootstrap_servers, topic, isolation_level="read_committed")
    assert (first.key, first.value, list(first.headers)) == (b"k", b"body 3", [("tenant", b"acme")])
    assert await requests(settings, catalogue) == [b"body 3", b"body 1", b"body 4"]


async def test_a_place_without_a_letter_is_named_before_anything_is_sent(
    box: NewBox, settings: KafkaSettings, catalogue: Catalogue
) -> None:
    async with box() as opened:
        with pytest.raises(NoSuchLetterError, match="0-99"):
            await opened.replay([LetterPlace(0, 1), LetterPlace(0, 99)])
    assert await requests(settings, catalogue) == []


def test_the_command_lists_shows_and_replays(
    kafka: KafkaHandle, catalogue: Catalogue, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA__GROUP_PREFIX", catalogue.group_prefix)
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", catalogue.prefix, "--json"]

    def said(*words: str) -> list[dict[str, object]]:
        assert main(["dlq", *words, *where]) == 0
        return [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    assert [letter["message"] for letter in said("list")] == [f"trouble {number}" for number in range(5)]
    (shown,) = said("show", "0-2")
    assert (shown["value"], shown["headers"]) == ("body 2", [["tenant", "acme"]])
    assert said("replay", "0-2") == [{"replayed": "0-2"}]
    assert said("replay", "0-2") == []
    assert len(said("replay", "--all")) == 4


@pytest.mark.parametrize(
    "words", [["list", "0-1"], ["show"], ["show", "0-1", "0-2"], ["replay"], ["replay", "0-1", "--all"], ["show", "x"]]
)
def test_what_the_user_got_wrong_is_said(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["dlq", *words]) == 2
    assert capfd.readouterr().err.startswith("headrace: ")
