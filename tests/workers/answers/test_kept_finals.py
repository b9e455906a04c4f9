"""Which finished answers are kept when their partition goes, and to which record they are still given."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduling.priority import PriorityClass
from tests.workers.attempts.attempt_rig import AttemptRig
from tests.workers.engine.engine_rig import Rig
from topics.assignment import PartitionEpoch
from topics.attempt_notes import AttemptNote, PriorAttempts
from topics.errors import RequestError
from topics.headers import ATTEMPT
from topics.replies import OutboundRecord
from topics.terminal_replies import Fate, Outcome, TerminalReply
from workers.answers.kept_finals import KeptFinals
from workers.answers.terminal_writer import ReplyTopics, Settled, Terminal, TerminalWriter
from workers.engine.outbox import Publication
from workers.engine.timeline import Timeline
from workers.intake.request import Arrival, Ending, FinishReason, Moved
from workers.intake.staging import StageJob

ENDED_WELL = Ending(FinishReason.LENGTH, Timeline(arrived_s=0.0, ended_s=1.0), 3, 4)


class Scene:
    def __init__(self, keep_s: float = 60.0, most_bytes: int = 10_000) -> None:
        self.now_s = 0.0
        self.dropped: list[Settled] = []
        self.gone = asyncio.Event()
        self.kept = KeptFinals(keep_s, self.drop, most_bytes=most_bytes, monotonic_s=lambda: self.now_s)
        self.rig = Rig()

    def drop(self, settled: Settled) -> None:
        self.dropped.append(settled)
        self.gone.set()

    def settled(
        self, fate: Fate = Fate.UNDELIVERED, *, attempt: int = 1, ending: Ending = ENDED_WELL, size: int = 10
    ) -> Settled:
        arrival = self.rig.arrive(f"r{len(self.rig.prompts)}")
        reply = OutboundRecord("replies", None, b"k", bytes(size), ((ATTEMPT, b"%d" % attempt),))
        publication = Publication(arrival, None, ending=ending, bytes=1_024)
        acknowledged = asyncio.get_running_loop().create_future()
        acknowledged.set_result(None)
        terminal = Terminal(reply, arrival.id, arrival.epoch, PriorityClass.P1, acknowledged, publication, (reply,))
        return Settled(terminal, fate, 1.0, 2.0)


def back(settled: Settled) -> Arrival:
    """Its record under the next assignment."""
    assert settled.terminal.publication is not None
    return replace(settled.terminal.publication.arrival, epoch=2)


def begun(attempt: int, **fields: bool) -> PriorAttempts:
    return PriorAttempts(
        AttemptNote(attempt, 0, running=fields.get("running", False)), ended=fields.get("ended", False)
    )


@pytest.mark.parametrize("prior", [begun(1), begun(1, running=True), begun(1, ended=True)])
async def test_an_answer_is_given_to_its_record_when_that_comes_back(prior: PriorAttempts) -> None:
    """Whether its last note arrived, and whether an aborted transaction held its reply."""
    scene = Scene()
    settled = scene.settled()
    assert scene.kept.keep(settled)
    terminal = scene.kept.claim(back(settled), prior)
    assert terminal is not None
    assert (terminal.epoch, terminal.reply, terminal.beside) == (2, settled.terminal.reply, settled.terminal.beside)
    assert terminal.publication is not None
    assert (terminal.publication.arrival.epoch, terminal.publication.bytes) == (2, 0)
    assert scene.kept.claim(back(settled), prior) is None, "once"
    assert scene.dropped == []


@pytest.mark.parametrize("prior", [begun(2), begun(2, running=True), begun(2, ended=True), None])
async def test_who_was_begun_by_somebody_else_meanwhile_is_run_again(prior: PriorAttempts | None) -> None:
    scene = Scene()
    settled = scene.settled()
    scene.kept.keep(settled)
    assert scene.kept.claim(back(settled), prior) is None
    assert scene.kept.claim(back(settled), begun(1)) is None, "it is not kept for the next time either"
    assert scene.dropped == [settled]


async def test_another_record_at_the_same_place_does_not_get_the_answer() -> None:
    scene = Scene()
    settled = scene.settled()
    scene.kept.keep(settled)
    arrival = back(settled)
    assert scene.kept.claim(replace(arrival, body_bytes=arrival.body_bytes + 1), begun(1)) is None
    assert scene.dropped == [settled]


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        (Fate.LOST, FinishReason.STOP),
        (Fate.DELIVERED, FinishReason.STOP),
        (Fate.UNDELIVERED, RequestError.cancelled()),
        (Fate.UNDELIVERED, Moved(PriorityClass.P3)),
    ],
)
async def test_only_answers_that_were_certainly_not_delivered_are_kept(
    fate: Fate, reason: FinishReason | RequestError | Moved
) -> None:
    scene = Scene()
    assert not scene.kept.keep(scene.settled(fate, ending=replace(ENDED_WELL, reason=reason)))
    assert len(scene.kept) == 0


async def test_what_is_kept_is_bounded_in_bytes() -> None:
    scene = Scene(most_bytes=5_000)
    taken = [scene.kept.keep(scene.settled(size=1_000)) for _ in range(5)]
    assert taken == [True, True, False, False, False]
    first = next(iter(scene.kept._kept.values()))[1]
    assert scene.kept.claim(back(first), begun(1)) is not None
    assert scene.kept.keep(scene.settled(size=1_000)), "there is room again"


async def test_what_nobody_claims_in_time_is_dropped() -> None:
    scene = Scene(keep_s=0.01)
    settled = scene.settled()
    scene.kept.keep(settled)
    scene.now_s = 1.0
    async with asyncio.timeout(5):
        await scene.gone.wait()
    assert (scene.dropped, len(scene.kept)) == ([settled], 0)


async def test_the_answer_of_a_later_attempt_takes_the_place_of_the_one_before() -> None:
    scene = Scene()
    first = scene.settled()
    second = replace(first, terminal=replace(first.terminal, reply=scene.settled(attempt=2).terminal.reply))
    scene.kept.keep(first)
    scene.kept.keep(second)
    assert scene.dropped == [first]
    terminal = scene.kept.claim(back(first), begun(2))
    assert terminal is not None
    assert terminal.reply.attempt == 2
    scene.kept.drop_all()


class Port:
    """Replies in memory: those of assignments that have ended are not delivered."""

    def __init__(self) -> None:
        self.owned = 1
        """The epoch."""
        self.delivered: list[TerminalReply] = []

    async def deliver(self, replies: Sequence[TerminalReply]) -> list[Outcome]:
        fates = [Fate.DELIVERED if reply.partition.epoch == self.owned else Fate.UNDELIVERED for reply in replies]
        self.delivered += [reply for reply, fate in zip(replies, fates, strict=True) if fate is Fate.DELIVERED]
        return list(fates)


async def test_a_partition_that_goes_and_comes_back_gives_each_answer_once_and_runs_nothing_again() -> None:
    """Writer, attempts and what is kept together, over replies and a journal in memory."""
    scene, attempts = Scene(), AttemptRig()
    port: Any = Port()

    def on_settled(settled: Settled) -> None:
        attempts.attempts.settled(settled.terminal.record, settled.terminal.epoch)
        scene.kept.keep(settled)

    writer = TerminalWriter(port, ReplyTopics("deltas", "replies", "dlq"), on_settled)
    arrival = scene.rig.arrive("r")
    attempts.attempts.take(arrival)
    attempts.attempts.stage(StageJob(0, arrival))
    await attempts.acknowledged()
    last = attempts.attempts.ending(arrival)
    reply = OutboundRecord("replies", None, b"r", b"the answer", ((ATTEMPT, b"1"),))
    publication = Publication(arrival, None, ending=ENDED_WELL)
    port.owned = 2
    attempts.attempts.revoke(PartitionEpoch(arrival.id.topic, arrival.id.partition, 1))
    writer.put(Terminal(reply, arrival.id, 1, PriorityClass.P1, None, publication, last.beside))
    running = asyncio.create_task(writer.run())
    await writer.wait_idle()
    assert (port.delivered, len(scene.kept)) == ([], 1)
    # It comes back: what the journal says of it is read again.
    attempts.journal.left = {record: PriorAttempts(note, ended=False) for record, note in attempts.journal.written}
    again = replace(arrival, epoch=2)

    def answered(arrival: Arrival, prior: PriorAttempts | None) -> bool:
        terminal = scene.kept.claim(arrival, prior)
        if terminal is not None:
            writer.put(terminal)
        return terminal is not None

    attempts.attempts._answered = answered
    attempts.attempts.take(again)
    writer.close()
    await asyncio.wait_for(running, 5)
    (delivered,) = port.delivered
    assert (delivered.record, delivered.partition.epoch, delivered.beside) == (reply, 2, last.beside)
    assert attempts.queued == [arrival], "it was queued again"
    assert len(scene.kept) == 0
