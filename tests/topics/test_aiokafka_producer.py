"""What a producer that is given up leaves behind. aiokafka's own accumulator, no broker."""

import asyncio
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import ProducerClosed
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.structs import TopicPartition

from topics.aiokafka_producer import fail_batches

PLACE = TopicPartition("deltas", 0)


async def test_a_batch_that_was_to_be_sent_again_fails_without_a_word_in_the_log() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    accumulator = MessageAccumulator(ClusterMetadata(), batch_size=1_000, compression_type=0, batch_ttl=60)
    retried, waiting = [await accumulator.add_message(PLACE, None, value, timeout=1.0) for value in (b"a", b"b")]
    accumulator.reenqueue(accumulator._pop_batch(PLACE))
    await fail_batches(accumulator)
    await asyncio.sleep(0)  # the batches' callbacks
    for record in (retried, waiting):
        with pytest.raises(ProducerClosed):
            await record
    assert told == []
