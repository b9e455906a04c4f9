"""Egress when partitions are taken away: what is said no more, what goes on, and what is waited for."""

import asyncio
from dataclasses import replace

from tests.workers.answers.egress_rig import Scene, end, text
from topics.record import RecordId


async def test_nothing_is_answered_for_a_revoked_assignment() -> None:
    scene = Scene()
    arrival, prepared = scene.request("r")
    scene.outbox.tokens(arrival, prepared, [0], None)
    scene.egress.revoke(arrival.id.topic, arrival.id.partition, 1)
    scene.outbox.ended(arrival, prepared, end(1))
    await scene.run()
    assert scene.writer.terminals == []
    assert not scene.outbox.full


async def test_an_answer_that_is_dropped_begins_anew() -> None:
    scene = Scene()
    old, prepared = scene.request("r", epoch=1)
    await scene.begin(old)
    await scene.say(old, prepared, [0, 1])
    scene.revoke(old)
    scene.attempts.attempts.carried.given(old.id.topic, [])
    scene.egress.drop(scene.attempts.dropped)
    scene.outbox.tokens(old, prepared, [2], None)  # the engine has not heard of it yet
    new, prepared = scene.request("r", epoch=2)
    scene.outbox.tokens(new, prepared, [0, 1, 2], None)
    scene.outbox.ended(new, prepared, end(3))
    await scene.run()
    (terminal,) = scene.writer.terminals
    assert text(terminal.reply) == "abc"


async def test_an_answer_goes_on_when_its_partition_comes_back_with_the_next_seq() -> None:
    scene = Scene(delta_interval_ms=0)
    old, prepared = scene.request("r", epoch=1)
    await scene.begin(old)
    await scene.say(old, prepared, [0])
    scene.revoke(old)
    await scene.say(old, prepared, [1])
    scene.come_back(old, epoch=2)
    await scene.say(old, prepared, [2])  # before the engine has heard of it
    new = replace(old, epoch=2)
    scene.outbox.tokens(new, prepared, [3], None)
    scene.outbox.ended(new, prepared, end(4))
    await scene.run()
    (terminal,) = scene.writer.terminals
    assert (text(terminal.reply), terminal.epoch, terminal.reply.attempt) == ("abcd", 2, 1)
    assert "".join(map(text, scene.deltas.sent)) == "abcd"
    assert [dict(delta.headers)["seq"] for delta in scene.deltas.sent] == [b"0", b"1", b"2", b"3"]


async def test_an_answer_that_ends_while_its_partition_is_away_is_nobodys_assignments() -> None:
    """It is kept by whoever is told so: see `workers.answers.kept_finals`."""
    scene = Scene()
    arrival, prepared = scene.request("r")
    await scene.begin(arrival)
    scene.revoke(arrival)
    scene.outbox.tokens(arrival, prepared, [0], None)
    scene.outbox.ended(arrival, prepared, end(1))
    await scene.run()
    (terminal,) = scene.writer.terminals
    assert (terminal.epoch, len(terminal.beside)) == (1, 1)


async def test_an_answer_that_ends_before_the_engine_has_heard_that_its_partition_is_back_is_given_now() -> None:
    scene = Scene()
    arrival, prepared = scene.request("r")
    await scene.begin(arrival)
    scene.revoke(arrival)
    scene.come_back(arrival, epoch=2)
    scene.outbox.tokens(arrival, prepared, [0], None)
    scene.outbox.ended(arrival, prepared, end(1))
    await scene.run()
    (terminal,) = scene.writer.terminals
    assert (terminal.epoch, text(terminal.reply)) == (2, "a")


async def test_answers_of_several_sequences_do_not_go_on() -> None:
    scene = Scene()
    arrival, prepared = scene.request("r")
    prepared = replace(prepared, sequences=2, choices=2)
    await scene.begin(arrival)
    await scene.say(arrival, prepared, [0])
    scene.revoke(arrival)
    assert scene.attempts.dropped == [arrival.id]
    scene.outbox.ended(arrival, prepared, end(1))
    await scene.run()
    assert scene.writer.terminals == []
    assert not scene.outbox.full


async def test_a_revocation_can_wait_for_those_in_the_middle_of_their_answers() -> None:
    scene = Scene()
    arrival, prepared = scene.request("r")
    other, other_prepared = scene.request("s")
    other = replace(other, id=RecordId(other.id.topic, other.id.partition + 1, 0))
    await scene.begin(arrival)
    for each, its in ((arrival, prepared), (other, other_prepared)):
        await scene.say(each, its, [0])
    scene.revoke(arrival)
    told = asyncio.create_task(scene.egress.wait_told([arrival.assignment]))
    await asyncio.sleep(0)
    assert not told.done()
    scene.outbox.ended(arrival, prepared, end(1))
    await scene.run()
    await asyncio.wait_for(told, 5)
