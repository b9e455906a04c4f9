"""The completion tracker, by example; its properties stand in tests/properties/test_offsets.py."""

from topics.offsets import CompletedRun, CompletionTracker, OffsetRefusal, OffsetStatistics


def started(base: int = 0, *offsets: int) -> CompletionTracker:
    tracker = CompletionTracker()
    tracker.start(1, base)
    for offset in offsets:
        assert tracker.insert(1, offset) is None
    return tracker


def test_base_waits_for_the_earliest_record_however_many_are_done_behind_it() -> None:
    tracker = started(5, 5, 6, 7, 8)
    for offset in (8, 6, 7):
        assert tracker.complete(1, offset) is None
    assert tracker.base == 5
    assert list(tracker.completed_runs()) == [CompletedRun(6, 8)]
    assert tracker.complete(1, 5) is None
    assert tracker.base == 9
    assert list(tracker.completed_runs()) == []


def test_holes_in_the_log_hold_nothing_back() -> None:
    tracker = started(0, 3, 10)
    assert tracker.complete(1, 3) is None
    assert tracker.base == 10
    assert tracker.complete(1, 10) is None
    assert tracker.base == 11


def test_work_of_an_old_assignment_is_refused_even_at_an_offset_that_is_pending_again() -> None:
    tracker = started(0, 0, 1)
    tracker.start(2, 0)
    assert tracker.insert(2, 0) is None
    assert tracker.complete(1, 0) is OffsetRefusal.STALE_EPOCH
    assert tracker.base == 0
    assert tracker.complete(2, 0) is None


def test_nothing_is_taken_before_an_assignment_or_after_its_end() -> None:
    tracker = CompletionTracker()
    assert tracker.insert(0, 0) is OffsetRefusal.STALE_EPOCH
    tracker.start(1, 0)
    assert tracker.insert(1, 0) is None
    tracker.end()
    assert tracker.complete(1, 0) is OffsetRefusal.STALE_EPOCH


def test_the_last_owners_completed_runs_are_not_run_again() -> None:
    tracker = CompletionTracker()
    tracker.start(4, 10, [CompletedRun(12, 14), CompletedRun(20, 20)])
    assert [tracker.insert(4, offset) for offset in (10, 11)] == [None, None]
    assert [tracker.insert(4, offset) for offset in (12, 13, 14)] == [OffsetRefusal.SEEN] * 3
    assert tracker.insert(4, 15) is None
    # A commit now still tells of the run that has not been reached.
    assert list(tracker.completed_runs()) == [CompletedRun(12, 14), CompletedRun(20, 20)]


def test_statistics() -> None:
    tracker = started(0, 0, 1, 2, 4)
    tracker.complete(1, 2)
    assert tracker.statistics() == OffsetStatistics(epoch=1, base=0, resident=3, completed_beyond_base=2, span=5)
