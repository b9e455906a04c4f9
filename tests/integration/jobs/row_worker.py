"""A worker without a model: answers rows as their last message says, and counts how often each was run."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import orjson

from topics.assignment import PartitionEpoch
from topics.catalogue import Catalogue
from topics.consumer import ClassConsumer
from topics.errors import RequestError
from topics.headers import RequestHeaders
from topics.kafka_settings import KafkaSettings
from topics.producer import ReplyProducer
from topics.record import InboundRecord
from topics.replies import ReplyContext


class RowWorker:
    """An async context manager for one class. `allow` lets it answer so many rows more; it begins with none.

    Rows whose deadline has passed are answered `expired`, as a real worker does, and cost nothing.
    """

    def __init__(
        self, settings: KafkaSettings, catalogue: Catalogue, *, label: str = "p3", twice: bool = False
    ) -> None:
        """`twice`: every reply is sent twice, as after a crash."""
        self._catalogue = catalogue
        self._replies = ReplyProducer(settings, label)
        self._repeats = 2 if twice else 1
        self.runs: Counter[str] = Counter()
        """Request id → how often it was answered with a final."""
        self._permits = asyncio.Semaphore(0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._consumer = ClassConsumer(
            settings, topic=catalogue.requests(label), group=catalogue.group(label), on_records=self._on_records
        )

    async def __aenter__(self) -> "RowWorker":
        await self._replies.start()
        await self._consumer.start()
        await self._consumer.wait_assigned()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._consumer.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._replies.stop()

    def allow(self, rows: int) -> None:
        for _ in range(rows):
            self._permits.release()

    def _on_records(self, partition: PartitionEpoch, records: Sequence[InboundRecord]) -> None:
        for record in records:
            task = asyncio.create_task(self._answer(partition, record))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, partition: PartitionEpoch, record: InboundRecord) -> None:
        await self._permits.acquire()
        headers = RequestHeaders.decode(record)
        body = orjson.loads(record.value or b"")
        context = ReplyContext(
            request_id=headers.request_id,
            attempt=1,
            delta_topic=self._catalogue.deltas,
            reply_topic=headers.reply_topic or self._catalogue.replies,
            reply_partition=headers.reply_partition,
        )
        if headers.deadline_ms is not None and headers.deadline_ms <= time.time() * 1000:
            reply = context.error(orjson.dumps(RequestError.expired(1).body()))
        elif body["messages"][-1]["content"] == "fail":
            reply = context.error(orjson.dumps(RequestError.internal("It broke.").body()))
        else:
            self.runs[headers.request_id] += 1
            reply = context.final(orjson.dumps(_answer(headers.request_id, body["messages"][-1]["content"])))
        for _ in range(self._repeats):
            await self._replies.send_terminal(reply)
        self._consumer.complete(partition, record.id.offset)


def _answer(request_id: str, text: str) -> dict[str, object]:
    message = {"role": "assistant", "content": f"You said {text}.", "refusal": None}
    return {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "created": 1,
        "model": "smollm2",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
