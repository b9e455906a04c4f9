"""What a worker says when it must end."""

import pytest

from topics.aiokafka_producer import KafkaUnavailableError
from topics.kafka_settings import KafkaSettings
from topics.record_producer import ProducerStoppedError
from workers.runners.errors import StepHangs
from workers.worker_failure import WorkerFailedError, named_failure

AWAY = KafkaUnavailableError(KafkaSettings("127.0.0.1:9"), TimeoutError())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StepHangs("no step for 60 s"), "no step for 60 s"),
        (ProducerStoppedError("the producer deltas is not running"), "can't be delivered: the producer deltas"),
        (WorkerFailedError("the engine broke: …"), "the engine broke"),
    ],
)
def test_a_failure_of_a_part_is_the_workers_own(error: Exception, words: str) -> None:
    failure = named_failure(ExceptionGroup("", [error]))
    assert isinstance(failure, WorkerFailedError)
    assert words in str(failure)


def test_a_broker_that_is_away_keeps_its_name() -> None:
    assert named_failure(ExceptionGroup("", [AWAY])) is AWAY


def test_a_failure_within_a_parts_own_task_group_is_named_too() -> None:
    stopped = ProducerStoppedError("the producer control is not running")
    failure = named_failure(ExceptionGroup("", [ExceptionGroup("", [stopped]), AWAY]))
    assert isinstance(failure, WorkerFailedError)
    assert "the producer control" in str(failure)


def test_a_bug_is_shown_as_it_is() -> None:
    assert named_failure(ExceptionGroup("", [AWAY, ExceptionGroup("", [KeyError("row")])])) is None
