"""Epochs of partitions, and which bases are to be committed."""

from topics.assignment import Assignment, AssignmentStatistics, PartitionEpoch
from topics.offsets import OffsetRefusal

TOPIC = "inference.p0"


def test_each_assignment_has_a_higher_epoch_than_all_before() -> None:
    assignment = Assignment(TOPIC)
    first = assignment.begin([1, 0])
    assert first == [PartitionEpoch(TOPIC, 0, 1), PartitionEpoch(TOPIC, 1, 2)]
    assignment.end(first)
    assert assignment.begin([0]) == [PartitionEpoch(TOPIC, 0, 3)]
    assignment.check_integrity()


def test_only_bases_that_have_risen_are_to_be_committed() -> None:
    assignment = Assignment(TOPIC)
    zero, one = assignment.begin([0, 1])
    assert [assignment.hand_out(0, offset) for offset in (7, 8)] == [True, True]
    assert assignment.risen() == {}
    assert assignment.complete(zero, 8) is None
    assert assignment.risen() == {}, "the base waits for 7"
    assert assignment.complete(zero, 7) is None
    assert assignment.risen() == {zero: 9}
    assert assignment.risen([one]) == {}
    assignment.committed({zero: 9})
    assert assignment.risen() == {}
    assignment.check_integrity()


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
    assignment.committed({old: 5})
    assignment.end([old])
    assert assignment.complete(new, 0) is None
    assert assignment.risen() == {new: 1}


def test_statistics_count_over_all_partitions() -> None:
    assignment = Assignment(TOPIC)
    zero, _ = assignment.begin([0, 1])
    for partition, offset in ((0, 0), (0, 1), (1, 5)):
        assignment.hand_out(partition, offset)
    assignment.complete(zero, 1)
    assert assignment.statistics() == AssignmentStatistics(partitions=2, resident=2, completed_beyond_base=1)
