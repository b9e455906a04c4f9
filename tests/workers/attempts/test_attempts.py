"""Who may begin, what is noted of whom, who is suspected and who is given up; over a journal in memory."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from scheduling.priority import PriorityClass
from tests.workers.attempts.attempt_rig import AttemptRig
from tests.workers.engine.engine_rig import Rig
from topics.assignment import PartitionEpoch
from topics.attempt_notes import AttemptNote, PriorAttempts
from topics.record_producer import ProducerStoppedError
from workers.answers.reply_stream import StreamStart
from workers.intake.request import Arrival
from workers.intake.staging import Staged, StageJob

P0, P1, P2, _ = PriorityClass


def arrivals(*priorities: PriorityClass) -> list[Arrival]:
    rig = Rig()
    return [rig.arrive(f"r{number}", priority=priority) for number, priority in enumerate(priorities)]


def crashed(crashes: int, **fields: Any) -> PriorAttempts:
    """A request that was running when its worker ended, for the so-manieth time."""
    return PriorAttempts(AttemptNote(attempt=crashes, begun_ms=1, crashes=crashes - 1, **fields), ended=False)


def staged(arrival: Arrival) -> Staged:
    rig = Rig()
    rig.prompts[arrival.headers.request_id] = (8, 4)
    rig.answer(StageJob(0, arrival))
    (message,) = rig.inbox.take_all()
    assert isinstance(message, Staged)
    return message


async def begin(rig: AttemptRig, arrival: Arrival) -> None:
    rig.attempts.stage(StageJob(0, arrival))
    await rig.acknowledged()


async def there_is_room(rig: AttemptRig, until: Arrival) -> None:
    """Return when this one is begun."""
    rig.journal.room.set()
    async with asyncio.timeout(5):
        while until.id not in [record for record, _ in rig.journal.written]:  # noqa: ASYNC110 - nothing says so
            await asyncio.sleep(0)


async def test_a_request_goes_in_when_its_prompt_is_prepared_and_its_note_acknowledged() -> None:
    (arrival,) = arrivals(P1)
    for prompt_first in (True, False):
        rig = AttemptRig()
        rig.journal.acknowledges = False
        rig.attempts.take(arrival)
        assert rig.queued == [arrival]
        rig.attempts.stage(StageJob(0, arrival))
        assert rig.journal.written == [(arrival.id, AttemptNote(attempt=1, begun_ms=0))]
        if prompt_first:
            rig.attempts.staged(staged(arrival))
        else:
            await rig.acknowledged()
        assert rig.let_in == []
        if prompt_first:
            await rig.acknowledged()
        else:
            rig.attempts.staged(staged(arrival))
        assert len(rig.let_in) == 1


async def test_what_may_have_been_noted_too_late_waits_until_the_group_says_whose_it_is() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.attempts.take(arrival)
    rig.certain = False  # as in a process that was stopped and wakes up
    await begin(rig, arrival)
    rig.attempts.staged(staged(arrival))
    assert rig.let_in == []
    rig.certain = True
    rig.attempts.confirmed()
    assert len(rig.let_in) == 1


def notes(rig: AttemptRig) -> list[bool]:
    """Whether each note says that its request is run."""
    return [note.running for _, note in rig.journal.written]


async def test_what_waits_until_the_group_says_whose_it_is_is_blamed_for_no_crash_until_it_goes_in() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.journal.left[arrival.id] = crashed(2)
    rig.attempts.take(arrival)
    rig.certain = False
    rig.attempts.stage(StageJob(0, arrival))
    rig.attempts.staged(staged(arrival))
    await rig.acknowledged()
    assert PriorAttempts(rig.journal.written[-1][1], ended=False).crashes == 2
    rig.certain, rig.journal.acknowledges = True, False
    rig.attempts.confirmed()
    assert (notes(rig), rig.going_on) == ([True, False, True], []), "not before it can be blamed"
    await rig.acknowledged()
    assert len(rig.going_on) == 1
    assert PriorAttempts(rig.journal.written[-1][1], ended=False).crashes == 3


async def test_what_ends_its_worker_while_it_is_prepared_is_blamed_however_uncertain_its_owner_is() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.attempts.take(arrival)
    rig.certain = False
    await begin(rig, arrival)
    assert notes(rig) == [True]


async def test_a_request_that_waits_for_certainty_again_and_again_begins_all_the_same() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.attempts.take(arrival)
    rig.certain = False
    rig.attempts.stage(StageJob(0, arrival))
    rig.attempts.staged(staged(arrival))
    await rig.acknowledged()
    rig.certain, rig.journal.acknowledges = True, False
    rig.attempts.confirmed()
    rig.certain = False  # by the time that the note is acknowledged
    await rig.acknowledged()
    assert (notes(rig), rig.let_in) == ([True, False, True], [])
    rig.certain = True
    rig.attempts.confirmed()
    assert len(rig.let_in) == 1


async def test_the_reply_of_what_waits_for_certainty_waits_for_its_last_note() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.attempts.take(arrival)
    rig.certain = False
    rig.attempts.stage(StageJob(0, arrival))
    rig.attempts.staged(staged(arrival))
    rig.journal.acknowledges = False
    await rig.acknowledged()
    last = rig.attempts.ending(arrival)
    assert last.written is not None
    await rig.acknowledged()
    assert last.written.done()


async def test_what_it_came_to_before_its_partition_was_given_back_forgives_its_crashes() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.journal.left[arrival.id] = crashed(2)
    rig.attempts.take(arrival)
    await begin(rig, arrival)
    rig.journal.acknowledges = False
    rig.journal.room.clear()
    rig.attempts.progressed(arrival, 1)
    rig.journal.room.set()
    rig.attempts.revoke(PartitionEpoch(arrival.id.topic, arrival.id.partition, arrival.epoch))
    assert PriorAttempts(rig.journal.written[-1][1], ended=False).crashes == 0


async def test_without_room_in_the_journal_nothing_is_begun() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.attempts.take(arrival)
    rig.journal.room.clear()
    rig.attempts.stage(StageJob(0, arrival))
    await asyncio.sleep(0)
    assert rig.journal.written == []
    rig.journal.room.set()
    async with asyncio.timeout(5):
        while not rig.journal.written:  # noqa: ASYNC110 - no event of the code under test says so
            await asyncio.sleep(0)


async def test_of_a_stream_that_is_run_again_it_is_read_first_what_was_told() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.journal.left[arrival.id] = crashed(1)
    rig.attempts.take(arrival)
    await begin(rig, arrival)
    rig.attempts.staged(staged(arrival))
    assert rig.let_in == []
    assert len(rig.going_on) == 1
    assert rig.attempts.number(arrival) == 2
    assert rig.journal.written == [(arrival.id, AttemptNote(attempt=2, begun_ms=1, crashes=1))]


async def test_suspects_run_one_at_a_time_the_most_urgent_first_beside_the_others() -> None:
    rig = AttemptRig()
    bulk, urgent, next_urgent, fresh = arrivals(P2, P0, P0, P1)
    for each in (bulk, urgent, next_urgent):
        rig.journal.left[each.id] = crashed(1)
        rig.attempts.take(each)
    rig.attempts.take(fresh)
    assert rig.queued == [bulk, urgent, fresh], "one of each class, and who is not suspected"
    for each in rig.queued:
        await begin(rig, each)
    assert [record for record, _ in rig.journal.written] == [bulk.id, fresh.id]
    rig.attempts.settled(bulk.id, bulk.epoch)
    assert [record for record, _ in rig.journal.written] == [bulk.id, fresh.id, urgent.id]
    rig.attempts.settled(urgent.id, urgent.epoch)
    assert rig.queued[-1] is next_urgent
    assert rig.attempts.statistics().suspects == 1


async def test_of_two_suspects_the_one_with_fewer_crashes_is_first() -> None:
    rig = AttemptRig()
    first, twice, once = arrivals(P1, P1, P1)
    for arrival, crashes in ((first, 1), (twice, 2), (once, 1)):
        rig.journal.left[arrival.id] = crashed(crashes)
        rig.attempts.take(arrival)
    rig.attempts.settled(first.id, first.epoch)
    assert rig.queued == [first, once]


@pytest.mark.parametrize("full", [False, True])
async def test_a_suspect_waits_for_those_of_fewer_crashes_that_are_to_come_unless_none_can(full: bool) -> None:
    rig = AttemptRig()
    twice, once = arrivals(P1, P1)
    rig.journal.left = {twice.id: crashed(2), once.id: crashed(1)}
    rig.full = full
    rig.attempts.take(twice)
    assert rig.queued == ([twice] if full else [])
    rig.attempts.take(once)
    assert rig.queued == ([twice] if full else [once])


async def test_a_suspect_is_cleared_when_it_is_noted_to_have_come_further_than_ever_before() -> None:
    rig = AttemptRig()
    first, second = arrivals(P1, P1)
    rig.journal.left[first.id] = crashed(1, reached=2)
    rig.journal.left[second.id] = crashed(1)
    for each in (first, second):
        rig.attempts.take(each)
    await begin(rig, first)
    rig.attempts.progressed(first, 2)
    await rig.acknowledged()
    assert rig.queued == [first], "so far it had come before"
    rig.attempts.progressed(first, 3)
    await rig.acknowledged()
    assert rig.queued == [first, second]


async def test_what_was_told_before_clears_nobody() -> None:
    rig = AttemptRig()
    first, second = arrivals(P1, P1)
    for each in (first, second):
        rig.journal.left[each.id] = crashed(1)
        rig.attempts.take(each)
    await begin(rig, first)
    rig.attempts.starts(first, StreamStart(seq=1, token_ids=(1, 2, 3)))
    rig.attempts.progressed(first, 3)
    await rig.acknowledged()
    assert rig.queued == [first]


async def test_a_request_that_three_crashes_count_against_is_given_up_with_its_note() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.journal.left[arrival.id] = crashed(3)
    rig.attempts.take(arrival)
    assert (rig.given_up, rig.queued) == ([arrival], [])
    assert len(rig.attempts.ending(arrival).beside) == 1


async def test_no_suspect_begins_before_what_is_given_up_is_answered() -> None:
    rig = AttemptRig()
    suspect, guilty = arrivals(P1, P1)
    rig.journal.left = {suspect.id: crashed(1), guilty.id: crashed(3)}
    rig.attempts.take(suspect)
    rig.attempts.take(guilty)
    await begin(rig, suspect)
    assert rig.journal.written == []
    rig.attempts.ending(guilty)
    rig.attempts.settled(guilty.id, guilty.epoch)
    assert [record for record, _ in rig.journal.written] == [suspect.id]


async def test_notes_of_what_nobody_suspects_come_now_and_then_and_the_reply_waits_for_the_last() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.attempts.take(arrival)
    await begin(rig, arrival)
    rig.journal.acknowledges = False
    for token in range(1, 11):
        rig.now_s += 0.2
        rig.attempts.progressed(arrival, token)
    assert [note.tokens for _, note in rig.journal.written] == [0, 3], "the next waits for the acknowledgement"
    last = rig.attempts.ending(arrival)
    assert last.written is not None
    await rig.acknowledged()
    assert last.written.done()
    rig.now_s += 10
    rig.attempts.progressed(arrival, 20)
    assert len(rig.journal.written) == 2, "nothing is noted of what has ended"


async def test_a_partition_that_is_given_back_leaves_no_crash_whether_answered_or_not() -> None:
    rig = AttemptRig()
    running, answered = arrivals(P1, P1)
    for each in (running, answered):
        rig.attempts.take(each)
        await begin(rig, each)
    rig.attempts.ending(answered)
    rig.attempts.revoke(PartitionEpoch(running.id.topic, running.id.partition, running.epoch))
    await rig.attempts.given_back()
    last = rig.journal.written[2:]
    assert [(record, note.running) for record, note in last] == [(running.id, False), (answered.id, False)]
    assert [PriorAttempts(note, ended=False).crashes for _, note in last] == [0, 0]


async def test_a_refusal_takes_away_what_earlier_attempts_have_noted_and_else_nothing() -> None:
    rig = AttemptRig()
    known, fresh = arrivals(P1, P1)
    rig.journal.left[known.id] = crashed(1)
    assert len(rig.attempts.refused(known.id).beside) == 1
    assert rig.attempts.refused(fresh.id).beside == ()


async def test_the_end_of_an_earlier_assignment_takes_nothing_from_the_next_one() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.attempts.take(arrival)
    await begin(rig, arrival)
    rig.attempts.revoke(PartitionEpoch(arrival.id.topic, arrival.id.partition, arrival.epoch))
    rig.journal.left[arrival.id] = crashed(1)
    rig.attempts.carried.given(arrival.id.topic, [])
    assert rig.attempts.ending(arrival).beside == ()
    assert rig.journal.prior(arrival.id) is not None


async def test_what_ends_while_it_waits_for_room_leaves_no_note() -> None:
    rig = AttemptRig()
    ended, lives = arrivals(P1, P1)
    rig.journal.room.clear()
    for each in (ended, lives):
        rig.attempts.take(each)
        rig.attempts.stage(StageJob(0, each))
        rig.attempts.staged(staged(each))
    assert rig.attempts.ending(ended).beside == (), "nothing is noted of it, so nothing is to be taken away"
    await there_is_room(rig, lives)
    assert [record for record, _ in rig.journal.written] == [lives.id]
    rig.attempts.settled(ended.id, ended.epoch)
    await rig.acknowledged()
    assert [message.job.arrival.id for message in rig.let_in] == [lives.id]


async def test_a_choice_that_waits_for_room_when_its_request_ends_begins_it_no_second_time() -> None:
    rig = AttemptRig()
    fails, lives = arrivals(P1, P1)
    for arrival in (fails, lives):
        rig.attempts.take(arrival)
    await begin(rig, fails)
    rig.journal.room.clear()
    rig.attempts.stage(StageJob(1, fails, sequence=1))
    rig.attempts.stage(StageJob(2, lives))
    rig.attempts.ending(fails)
    rig.attempts.settled(fails.id, fails.epoch)
    await there_is_room(rig, lives)
    assert [record for record, _ in rig.journal.written] == [fails.id, lives.id]
    assert rig.attempts.statistics().begun == 1


async def test_a_partition_that_goes_while_requests_wait_for_room_gets_no_note() -> None:
    rig = AttemptRig()
    known, late = arrivals(P1, P1)
    lives = replace(late, epoch=late.epoch + 1)
    rig.journal.room.clear()
    rig.attempts.take(known)
    rig.attempts.stage(StageJob(0, known))
    rig.attempts.revoke(PartitionEpoch(known.id.topic, known.id.partition, known.epoch))
    rig.attempts.stage(StageJob(1, late))  # the engine hears of it later
    rig.attempts.take(lives)
    rig.attempts.stage(StageJob(2, lives))
    await there_is_room(rig, lives)
    assert len(rig.journal.written) == 1
    assert rig.attempts.number(lives) == 1
    assert rig.attempts.statistics().begun == 1


async def test_a_suspect_that_ends_while_another_runs_never_begins() -> None:
    rig = AttemptRig()
    runs, held = arrivals(P2, P0)
    for each in (runs, held):
        rig.journal.left[each.id] = crashed(1)
        rig.attempts.take(each)
        rig.attempts.stage(StageJob(0, each))
    assert len(rig.attempts.ending(held).beside) == 1
    rig.attempts.ending(runs)
    rig.attempts.settled(runs.id, runs.epoch)
    assert [record for record, _ in rig.journal.written] == [runs.id]


async def test_the_next_suspect_waits_for_room_in_the_journal_too() -> None:
    rig = AttemptRig()
    first, second = arrivals(P2, P0)
    for each in (first, second):
        rig.journal.left[each.id] = crashed(1)
        rig.attempts.take(each)
        rig.attempts.stage(StageJob(0, each))
    rig.journal.room.clear()
    rig.attempts.settled(first.id, first.epoch)
    assert [record for record, _ in rig.journal.written] == [first.id]
    await there_is_room(rig, second)
    assert [record for record, _ in rig.journal.written] == [first.id, second.id]


async def test_a_worker_that_ends_in_order_begins_nothing_more() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.journal.room.clear()
    rig.attempts.take(arrival)
    rig.attempts.stage(StageJob(0, arrival))
    rig.attempts.give_back()
    rig.journal.room.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert rig.journal.written == []


async def test_a_journal_that_takes_nothing_any_more_ends_the_worker_and_stops_no_revocation() -> None:
    rig = AttemptRig()
    running, noted = arrivals(P1, P1)
    for each in (running, noted):
        rig.attempts.take(each)
        await begin(rig, each)
    rig.journal.stopped = True
    rig.now_s += 1.0
    rig.attempts.progressed(noted, 3)
    rig.attempts.revoke(PartitionEpoch(running.id.topic, running.id.partition, running.epoch))
    assert [type(error) for error in rig.broken] == [ProducerStoppedError] * 3
    rig.attempts.carried.given(running.id.topic, [])
    assert rig.attempts.statistics().begun == 0


async def test_of_those_that_wait_for_room_who_has_ended_is_not_begun_and_the_others_are_in_their_order() -> None:
    rig = AttemptRig()
    first, ends, last = arrivals(P1, P1, P1)
    for arrival in (first, ends, last):
        rig.attempts.take(arrival)
    rig.journal.room.clear()
    for arrival in (first, ends, last):
        rig.attempts.stage(StageJob(0, arrival))
    assert rig.attempts.ending(ends).beside == ()
    await there_is_room(rig, last)
    assert [record for record, _ in rig.journal.written] == [first.id, last.id]


async def test_an_orderly_end_blames_what_is_answered_and_not_delivered_for_nothing() -> None:
    """Its reply may still arrive, or the next owner runs it again."""
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.attempts.take(arrival)
    await begin(rig, arrival)
    assert rig.attempts.ending(arrival).beside, "its reply takes the note away"
    rig.attempts.give_back()
    assert [note.running for _, note in rig.journal.written] == [True, False]
    assert PriorAttempts(rig.journal.written[-1][1], ended=False).crashes == 0


async def test_who_was_answered_in_time_leaves_no_note() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.attempts.take(arrival)
    await begin(rig, arrival)
    rig.attempts.ending(arrival)
    rig.attempts.settled(arrival.id, arrival.epoch)
    rig.attempts.give_back()
    assert [note.running for _, note in rig.journal.written] == [True]


async def test_an_answer_that_was_kept_is_given_and_its_request_not_run_even_of_a_suspect() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(P1)
    rig.journal.left[arrival.id] = crashed(2)
    rig.answered = [arrival]
    rig.attempts.take(arrival)
    assert (rig.queued, rig.attempts.statistics().suspects) == ([], 0)
