"""Hard deadlines of requests that don't run yet."""

from scheduling.deadlines import Deadlines
from scheduling.state import RequestState
from tests.scheduling.batch_rig import P1, P2, Rig


def test_waiting_rows_expire_at_their_deadline() -> None:
    rig = Rig()
    late, later, never = rig.add(deadline_s=1.0), rig.add(deadline_s=2.0), rig.add()
    assert rig.scheduler.expire(0.999) == []
    assert rig.scheduler.expire(1.0) == [late]
    assert rig.scheduler.expire(9.0) == [later]
    assert rig.state(late) is RequestState.EXPIRED
    assert rig.state(never) is RequestState.WAITING
    rig.scheduler.check_integrity()


def test_staged_and_claimed_rows_expire_too() -> None:
    rig = Rig()
    claimed = rig.add(P1, deadline_s=1.0)
    assert rig.schedule() is None
    staged = rig.add(P2, deadline_s=1.0)
    rig.scheduler.to_stage(rig.now)
    rig.stage(staged, prompt=4)
    assert sorted(rig.scheduler.expire(1.0)) == sorted([claimed, staged])
    assert rig.qdisc.settled == {claimed: 1}
    rig.scheduler.check_integrity()


def test_what_runs_does_not_expire() -> None:
    rig = Rig()
    row = rig.add(deadline_s=1.0)
    rig.scheduler.to_stage(rig.now)
    rig.stage(row, prompt=4)
    rig.step()
    assert rig.scheduler.expire(2.0) == []
    assert rig.scheduler.next_event(rig.now) is None


def test_the_work_of_one_call_is_bounded() -> None:
    rig = Rig(expiries_a_call=2)
    rows = [rig.add(deadline_s=1.0 + number) for number in range(5)]
    assert rig.scheduler.expire(10.0) == rows[:2]
    assert rig.scheduler.next_event(10.0) == 3.0, "due already: come again at once"
    assert rig.scheduler.expire(10.0) == rows[2:4]
    assert rig.scheduler.expire(10.0) == rows[4:]


def test_a_recycled_row_keeps_its_own_deadline() -> None:
    rig = Rig()
    row = rig.add(deadline_s=1.0)
    rig.scheduler.cancel(row, 0.0)
    rig.forget(row)
    assert rig.add(deadline_s=5.0) == row
    assert rig.scheduler.expire(2.0) == []
    assert rig.scheduler.expire(5.0) == [row]


def test_a_recycled_row_with_the_same_deadline_expires_once() -> None:
    rig = Rig()
    row = rig.add(deadline_s=1.0)
    rig.scheduler.cancel(row, 0.0)
    rig.forget(row)
    assert rig.add(deadline_s=1.0) == row
    assert rig.scheduler.expire(1.0) == [row]
    assert rig.scheduler.expire(1.0) == []


def test_entries_that_no_longer_count_are_swept() -> None:
    due: set[int] = set()
    deadlines = Deadlines(lambda row, deadline_s: row in due)
    for row in range(100_000):
        due.add(row)
        deadlines.add(row, 1000.0 + row)
        due.discard(row - 50)
    assert len(deadlines) < 2100
    assert deadlines.take_passed(1e9) == 100_000 - 50
