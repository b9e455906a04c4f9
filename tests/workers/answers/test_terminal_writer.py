"""The writer of terminal replies: who waits for whom, in what batches, and where a refused reply goes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from scheduling.priority import PriorityClass
from topics.known_topics import RecordRefusedError
from topics.record import RecordId
from topics.record_producer import ProducerStatistics
from topics.replies import OutboundRecord
from topics.terminal_replies import Fate, Outcome, TerminalReply
from workers.answers.terminal_writer import ReplyTopics, Settled, Terminal, TerminalWriter

TOPICS = ReplyTopics("deltas", "replies", "dlq")


class Replies:
    """Delivers at once, unless a topic is refused or a partition lost."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.refused: set[str] = set()
        self.largest = 10 * 2**20
        """Of a value that the topics take."""
        self.taken: list[bytes] = []
        self.lost: set[int] = set()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def start(self) -> None: ...

    async def stop(self, grace_s: float = 10.0) -> None: ...

    async def settle(self) -> None: ...

    async def deliver(self, replies: Sequence[TerminalReply]) -> list[Outcome]:
        await self.go_on.wait()
        self.batches.append([f"{reply.record.topic}/{reply.offset}" for reply in replies])
        return [self._outcome(reply) for reply in replies]

    def _outcome(self, reply: TerminalReply) -> Outcome:
        value = reply.record.value or b""
        if reply.record.topic in self.refused or len(value) > self.largest:
            return RecordRefusedError("no such topic, or it is too large for it")
        self.taken.append(value)
        return Fate.LOST if reply.offset in self.lost else Fate.DELIVERED

    def statistics(self) -> ProducerStatistics:
        return ProducerStatistics(True, 0, 0, 0, 0, 0, None)


class Scene:
    def __init__(self) -> None:
        self.replies = Replies()
        self.settled: list[Settled] = []
        self.writer = TerminalWriter(self.replies, TOPICS, self.settled.append)

    def terminal(
        self,
        offset: int,
        *,
        topic: str = "replies",
        after: "asyncio.Future[None] | None" = None,
        size: int = 10,
        **fields: Any,
    ) -> Terminal:
        record = RecordId("inference.p1", 0, offset)
        reply = OutboundRecord(topic, None, b"k", bytes(size))
        return Terminal(reply, record, 1, PriorityClass.P1, after, **fields)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.writer.run())
        yield
        self.writer.close()
        async with asyncio.timeout(5):
            await task

    @property
    def fates(self) -> dict[int, Fate]:
        return {each.terminal.record.offset: each.fate for each in self.settled}


async def test_what_comes_while_a_batch_is_delivered_is_the_next_batch() -> None:
    scene = Scene()
    scene.replies.go_on.clear()
    async with scene.running():
        scene.writer.put(scene.terminal(0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for offset in (1, 2, 3):
            scene.writer.put(scene.terminal(offset))
        scene.replies.go_on.set()
    assert scene.replies.batches == [["replies/0"], ["replies/1", "replies/2", "replies/3"]]
    assert scene.fates == dict.fromkeys(range(4), Fate.DELIVERED)


async def test_an_answer_waits_for_its_last_delta_and_holds_nobody_else_back() -> None:
    scene = Scene()
    delta: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with scene.running():
        scene.writer.put(scene.terminal(0, after=delta))
        scene.writer.put(scene.terminal(1))
        while not scene.settled:  # noqa: ASYNC110 - the writer tells nobody but the list
            await asyncio.sleep(0)
        assert scene.fates == {1: Fate.DELIVERED}
        delta.set_result(None)
    assert scene.fates == {0: Fate.DELIVERED, 1: Fate.DELIVERED}


async def test_a_delta_that_was_refused_does_not_hold_its_answer_back() -> None:
    scene = Scene()
    delta: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    delta.set_exception(RecordRefusedError("too large"))
    delta.exception()
    async with scene.running():
        scene.writer.put(scene.terminal(0, after=delta))
    assert scene.fates == {0: Fate.DELIVERED}


async def test_large_answers_travel_in_smaller_batches() -> None:
    scene = Scene()
    async with scene.running():
        for offset in range(3):
            scene.writer.put(scene.terminal(offset, size=3 * 2**20))
    assert scene.replies.batches == [["replies/0"], ["replies/1"], ["replies/2"]]


async def test_an_answer_that_its_callers_topic_refuses_goes_to_the_default_one() -> None:
    scene = Scene()
    scene.replies.refused = {"mine"}
    async with scene.running():
        scene.writer.put(scene.terminal(0, topic="mine"))
    assert scene.replies.batches == [["mine/0"], ["replies/0"]]
    assert scene.fates == {0: Fate.DELIVERED}


async def test_a_refusal_of_our_own_topic_ends_the_writer() -> None:
    scene = Scene()
    scene.replies.refused = {"replies"}
    scene.writer.put(scene.terminal(0))
    with pytest.raises(RecordRefusedError):
        await asyncio.wait_for(scene.writer.run(), 5)


@pytest.mark.parametrize("topic", ["replies", "mine"])
async def test_an_answer_that_is_too_large_for_every_topic_becomes_an_error(topic: str) -> None:
    scene = Scene()
    scene.replies.largest = 100
    error = replace(scene.terminal(0), reply=OutboundRecord(topic, None, b"k", b"too large"))
    async with scene.running():
        scene.writer.put(scene.terminal(0, topic=topic, size=1_000, instead=lambda _: error))
    assert scene.replies.taken == [b"too large"]
    assert [(settled.terminal, settled.fate) for settled in scene.settled] == [(error, Fate.DELIVERED)]


async def test_a_request_that_its_new_class_refuses_is_answered_and_put_among_no_replies() -> None:
    scene = Scene()
    scene.replies.refused = {"inference.p3"}
    error = replace(scene.terminal(0), reply=OutboundRecord("replies", None, b"k", b"not moved"))
    async with scene.running():
        scene.writer.put(scene.terminal(0, topic="inference.p3", moves=True, instead=lambda _: error))
    assert scene.replies.batches == [["inference.p3/0"], ["replies/0"]]
    assert scene.replies.taken == [b"not moved"]
    assert scene.fates == {0: Fate.DELIVERED}


async def test_an_answer_whose_partition_is_gone_is_settled_as_lost() -> None:
    scene = Scene()
    scene.replies.lost = {1}
    async with scene.running():
        for offset in (0, 1):
            scene.writer.put(scene.terminal(offset))
    assert scene.fates == {0: Fate.DELIVERED, 1: Fate.LOST}


async def test_idle_is_when_everything_is_settled() -> None:
    scene = Scene()
    scene.replies.go_on.clear()
    async with scene.running():
        await asyncio.wait_for(scene.writer.wait_idle(), 1)
        scene.writer.put(scene.terminal(0))
        waiting = asyncio.create_task(scene.writer.wait_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
        scene.replies.go_on.set()
        await asyncio.wait_for(waiting, 1)
    assert scene.fates == {0: Fate.DELIVERED}
