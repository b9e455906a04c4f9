"""What aiokafka's request that begins a transaction is made to wait for. Its own handler, no broker."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import ConcurrentTransactions, CoordinatorLoadInProgressError
from aiokafka.producer.sender import BACKOFF_OVERRIDE, AddPartitionsToTxnHandler
from aiokafka.structs import TopicPartition

from topics.aiokafka_transaction_start import AddPartitions


def answered(kind: type[AddPartitionsToTxnHandler], error: Any, *, begun: bool) -> float | None:
    """How long the handler waits after this answer to its only partition."""
    place = TopicPartition("replies", 0)
    manager = SimpleNamespace(txn_partitions={place} if begun else set())
    sender = SimpleNamespace(_txn_manager=manager, _retry_backoff=0.1, client=None)
    response = SimpleNamespace(errors=[("replies", [(0, error.errno)])])
    backoff: float | None = kind(sender, [place]).handle_response(response)
    return backoff


def test_behind_a_commit_the_next_transaction_asks_again_at_once() -> None:
    assert answered(AddPartitionsToTxnHandler, ConcurrentTransactions, begun=False) == BACKOFF_OVERRIDE
    assert (answered(AddPartitions, ConcurrentTransactions, begun=False) or 1.0) < BACKOFF_OVERRIDE / 4


@pytest.mark.parametrize(("error", "begun"), [(CoordinatorLoadInProgressError, False), (ConcurrentTransactions, True)])
def test_a_broker_in_trouble_is_left_its_time(error: Any, begun: bool) -> None:
    theirs = answered(AddPartitionsToTxnHandler, error, begun=begun)
    assert theirs is not None
    assert answered(AddPartitions, error, begun=begun) == theirs
