"""What a recorder notes: ticks, backlog, the queue's moments, bounded memory."""

import pytest

from scheduling.priority import PriorityClass
from scheduling.state import RequestState
from workers.runs import run_record
from workers.runs.run_record import RequestRecord, RunRecorder
from workers.runs.trace_mix import ArrivingRequest

P0, P1, P2, P3 = PriorityClass


def recorder(*tenants: str, priority: PriorityClass = P1) -> RunRecorder:
    requests = [ArrivingRequest(number, 0.0, 10, 5, priority, tenant, tenant) for number, tenant in enumerate(tenants)]
    return RunRecorder(requests, lambda: [0, 0, 0, 0])


def ticks(notes: RunRecorder) -> run_record.Ticks:
    return notes._ticks.freeze(notes._interval_s, len(notes.accounts))


def test_accounts_are_classes_and_tenants_in_order() -> None:
    assert recorder("b", "a", "b").accounts == ((P1, "a"), (P1, "b"))


def test_a_tick_holds_what_was_received_before_it() -> None:
    notes = recorder("a")
    notes.service[0] = 7
    notes.advance(1.5)
    notes.service[0] = 9
    notes.advance(2.0)
    assert ticks(notes).service[:, 0].tolist() == [7, 9]


def test_backlogged_means_waiting_at_every_moment_of_the_interval() -> None:
    notes = recorder("a", "b", "b")
    a, b, b2 = notes.records
    notes.arrived(b)
    notes.advance(0.5)
    notes.arrived(a)
    notes.advance(1.0)  # neither had something waiting from the start of this interval on
    notes.advance(2.0)
    notes.advance(2.5)
    notes.admitted(b, 2.5)
    notes.arrived(b2)  # at once, but for a moment b had nothing waiting
    notes.advance(4.0)
    assert ticks(notes).backlogged.tolist() == [[False, False], [True, True], [True, False], [True, True]]


def test_the_queues_mean_and_square_are_integrals_over_time() -> None:
    notes = recorder("a", "a")
    notes.arrived(notes.records[0])
    notes.advance(0.5)
    notes.arrived(notes.records[1])
    notes.advance(1.0)
    table = ticks(notes)
    assert table.queue_seconds[0] == pytest.approx(0.5 * 1 + 0.5 * 2)
    assert table.queue_squared_seconds[0] == pytest.approx(0.5 * 1 + 0.5 * 4)


def test_a_preempted_request_waits_again() -> None:
    notes = recorder("a")
    record = notes.records[0]
    notes.arrived(record)
    notes.admitted(record, 0.2)
    notes.preempted(record)
    notes.advance(1.0)
    notes.admitted(record, 1.0)
    notes.ended(record, RequestState.FINISHED, 1.5, ran=True)
    notes.advance(2.0)
    table = ticks(notes)
    assert table.queued[:, P1].tolist() == [1, 0]
    assert (record.admitted_s, record.ended_s, record.preemptions) == (0.2, 1.5, 1)


def test_what_fails_while_it_waits_leaves_the_queue() -> None:
    notes = recorder("a")
    notes.arrived(notes.records[0])
    notes.ended(notes.records[0], RequestState.FAILED, 0.1, ran=False)
    notes.advance(1.0)
    assert ticks(notes).queued.sum() == 0


def test_ending_twice_is_a_bug() -> None:
    notes = recorder("a")
    notes.arrived(notes.records[0])
    notes.ended(notes.records[0], RequestState.FAILED, 0.1, ran=False)
    with pytest.raises(AssertionError, match="ended twice"):
        notes.ended(notes.records[0], RequestState.FAILED, 0.1, ran=False)


def test_long_runs_are_kept_in_wider_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_record, "MAX_TICKS", 8)
    notes = recorder("a")
    notes.arrived(notes.records[0])
    for second in range(1, 21):
        notes.service[0] = second
        notes.advance(float(second))
    table = ticks(notes)
    assert table.interval_s == 4.0
    assert table.service[:, 0].tolist() == [4, 8, 12, 16, 20]
    assert table.queue_seconds.tolist() == [4.0] * 5
    # The first second began before the request had arrived.
    assert table.backlogged[:, 0].tolist() == [False, True, True, True, True]


def test_a_record_starts_empty() -> None:
    record = recorder("a").records[0]
    assert isinstance(record, RequestRecord)
    assert (record.outcome, record.admitted_s, len(record.token_steps)) == (None, None, 0)
