"""An egress with an outbox in front and writers behind that keep what they are given: the scene of its tests."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from scheduling.priority import PriorityClass
from tests.workers.attempts.attempt_rig import AttemptRig
from tests.workers.engine.engine_rig import Rig, letter_detokenizer, token_bytes
from tests.workers.producer_double import ProducerDouble
from topics.attempt_notes import PriorAttempts
from topics.record import InboundRecord, RecordId
from topics.replies import OutboundRecord
from workers.answers.egress import Egress
from workers.answers.reply_contexts import ReplyContexts
from workers.answers.terminal_writer import ReplyTopics, Terminal
from workers.answers.unserved import Unserved
from workers.answers.usage import UsageWriter
from workers.configuration.config import EgressConfig
from workers.engine.outbox import Outbox
from workers.engine.timeline import Timeline
from workers.intake.payload_source import Missing
from workers.intake.prompt import PreparedRequest
from workers.intake.request import Arrival, Ending, FinishReason
from workers.intake.staging import StageJob

P1 = PriorityClass.P1


class Deltas(ProducerDouble):
    def __init__(self) -> None:
        super().__init__("d")
        self.sent: list[OutboundRecord] = []

    def send(self, record: OutboundRecord) -> asyncio.Future[RecordId]:
        self.sent.append(record)
        (acknowledgement,) = self.take(1)
        return acknowledgement


class Writer:
    def __init__(self) -> None:
        self.terminals: list[Terminal] = []

    def put(self, terminal: Terminal) -> None:
        self.terminals.append(terminal)


class Scene:
    def __init__(self, usage: UsageWriter | None = None, **config: Any) -> None:
        self.deltas, self.writer = Deltas(), Writer()
        self.attempts = AttemptRig()
        self.outbox = Outbox(1_000_000, lambda: None)
        self.begun: list[str] = []
        """Requests whose first delta is on the broker."""
        self.asked: list[tuple[Arrival, Callable[[InboundRecord | Missing], None]]] = []
        """Who needs whose record."""
        writers: Any = {P1: self.writer}
        deltas: Any = self.deltas
        topics, attempts = ReplyTopics("d", "r", "q"), self.attempts.attempts
        contexts = ReplyContexts(topics, attempts.number)
        self.unserved = Unserved(topics=topics, writers=writers, groups={P1: "g"}, contexts=contexts, attempts=attempts)
        self.egress = Egress(
            EgressConfig(**config),
            outbox=self.outbox,
            topics=topics,
            deltas=deltas,
            writers=writers,
            contexts=contexts,
            new_detokenizer=letter_detokenizer,
            attempts=attempts,
            token_bytes=token_bytes,
            payload_of=lambda arrival, then: self.asked.append((arrival, then)),
            usage=usage,
            on_begun=lambda arrival, _: self.begun.append(arrival.headers.request_id),
        )

    def request(self, request_id: str, epoch: int = 1) -> tuple[Arrival, PreparedRequest]:
        rig = Rig()
        rig.arrive(request_id)
        (arrival,) = [message for message in rig.inbox.take_all() if isinstance(message, Arrival)]
        rig.answer(StageJob(0, arrival))
        (staged,) = rig.inbox.take_all()
        assert not isinstance(staged, Arrival)
        prepared = staged.prepared  # type: ignore[union-attr]  # the rig answers with Staged
        fields = {name: getattr(arrival, name) for name in arrival.__slots__}
        return Arrival(**fields | {"epoch": epoch}), prepared

    def give(self, found: InboundRecord | Missing) -> None:
        """To the one who asked."""
        ((_, then),) = self.asked
        then(found)

    async def begin(self, arrival: Arrival) -> None:
        """Its attempt is on record."""
        self.attempts.attempts.take(arrival)
        self.attempts.attempts.stage(StageJob(0, arrival))
        await self.attempts.acknowledged()

    async def say(self, arrival: Arrival, prepared: PreparedRequest, tokens: list[int]) -> None:
        self.outbox.tokens(arrival, prepared, tokens, None)
        await self.egress._publish_new()
        await self.egress._send_due()

    def revoke(self, arrival: Arrival) -> None:
        cut = self.egress.revoke(*arrival.assignment)
        self.attempts.attempts.revoke(arrival.assignment, cut=cut)
        self.egress.drop(self.attempts.dropped)

    def come_back(self, arrival: Arrival, epoch: int) -> None:
        """Its record, of which the journal knows what was noted."""
        journal = self.attempts.journal
        journal.left = {record: PriorAttempts(note, ended=False) for record, note in journal.written}
        again = replace(arrival, epoch=epoch)
        self.attempts.attempts.take(again)
        assert self.attempts.resumed == [again]

    async def run(self) -> None:
        """All that is in the outbox, to the end."""
        self.egress.close()
        await asyncio.wait_for(self.egress.run(), 5)


def record_of(arrival: Arrival) -> InboundRecord:
    return InboundRecord(arrival.id, arrival.timestamp_ms, b"key", b"{}", (("tenant", b"t"),))


def end(tokens: int) -> Ending:
    return Ending(FinishReason.LENGTH, Timeline(arrived_s=0.0), 3, tokens)


def text(record: OutboundRecord) -> str:
    assert record.value is not None
    choice = orjson.loads(record.value)["choices"][0]
    return str((choice["delta"] if "delta" in choice else choice["message"]).get("content", ""))


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until it holds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - no event of the code under test says so
            await asyncio.sleep(0)
