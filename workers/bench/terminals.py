"""What exactly-once costs: the same terminal replies through both guarantees, on one broker, without an engine. With
each goes the tombstone of its request's attempt, as in a worker.

Knows producers, a consumer and a reader of committed replies. Does not know the command line
(`workers.commands.bench_delivery`). Each guarantee gets requests to answer; the writer batches as it does in a worker.

    visible     a steady load, answers put one by one: from `put` until a reader of committed records has it
    finals_s    a backlog, put at once: answers a second until all are visible
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.priority import PriorityClass
from topics.admin import KafkaAdmin
from topics.assignment import PartitionEpoch
from topics.catalogue import Catalogue, create_missing_topics
from topics.consumer import ClassConsumer
from topics.kafka_settings import KafkaSettings
from topics.producer import ReplyProducer
from topics.record import InboundRecord
from topics.record_producer import RecordProducer
from topics.replies import OutboundRecord
from topics.reply_reader import Reply, ReplyReader
from topics.terminal_replies import AtLeastOnceReplies, TerminalReplies
from topics.transactional_replies import TransactionalReplies
from workers.answers.terminal_writer import ReplyTopics, Settled, Terminal, TerminalWriter

__all__ = ["TerminalFigures", "measure_terminals"]

_LABEL = "p1"
_VALUE = b'{"choices": "%s"}' % (b"x" * 480)
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class TerminalFigures:
    visible_s: tuple[float, ...]
    """Of each answer of the steady load."""
    finals_s: float


async def measure_terminals(
    kafka: KafkaSettings, *, exactly_once: bool, load_s: float, steady: int, backlog: int
) -> TerminalFigures:
    """`steady` and `backlog`: how many answers each part has. `load_s`: answers a second of the first."""
    catalogue = Catalogue(f"terminals-{'once' if exactly_once else 'least'}", request_partitions=2, reply_partitions=2)
    async with KafkaAdmin(kafka) as admin:
        await create_missing_topics(admin, catalogue)
    await _produce_requests(kafka, catalogue, steady + backlog)
    bench = _Bench(kafka, catalogue, exactly_once=exactly_once)
    async with asyncio.TaskGroup() as tasks:
        try:
            await bench.start(tasks, steady + backlog)
            visible_s = await bench.steady(steady, load_s)
            finals_s = await bench.backlog(backlog)
        finally:
            await bench.stop()
    return TerminalFigures(tuple(visible_s), finals_s)


async def _produce_requests(kafka: KafkaSettings, catalogue: Catalogue, count: int) -> None:
    producer = RecordProducer(kafka, "bench-requests")
    await producer.start()
    topic = catalogue.requests(_LABEL)
    sent = [producer.submit(OutboundRecord(topic, number % 2, None, b"{}")) for number in range(count)]
    await asyncio.gather(*sent)
    await producer.stop()


class _Bench:
    def __init__(self, kafka: KafkaSettings, catalogue: Catalogue, *, exactly_once: bool) -> None:
        self._requests: list[tuple[PartitionEpoch, InboundRecord]] = []
        self._put_s: dict[str, float] = {}
        self._visible_s: dict[str, float] = {}
        self._news = asyncio.Event()
        self._topics = ReplyTopics(catalogue.deltas, catalogue.replies, catalogue.dead_letters)
        self._progress = catalogue.progress
        self._consumer = ClassConsumer(
            kafka,
            topic=catalogue.requests(_LABEL),
            group=catalogue.group(_LABEL),
            on_records=self._take_requests,
            settle=self._settle if exactly_once else None,
            maps_topic=catalogue.offsets,
        )
        self._replies: TerminalReplies = (
            TransactionalReplies(
                kafka,
                self._consumer.offsets,
                role="bench",
                transactional_id=f"{catalogue.group(_LABEL)}.bench",
                maps_topic=catalogue.offsets,
            )
            if exactly_once
            else AtLeastOnceReplies(ReplyProducer(kafka, _LABEL), self._consumer.complete)
        )
        self._writer = TerminalWriter(self._replies, self._topics, self._ignore)
        self._reader = ReplyReader(
            kafka, catalogue.replies, read_committed=True, wanted=lambda _id: True, on_reply=self._take_reply
        )

    async def start(self, tasks: asyncio.TaskGroup, requests: int) -> None:
        await self._reader.start(_CONNECT_S)
        self._reading = tasks.create_task(self._reader.run())
        await self._replies.start()
        tasks.create_task(self._writer.run())
        await self._consumer.start()
        await self._until(lambda: len(self._requests) >= requests)

    async def stop(self) -> None:
        self._writer.close()
        await self._consumer.stop()
        await self._replies.stop()
        self._reader.stop()
        await asyncio.wait({self._reading})
        await self._reader.close(_CONNECT_S)

    async def steady(self, count: int, load_s: float) -> Sequence[float]:
        began_s = time.monotonic()
        for number in range(count):
            await asyncio.sleep(max(0.0, began_s + number / load_s - time.monotonic()))
            self._put()
        await self._until(lambda: len(self._visible_s) >= count)
        return [self._visible_s[name] - put_s for name, put_s in self._put_s.items()]

    async def backlog(self, count: int) -> float:
        began_s, before = time.monotonic(), len(self._visible_s)
        for _ in range(count):
            self._put()
        await self._until(lambda: len(self._visible_s) >= before + count)
        return count / (time.monotonic() - began_s)

    def _put(self) -> None:
        partition, record = self._requests.pop()
        name = str(record.id)
        headers = (("event", b"final"), ("request-id", name.encode()), ("attempt", b"1"))
        self._put_s[name] = time.monotonic()
        reply = OutboundRecord(self._topics.replies, None, name.encode(), _VALUE, headers)
        tombstone = OutboundRecord(self._progress, record.id.partition, name.encode(), None)
        priority = PriorityClass.from_label(_LABEL)
        self._writer.put(Terminal(reply, record.id, partition.epoch, priority, beside=(tombstone,)))

    def _take_requests(self, partition: PartitionEpoch, records: Sequence[InboundRecord]) -> None:
        self._requests.extend((partition, record) for record in records)
        self._news.set()

    def _take_reply(self, reply: Reply) -> None:
        self._visible_s[reply.request_id] = time.monotonic()
        self._news.set()

    async def _until(self, reached: Any) -> None:
        while not reached():
            self._news.clear()
            await self._news.wait()

    async def _settle(self) -> None:
        await self._replies.settle()

    @staticmethod
    def _ignore(_settled: Settled) -> None:
        return
