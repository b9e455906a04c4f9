"""How soon a transactional producer of aiokafka's begins its next transaction.

Knows aiokafka's request that adds partitions to a transaction. Does not know what is sent in one
(`topics.transactional_replies`). Private matters of aiokafka 0.14: a test holds it to them.

After a commit the broker still writes its markers, for a few milliseconds, and until they stand it answers
CONCURRENT_TRANSACTIONS to the next transaction's first partition. aiokafka asks again after 20 ms, which is most of
what a small transaction takes. Here it asks again after a few.
"""

from typing import Any

from aiokafka.client import CoordinationType
from aiokafka.producer.sender import BACKOFF_OVERRIDE, AddPartitionsToTxnHandler

__all__ = ["AddPartitions", "begin_transactions_soon"]

_ASK_AGAIN_S = 0.003


class AddPartitions(AddPartitionsToTxnHandler):  # type: ignore[misc] # aiokafka is untyped
    def handle_response(self, response: Any) -> float | None:
        backoff: float | None = super().handle_response(response)
        # Any other wait is for a broker in trouble, and stays as it is.
        return _ASK_AGAIN_S if backoff == BACKOFF_OVERRIDE else backoff


def begin_transactions_soon(producer: Any) -> None:
    """Of an `AIOKafkaProducer`, before its first transaction."""
    sender = producer._sender

    async def add(partitions: Any) -> bool:
        node = await sender._find_coordinator(CoordinationType.TRANSACTION, sender._txn_manager.transactional_id)
        added: bool = await AddPartitions(sender, partitions).do(node)
        return added

    sender._do_add_partitions_to_txn = add
