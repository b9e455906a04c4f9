"""The errors that are told in a sentence, whatever the command: whose they are to mend, and the sentence.

Knows their classes, and so loads the modules that raise them: for `workers.commands.explained`, when there is an error.
"""

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

__all__ = ["KNOWN", "is_users", "sentence"]

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
    RequestFailedError,
    UnreadableReplyError,
)

KNOWN: tuple[type[Exception], ...] = (*_WRONG, *_FAILED)


def is_users(error: Exception) -> bool:
    """Whether it is the user's to mend."""
    if isinstance(error, RequestFailedError):
        return error.status_code < 500
    return isinstance(error, _WRONG)


def sentence(error: Exception) -> str:
    if isinstance(error, RequestFailedError):
        return f"{error.status_code} {error.code}: {error.message}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or repr(error)
