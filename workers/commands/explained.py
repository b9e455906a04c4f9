"""What can go wrong around a command, told in one sentence: the shared way from named errors to an exit code.

Knows which errors are the user's to mend (`UsageError`, exit code 2) and which are failures of something else
(`CommandFailedError`, exit code 1). Everything else is a bug and keeps its traceback. `--log-level debug` shows the
traceback of all of them. Not a command itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kvcache.sizing import PoolSizeError
from scheduling.limits import LimitsError
from scheduling.policies import PolicyError
from scheduling.tree import TreeError
from topics.admin import AdminError
from topics.aiokafka_producer import KafkaUnavailableError
from topics.client import AnswerChangedError, RequestFailedError, RequestRefusedError, UnreadableReplyError
from topics.kafka_distribution import BrokerError
from topics.kafka_settings import KafkaSettingsError
from workers.cli import CommandFailedError, UsageError
from workers.configuration.config import ConfigError
from workers.instance import InstanceError
from workers.runners.errors import DeviceError, EndpointError, ModelError

__all__ = ["explained"]

_WRONG = (
    ConfigError,
    DeviceError,
    EndpointError,
    InstanceError,
    KafkaSettingsError,
    LimitsError,
    ModelError,
    PolicyError,
    PoolSizeError,
    RequestRefusedError,
    TreeError,
    UsageError,
)
_FAILED = (
    AdminError,
    AnswerChangedError,
    BrokerError,
    CommandFailedError,
    KafkaUnavailableError,
    OSError,  # a full disk, a connection that broke; a time-out is one too
    UnreadableReplyError,
)


@contextmanager
def explained(*failures: type[Exception]) -> Iterator[None]:
    """Raises `UsageError` or `CommandFailedError` for what is known to go wrong, `failures` included.

    A group of exceptions is told as its members are, if all of them are known.
    """
    known: tuple[type[Exception], ...] = (*_WRONG, *_FAILED, RequestFailedError, *failures)
    told: tuple[type[Exception], ...] = (*known, ExceptionGroup)
    try:
        yield
    except BrokenPipeError:
        raise  # of our own output: the command line knows what to do
    except told as error:
        leaves = list(_leaves(error))
        if not all(isinstance(leaf, known) for leaf in leaves):
            raise
        sentence = "\n".join(dict.fromkeys(map(_sentence, leaves)))
        if any(map(_is_users, leaves)):
            raise UsageError(sentence) from error
        raise CommandFailedError(sentence) from error


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _is_users(error: Exception) -> bool:
    if isinstance(error, RequestFailedError):
        return error.status_code < 500
    return isinstance(error, _WRONG)


def _sentence(error: Exception) -> str:
    if isinstance(error, RequestFailedError):
        return f"{error.status_code} {error.code}: {error.message}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or repr(error)
