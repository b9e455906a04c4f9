"""The catalogue against the broker: what is created, what is found wrong."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.conftest import KafkaHandle
from topics.admin import KafkaAdmin
from topics.aiokafka_producer import KafkaUnavailableError
from topics.catalogue import Catalogue, Severity, check_topics, create_missing_topics
from topics.kafka_settings import KafkaSettings

pytestmark = pytest.mark.broker


@pytest.fixture
async def admin(kafka: KafkaHandle) -> AsyncIterator[KafkaAdmin]:
    async with KafkaAdmin(KafkaSettings(kafka.bootstrap_servers)) as admin:
        yield admin


async def test_create_makes_every_topic_as_specified_and_a_second_time_nothing(
    admin: KafkaAdmin, topic_prefix: str
) -> None:
    catalogue = Catalogue(topic_prefix, request_partitions=3, reply_partitions=2)
    report = await create_missing_topics(admin, catalogue)
    assert set(report.created) == {spec.name for spec in catalogue.specs()}
    assert (report.existing, report.problems) == ((), ())

    state = (await admin.cluster()).topics
    configs = await admin.topic_configs(report.created)
    for spec in catalogue.specs():
        assert state[spec.name].partitions == spec.partitions
        assert configs[spec.name].items() >= spec.configs.items()

    again = await create_missing_topics(admin, catalogue)
    assert (again.created, set(again.existing)) == ((), set(report.created))
    assert again.problems == ()
    assert await check_topics(admin, catalogue) == []


async def test_a_missing_topic_is_an_error_with_the_command_that_creates_it(
    admin: KafkaAdmin, topic_prefix: str
) -> None:
    problems = await check_topics(admin, Catalogue(topic_prefix), labels=["p1"])
    assert f"{topic_prefix}.p1" in {problem.topic for problem in problems}
    assert f"{topic_prefix}.p0" not in {problem.topic for problem in problems}
    assert all(problem.severity is Severity.ERROR for problem in problems)
    assert all("headrace topics create" in str(problem) for problem in problems)


async def test_topics_that_differ_are_reported_and_left_alone(admin: KafkaAdmin, topic_prefix: str) -> None:
    catalogue = Catalogue(topic_prefix, request_partitions=2, reply_partitions=1)
    await admin.create_topic(
        catalogue.requests("p0"),
        partitions=2,
        replication_factor=1,
        configs={"cleanup.policy": "compact", "max.message.bytes": "1000"},
    )
    report = await create_missing_topics(admin, catalogue)
    assert report.existing == (catalogue.requests("p0"),)
    assert [(problem.severity, problem.message.split(",")[0]) for problem in report.problems] == [
        (Severity.ERROR, "has cleanup.policy=compact"),
        (Severity.WARNING, "has max.message.bytes=1000"),
        (Severity.WARNING, "has message.timestamp.type=CreateTime"),
    ]


async def test_fewer_partitions_than_workers_is_a_warning(admin: KafkaAdmin, topic_prefix: str) -> None:
    catalogue = Catalogue(topic_prefix, request_partitions=2, reply_partitions=1)
    await create_missing_topics(admin, catalogue)
    problems = await check_topics(admin, catalogue, labels=["p0", "p1"], workers=3)
    assert {problem.topic for problem in problems} == {f"{topic_prefix}.p0", f"{topic_prefix}.p1"}
    assert all("2 partitions for 3 workers: 1 of them" in problem.message for problem in problems)
    assert all(problem.severity is Severity.WARNING for problem in problems)


async def test_an_absent_broker_is_named() -> None:
    with pytest.raises(KafkaUnavailableError, match=r"127\.0\.0\.1:9.*check bootstrap_servers"):
        async with KafkaAdmin(KafkaSettings("127.0.0.1:9")):
            raise AssertionError("nobody listens there")
