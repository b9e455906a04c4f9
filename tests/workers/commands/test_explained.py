"""Named errors become one sentence and an exit code; bugs stay bugs."""

import errno

import pytest

from scheduling.limits import LimitsError
from scheduling.policies import PolicyError
from scheduling.tree import TreeError
from topics.admin import AdminError
from topics.client import ReplyTimeoutError, RequestFailedError
from topics.kafka_distribution import BrokerError
from topics.kafka_settings import KafkaSettingsError
from workers.cli import CommandFailedError, UsageError
from workers.commands.explained import explained

FULL = OSError(errno.ENOSPC, "No space left on device", "/state/broker.log")


def failed(status_code: int) -> RequestFailedError:
    return RequestFailedError("r", {"message": "m", "type": "t", "code": "c", "status_code": status_code})


@pytest.mark.parametrize("error", [LimitsError("x"), PolicyError("x"), TreeError("x"), KafkaSettingsError("x")])
def test_what_the_user_got_wrong(error: Exception) -> None:
    with pytest.raises(UsageError, match=r"^x$"), explained():
        raise error


@pytest.mark.parametrize("error", [AdminError("x"), BrokerError("x"), ReplyTimeoutError("x")])
def test_what_failed(error: Exception) -> None:
    with pytest.raises(CommandFailedError, match=r"^x$"), explained():
        raise error


def test_a_file_is_named() -> None:
    with pytest.raises(CommandFailedError, match=r"^/state/broker\.log: No space left on device$"), explained():
        raise FULL


def test_a_sentence_is_never_empty() -> None:
    with pytest.raises(CommandFailedError, match="TimeoutError"), explained():
        raise TimeoutError


@pytest.mark.parametrize(("status_code", "raised"), [(404, UsageError), (503, CommandFailedError)])
def test_an_error_reply_counts_by_its_status(status_code: int, raised: type[Exception]) -> None:
    with pytest.raises(raised, match=f"^{status_code} c: m$"), explained():
        raise failed(status_code)


def test_a_group_is_told_as_its_members_are() -> None:
    with pytest.raises(CommandFailedError, match=r"^x\ny$"), explained():
        raise ExceptionGroup("", [AdminError("x"), ExceptionGroup("", [AdminError("y"), AdminError("x")])])


def test_further_failures_can_be_named() -> None:
    with pytest.raises(CommandFailedError, match=r"^x$"), explained(LookupError):
        raise LookupError("x")


@pytest.mark.parametrize("bug", [KeyError("x"), ExceptionGroup("", [AdminError("x"), KeyError("y")])])
def test_a_bug_keeps_its_traceback(bug: Exception) -> None:
    with pytest.raises(type(bug)) as raised, explained():
        raise bug
    assert raised.value is bug
