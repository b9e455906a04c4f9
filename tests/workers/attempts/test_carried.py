"""What goes on while its partition is away, and who is given up; over a journal in memory."""

import asyncio
from dataclasses import replace

import pytest

from tests.workers.attempts.attempt_rig import AttemptRig
from tests.workers.engine.engine_rig import Rig
from topics.assignment import PartitionEpoch
from topics.attempt_notes import AttemptNote, PriorAttempts
from workers.intake.request import Arrival
from workers.intake.staging import StageJob


def arrivals(count: int) -> list[Arrival]:
    rig = Rig()
    return [rig.arrive(f"r{number}") for number in range(count)]


async def begin(rig: AttemptRig, *those: Arrival) -> None:
    for arrival in those:
        rig.attempts.take(arrival)
        rig.attempts.stage(StageJob(0, arrival))
    await rig.acknowledged()


async def taken_away() -> tuple[AttemptRig, Arrival]:
    """One that was begun, and whose partition was taken away."""
    rig = AttemptRig()
    (arrival,) = arrivals(1)
    await begin(rig, arrival)
    rig.attempts.revoke(arrival.assignment)
    return rig, arrival


def left(rig: AttemptRig) -> None:
    """The journal is read again: what was noted last."""
    rig.journal.left = {record: PriorAttempts(note, ended=False) for record, note in rig.journal.written}


def back(arrival: Arrival, epoch: int = 2) -> Arrival:
    return replace(arrival, epoch=epoch)


async def test_what_comes_back_goes_on_as_the_attempt_that_it_is() -> None:
    rig, arrival = await taken_away()
    left(rig)
    rig.attempts.take(back(arrival))
    assert (rig.resumed, rig.dropped, rig.queued) == ([back(arrival)], [], [arrival])
    assert rig.attempts.number(back(arrival)) == 1
    assert [note.running for _, note in rig.journal.written] == [True, False, True]
    assert rig.attempts.carried.whose(arrival) == back(arrival)
    assert rig.attempts.statistics().begun == 1


async def test_one_that_the_engine_has_only_staged_is_begun_under_the_same_number() -> None:
    """The engine drops what is not admitted, so it hands it out once more."""
    rig, arrival = await taken_away()
    left(rig)
    rig.attempts.take(back(arrival))
    notes = len(rig.journal.written)
    rig.attempts.stage(StageJob(3, back(arrival)))
    await rig.acknowledged()
    assert len(rig.journal.written) == notes
    assert rig.attempts.number(back(arrival)) == 1


@pytest.mark.parametrize(
    "prior",
    [
        None,
        PriorAttempts(AttemptNote(attempt=2, begun_ms=0, running=False), ended=False),
    ],
)
async def test_what_another_has_begun_meanwhile_is_given_up(prior: PriorAttempts | None) -> None:
    rig, arrival = await taken_away()
    if prior is not None:
        rig.journal.left[arrival.id] = prior
    rig.attempts.take(back(arrival))
    assert (rig.resumed, rig.dropped, rig.queued) == ([], [arrival.id], [arrival, back(arrival)])
    assert rig.attempts.number(back(arrival)) == (1 if prior is None else 3)
    assert rig.attempts.carried.whose(arrival) is None


async def test_another_record_at_the_same_place_is_not_taken_for_it() -> None:
    rig, arrival = await taken_away()
    left(rig)
    rig.attempts.take(replace(back(arrival), timestamp_ms=7))
    assert (rig.resumed, rig.dropped) == ([], [arrival.id])


async def test_whose_record_is_passed_over_is_given_up() -> None:
    """The last commit covers it: somebody has answered it."""
    rig = AttemptRig()
    passed, comes, waits = arrivals(3)
    await begin(rig, passed, comes, waits)
    rig.attempts.revoke(passed.assignment)
    left(rig)
    rig.attempts.take(back(comes))
    assert (rig.resumed, rig.dropped) == ([back(comes)], [passed.id])
    assert rig.attempts.carried.whose(waits) == waits


async def test_who_has_lost_his_partition_is_given_up_and_who_has_kept_it_is_not() -> None:
    rig = AttemptRig()
    lost, kept = arrivals(2)
    lost = replace(lost, id=lost.id._replace(partition=5))
    await begin(rig, lost, kept)
    for each in (lost, kept):
        rig.attempts.revoke(each.assignment)
    rig.attempts.carried.given("another", [])
    assert rig.dropped == []
    rig.attempts.carried.given(kept.id.topic, [kept.id.partition])
    assert rig.dropped == [lost.id]
    assert rig.attempts.carried.whose(kept) == kept


async def test_suspects_and_requests_of_several_sequences_do_not_go_on() -> None:
    rig = AttemptRig()
    suspect, several, cut, well = arrivals(4)
    several = replace(several, choices=2)
    crash = PriorAttempts(AttemptNote(attempt=1, begun_ms=0), ended=False)
    rig.journal.left[suspect.id] = crash
    await begin(rig, suspect, several, cut, well)
    rig.attempts.revoke(well.assignment, cut=[cut.id])
    assert set(rig.dropped) == {suspect.id, several.id, cut.id}
    assert rig.attempts.carried.whose(well) == well


async def test_a_record_that_is_refused_when_it_comes_back_is_given_up() -> None:
    """An order may have ended it meanwhile."""
    rig, arrival = await taken_away()
    left(rig)
    assert len(rig.attempts.refused(arrival.id).beside) == 1
    assert rig.dropped == [arrival.id]


async def test_one_whose_answer_is_on_its_way_does_not_go_on() -> None:
    rig = AttemptRig()
    before, meanwhile = arrivals(2)
    await begin(rig, before, meanwhile)
    rig.attempts.ending(before)
    rig.attempts.revoke(before.assignment)
    assert rig.attempts.carried.whose(before) is None
    rig.attempts.ending(meanwhile)
    left(rig)
    rig.attempts.take(back(meanwhile))
    assert rig.resumed == []


@pytest.mark.parametrize("kept", [True, False])
async def test_a_record_that_comes_back_before_its_answer_is_settled_waits_for_that(kept: bool) -> None:
    """The answer went out under the old assignment: it is given again if it was kept, and run again if it was not."""
    rig, arrival = await taken_away()
    rig.attempts.ending(arrival)
    left(rig)
    rig.attempts.take(back(arrival))
    assert rig.queued == [arrival], "it is not run again"
    rig.answered = [back(arrival)] if kept else []
    rig.attempts.settled(arrival.id, arrival.epoch)
    assert rig.queued == ([arrival] if kept else [arrival, back(arrival)])
    assert kept or rig.attempts.number(back(arrival)) == 2


async def test_a_record_that_waits_is_not_forgotten_when_the_old_assignment_says_once_more_that_it_ends() -> None:
    rig, arrival = await taken_away()
    rig.attempts.ending(arrival)
    left(rig)
    rig.attempts.take(back(arrival))
    rig.attempts.ending(arrival)
    rig.attempts.settled(arrival.id, arrival.epoch)
    assert rig.queued == [arrival, back(arrival)]


async def test_a_record_that_came_back_and_was_taken_away_again_waits_for_nothing() -> None:
    rig, arrival = await taken_away()
    rig.attempts.ending(arrival)
    left(rig)
    rig.attempts.take(back(arrival))
    rig.attempts.revoke(under(arrival, 2))
    rig.attempts.settled(arrival.id, arrival.epoch)
    assert rig.queued == [arrival]
    left(rig)
    rig.attempts.take(back(arrival, 3))
    assert rig.queued == [arrival, back(arrival, 3)]


async def test_what_is_settled_meanwhile_is_forgotten() -> None:
    rig, arrival = await taken_away()
    rig.attempts.ending(arrival)
    rig.attempts.settled(arrival.id, arrival.epoch)
    assert rig.attempts.carried.whose(arrival) is None
    assert rig.attempts.statistics().begun == 0
    assert rig.dropped == [arrival.id], "who computes it remembers its end until then"


async def test_a_partition_may_be_taken_away_again_before_all_of_its_records_have_come() -> None:
    rig = AttemptRig()
    comes, late = arrivals(2)
    await begin(rig, comes, late)
    rig.attempts.revoke(comes.assignment)
    left(rig)
    rig.attempts.take(back(comes))
    rig.attempts.revoke(under(comes, 2))
    left(rig)
    for arrival in (comes, late):
        rig.attempts.take(back(arrival, 3))
    assert rig.resumed == [back(comes), back(comes, 3), back(late, 3)]
    assert rig.dropped == []
    assert [rig.attempts.carried.whose(each) for each in (comes, late)] == [back(comes, 3), back(late, 3)]


async def test_nothing_is_noted_of_a_request_while_its_partition_is_away() -> None:
    """It may be another's by now, whose notes count."""
    rig, arrival = await taken_away()
    await rig.attempts.given_back()
    notes = len(rig.journal.written)
    rig.now_s += 10
    rig.attempts.progressed(arrival, 5)
    rig.attempts.give_back()
    assert len(rig.journal.written) == notes
    left(rig)
    rig.attempts.take(back(arrival))
    await rig.acknowledged()
    rig.attempts.progressed(back(arrival), 6)
    assert rig.journal.written[-1][1].tokens == 6


async def test_a_terminal_reply_waits_for_the_note_that_the_request_was_given_back() -> None:
    rig = AttemptRig()
    (arrival,) = arrivals(1)
    await begin(rig, arrival)
    rig.journal.acknowledges = False
    rig.attempts.revoke(arrival.assignment)
    last = rig.attempts.ending(arrival)
    assert last.written is not None
    assert not last.written.done()
    await rig.acknowledged()
    await asyncio.wait_for(last.written, 5)


def under(arrival: Arrival, epoch: int) -> PartitionEpoch:
    return arrival.assignment._replace(epoch=epoch)
