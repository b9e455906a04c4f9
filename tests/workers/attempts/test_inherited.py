"""What may have been begun before is prepared after its note; what is new, beside it. Over a journal in memory."""

from dataclasses import replace

from tests.workers.attempts.attempt_rig import AttemptRig
from tests.workers.engine.engine_rig import Rig
from topics.attempt_notes import AttemptNote, PriorAttempts
from workers.intake.request import Arrival
from workers.intake.staging import StageJob


def arrivals(count: int) -> list[Arrival]:
    rig = Rig()
    return [rig.arrive(f"r{number}") for number in range(count)]


def rig_of(log_end: int) -> AttemptRig:
    rig = AttemptRig()
    rig.journal.acknowledges = False
    rig.log_end = log_end
    return rig


def hand_out(rig: AttemptRig, *those: Arrival) -> list[StageJob]:
    for arrival in those:
        rig.attempts.take(arrival)
    jobs = [StageJob(number, arrival) for number, arrival in enumerate(those)]
    for job in jobs:
        rig.attempts.stage(job)
    return jobs


async def test_what_was_there_when_the_partition_was_given_is_prepared_when_its_note_is_acknowledged() -> None:
    those = arrivals(3)
    rig = rig_of(log_end=those[1].id.offset + 1)
    jobs = hand_out(rig, *those)
    assert rig.staging == jobs[2:], "only what came later is prepared beside its note"
    assert len(rig.journal.open) == 3
    await rig.acknowledged()
    assert rig.staging == [jobs[2], jobs[0], jobs[1]]


async def test_a_broker_that_told_of_no_end_makes_the_first_record_alone_inherited() -> None:
    first, second = arrivals(2)
    rig = rig_of(log_end=0)
    jobs = hand_out(rig, first, second)
    assert rig.staging == jobs[1:]


async def test_what_ends_before_its_note_is_never_prepared_and_leaves_nothing_behind() -> None:
    (arrival,) = arrivals(1)
    rig = rig_of(log_end=9)
    rig.journal.room.clear()
    hand_out(rig, arrival)
    rig.attempts.ending(arrival)
    rig.attempts.settled(arrival.id, arrival.epoch)
    rig.journal.room.set()
    await rig.acknowledged()
    assert rig.staging == []
    assert rig.attempts._gate._begun == {}
    assert rig.attempts._inherited._held == set()


async def test_a_choice_of_an_earlier_assignment_is_not_prepared_any_more() -> None:
    (arrival,) = arrivals(1)
    rig = rig_of(log_end=0)
    rig.attempts.take(arrival)
    rig.attempts.revoke(arrival.assignment)
    rig.attempts.take(replace(arrival, epoch=2))
    rig.attempts.stage(StageJob(0, arrival))
    await rig.acknowledged()
    assert rig.staging == []
    assert rig.attempts._inherited._held == set()


async def test_the_end_of_the_log_is_that_of_the_last_assignment() -> None:
    """Both records have been there by then."""
    first, second = arrivals(2)
    rig = rig_of(log_end=0)
    hand_out(rig, first, second)
    await rig.acknowledged()
    rig.attempts.revoke(first.assignment)
    rig.log_end, rig.journal.left = second.id.offset + 1, {}
    staged = len(rig.staging)
    for arrival in (first, second):
        rig.attempts.take(replace(arrival, epoch=2))
        rig.attempts.stage(StageJob(5, replace(arrival, epoch=2)))
    assert len(rig.staging) == staged


async def test_a_suspect_is_not_prepared_before_its_turn() -> None:
    runs, waits = arrivals(2)
    rig = rig_of(log_end=waits.id.offset + 1)
    crash = PriorAttempts(AttemptNote(attempt=1, begun_ms=0), ended=False)
    rig.journal.left = {runs.id: crash, waits.id: crash}
    for arrival in (runs, waits):
        rig.attempts.take(arrival)
    jobs = [StageJob(number, arrival) for number, arrival in enumerate(rig.queued)]
    for job in jobs:
        rig.attempts.stage(job)
    await rig.acknowledged()
    assert rig.staging == jobs[:1]
