"""Epochs of partitions, and which bases are to be committed."""

from topics.assignment import Assignment, AssignmentStatistics, PartitionEpoch, Progress
from topics.offsets import CompletedRun, OffsetRefusal

TOPIC = "inference.p0"


def test_each_assignment_has_a_higher_epoch_than_all_before() -> None:
    assignment = Assignment(TOPIC)
    first = assignment.begin([1, 0])
    assert first == [PartitionEpoch(TOPIC, 0, 1), PartitionEpoch(TOPIC, 1, 2)]
    assignment.end(first)
    assert assignment.begin([0]) == [PartitionEpoch(TOPIC, 0, 3)]
    assignment.check_integrity()


def bases(assignment: Assignment, epochs: list[PartitionEpoch] | None = None) -> dict[PartitionEpoch, Progress]:
    return {unsaved.assigned: unsaved.progress for unsaved in assignment.unsaved(epochs)}


def test_what_was_completed_since_the_last_commit_is_to_be_committed() -> None:
    assignment = Assignment(TOPIC)
    zero, one = assignment.begin([0, 1])
    assert [assignment.hand_out(0, offset) for offset in (7, 8)] == [True, True]
    assert bases(assignment) == {}
    assert assignment.complete(zero, 8) is None
    assert bases(assignment) == {zero: Progress(7, (CompletedRun(8, 8),))}, "the base waits for 7"
    assert assignment.complete(zero, 7) is None
    assert bases(assignment) == {zero: Progress(9)}
    assert bases(assignment, [one]) == {}
    assignment.saved(assignment.unsaved())
    assert bases(assignment) == {}
    assignment.check_integrity()


def test_what_is_completed_while_a_commit_is_under_way_is_committed_with_the_next() -> None:
    assignment = Assignment(TOPIC)
    (zero,) = assignment.begin([0])
    for offset in (0, 1):
        assignment.hand_out(0, offset)
    assignment.complete(zero, 1)
    under_way = assignment.unsaved()
    assignment.complete(zero, 0)
    assignment.saved(under_way)
    assert bases(assignment) == {zero: Progress(2)}


def test_the_last_owners_progress_is_taken_over_and_its_records_are_not_handed_out() -> None:
    assignment = Assignment(TOPIC)
    assignment.adopt(0, Progress(5, (CompletedRun(7, 8),)))
    (zero,) = assignment.begin([0])
    assert [assignment.hand_out(0, offset) for offset in (5, 6, 7, 8, 9)] == [True, True, False, False, True]
    assert assignment.outlook(zero, {5}) == Progress(6, (CompletedRun(7, 8),))
    assert assignment.outlook(zero, {5, 6}) == Progress(9)
    assert bases(assignment) == {}, "an outlook completes nothing"


def test_progress_that_was_taken_over_ends_with_its_epoch() -> None:
    assignment = Assignment(TOPIC)
    assignment.adopt(0, Progress(5, (CompletedRun(7, 8),)))
    assignment.end(assignment.begin([0]))
    (zero,) = assignment.begin([0])
    assert assignment.hand_out(0, 7)
    assert assignment.outlook(zero, {7}) == Progress(8)


def test_progress_covers_what_is_below_its_base_and_in_its_runs() -> None:
    progress = Progress(5, (CompletedRun(7, 8),))
    assert [offset for offset in range(12) if progress.covers(offset)] == [0, 1, 2, 3, 4, 7, 8]


def test_a_record_is_handed_out_once_an_epoch() -> None:
    assignment = Assignment(TOPIC)
    assignment.begin([0])
    assert [assignment.hand_out(0, offset) for offset in (4, 4, 5)] == [True, False, True]
    assert assignment.next_offset(0) == 6


def test_what_belongs_to_an_ended_epoch_changes_nothing() -> None:
    assignment = Assignment(TOPIC)
    (old,) = assignment.begin([0])
    assignment.hand_out(0, 0)
    assignment.end([old])
    assert assignment.complete(old, 0) is OffsetRefusal.STALE_EPOCH
    (new,) = assignment.begin([0])
    assignment.hand_out(0, 0)
    assert assignment.complete(old, 0) is OffsetRefusal.STALE_EPOCH
    assert assignment.complete(PartitionEpoch("other", 0, new.epoch), 0) is OffsetRefusal.STALE_EPOCH
    assert assignment.outlook(old, {0}) is None
    assert (assignment.owns(old), assignment.owns(new)) == (False, True)
    assignment.end([old])
    assert assignment.complete(new, 0) is None
    assert bases(assignment) == {new: Progress(1)}


def test_statistics_count_over_all_partitions() -> None:
    assignment = Assignment(TOPIC)
    zero, _ = assignment.begin([0, 1])
    for partition, offset in ((0, 0), (0, 1), (1, 5)):
        assignment.hand_out(partition, offset)
    assignment.complete(zero, 1)
    assert assignment.statistics() == AssignmentStatistics(partitions=2, resident=2, completed_beyond_base=1)
