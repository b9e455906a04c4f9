"""What ends a worker before its time, in words that its user can act on.

Knows the errors that the parts of a worker end by, and how task groups wrap them. Does not know what is done about one:
the worker ends and is started again.
"""

from collections.abc import Iterator

from topics.aiokafka_producer import KafkaUnavailableError
from topics.consumer_watchdog import ConsumerStalledError
from topics.dead_letter_limit import TooManyDeadLettersError
from topics.known_topics import RecordRefusedError
from topics.record_producer import ProducerStoppedError
from workers.runners.errors import StepHangs

__all__ = ["WorkerFailedError", "named_failure"]


class WorkerFailedError(Exception):
    """A part of the worker broke: it must end and be started again."""


_NAMED = (WorkerFailedError, KafkaUnavailableError)
_IN_ITS_WORDS = (ConsumerStalledError, StepHangs, TooManyDeadLettersError)
_DELIVERY_BROKE = (RecordRefusedError, ProducerStoppedError)


def named_failure(group: ExceptionGroup[Exception]) -> Exception | None:
    """The first failure of a group: `WorkerFailedError`, `KafkaUnavailableError`. None: there is a bug among them, to
    be shown as it is."""
    expected, bugs = group.split((*_NAMED, *_IN_ITS_WORDS, *_DELIVERY_BROKE))
    if expected is None or bugs is not None:
        return None
    error = next(_errors_of(expected))
    if isinstance(error, _DELIVERY_BROKE):
        return WorkerFailedError(f"a reply can't be delivered: {error}")
    if isinstance(error, _IN_ITS_WORDS):
        return WorkerFailedError(str(error))
    return error


def _errors_of(group: ExceptionGroup[Exception]) -> Iterator[Exception]:
    """Those of the groups within it, too: a part may have a task group of its own."""
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _errors_of(error)
        else:
            yield error
