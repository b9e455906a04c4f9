"""Reserved heads and backfill: what waits in front of its class, and who may pass it."""

from scheduling.preemption_rules import PreemptionMode, PreemptionRules
from scheduling.state import RequestState
from tests.scheduling.batch_rig import P0, P1, P2, P3, Rig

WAIT = PreemptionRules(mode=PreemptionMode.COOPERATIVE)


def test_a_pick_that_is_not_staged_waits_and_its_tokens_are_made_first() -> None:
    rig = Rig(staged_rows=4)
    rows = [rig.add(P2) for _ in range(6)]
    handed_out = rig.scheduler.to_stage(rig.now)
    for row in handed_out:
        rig.stage(row, prompt=4, answer=1)
    assert rig.step().admitted == tuple(handed_out)
    head = rows[len(handed_out)]
    assert rig.state(head) is RequestState.CLAIMED
    assert rig.scheduler.to_stage(rig.now)[0] == head
    assert head not in rig.scheduler.to_stage(rig.now), "handed out once"


def test_a_class_with_a_head_gives_no_other() -> None:
    rig = Rig(blocks=25, block_size=4, context_tokens=100)
    rig.add_staged(P2, prompt=60, answer=2)
    rig.step()
    head = rig.add_staged(P2, prompt=44, answer=2)
    later = rig.add_staged(P2, prompt=4, answer=1)
    rig.step()
    assert rig.state(head) is RequestState.CLAIMED
    assert rig.state(later) is RequestState.STAGED, "it would fit"
    assert rig.drain()[1].admitted[0] == head


def test_a_pick_whose_tokens_are_being_made_bars_nobody() -> None:
    rig = Rig()
    unready = rig.add(P2)
    assert rig.schedule() is None
    later = rig.add_staged(P2)
    assert rig.step().admitted == (later,)
    rig.scheduler.to_stage(rig.now)
    rig.stage(unready, prompt=4)
    assert unready in rig.step().admitted


def test_a_class_claims_no_more_than_the_slots_could_take() -> None:
    rig = Rig(max_sequences=2)
    rows = [rig.add(P2) for _ in range(5)]
    assert rig.schedule() is None
    assert [rig.state(row) for row in rows] == [RequestState.CLAIMED] * 2 + [RequestState.WAITING] * 3


def test_a_pick_that_lacks_blocks_is_admitted_with_all_or_nothing() -> None:
    rig = Rig(blocks=25, block_size=4, context_tokens=100)
    rig.add_staged(P2, prompt=60, answer=2)
    rig.step()
    head = rig.add_staged(P2, prompt=44, answer=2)
    rig.step()
    assert rig.state(head) is RequestState.CLAIMED
    assert not rig.kv.holds(head)
    assert head in rig.drain()[1].admitted


def test_a_row_lacks_room_from_its_turn_on() -> None:
    rig = Rig(blocks=25, block_size=4, context_tokens=100)
    rig.add_staged(P2, prompt=60, answer=2)
    rig.step()
    assert rig.scheduler.take_chosen() == [], "it had room at once"
    head = rig.add_staged(P2, prompt=44, answer=2)
    rig.add_staged(P2, prompt=4, answer=1)
    rig.step()
    assert rig.scheduler.take_chosen() == [head], "the one behind it had no turn"
    rig.step()
    assert rig.scheduler.take_chosen() == [], "told once"


def test_a_row_that_is_picked_without_tokens_lacks_room_only_when_it_has_them() -> None:
    rig = Rig(blocks=25, block_size=4, context_tokens=100)
    rig.add_staged(P2, prompt=60, answer=4)
    rig.step()
    unready = rig.add(P2)
    rig.step()
    assert rig.state(unready) is RequestState.CLAIMED
    assert rig.scheduler.take_chosen() == []
    rig.scheduler.to_stage(rig.now)
    rig.stage(unready, prompt=44, answer=2)
    rig.step()
    assert rig.scheduler.take_chosen() == [unready]


def test_predicted_growth_counts_at_admission() -> None:
    rig = Rig(blocks=25, block_size=4, context_tokens=100)
    first = rig.add_staged(P2, prompt=8, answer=60)
    second = rig.add_staged(P2, prompt=8, answer=60)
    assert rig.step().admitted == (first,)
    rig.lengths.output_tokens = 8
    third = rig.add_staged(P1, prompt=8, answer=30)
    assert rig.step().admitted == (third,), "predicted shorter, it fits beside what is promised"
    assert rig.state(second) is RequestState.CLAIMED


def test_a_more_urgent_class_passes_a_head_freely() -> None:
    rig = Rig(backfill_limit=0)
    head = rig.add(P2)
    assert rig.schedule() is None
    urgent = [rig.add_staged(P1, prompt=4, answer=1) for _ in range(4)]
    assert rig.step().admitted == tuple(urgent)
    assert rig.state(head) is RequestState.CLAIMED


def test_less_urgent_classes_pass_a_head_a_bounded_number_of_times() -> None:
    rig = Rig(backfill_limit=2)
    head = rig.add(P1)
    assert rig.schedule() is None
    backfill = [rig.add_staged(P3, prompt=4, answer=1) for _ in range(2)]
    barred = rig.add_staged(P3, prompt=4, answer=1)
    assert rig.step().admitted == tuple(backfill)
    assert rig.schedule() is None, "it waits although there is room"
    assert rig.scheduler.statistics().backfills == 2
    rig.scheduler.to_stage(rig.now)
    rig.stage(head, prompt=4)
    assert rig.step().admitted == (head, barred)


def test_the_bound_holds_for_heads_of_less_urgent_classes_too() -> None:
    rig = Rig(backfill_limit=1)
    urgent, other = rig.add(P1), rig.add(P3)
    assert rig.schedule() is None
    assert rig.state(other) is RequestState.CLAIMED
    rig.scheduler.to_stage(rig.now)
    backfill = rig.add_staged(P2, prompt=4, answer=1)
    assert rig.step().admitted == (backfill,)
    rig.stage(other, prompt=4, answer=1)
    assert rig.schedule() is None
    rig.stage(urgent, prompt=4, answer=1)
    assert rig.step().admitted == (urgent, other)


def test_a_new_head_may_be_passed_anew() -> None:
    rig = Rig(backfill_limit=1)
    for _ in range(2):
        head = rig.add(P1)
        rig.schedule()
        backfill = rig.add_staged(P3, prompt=4, answer=1)
        assert rig.step().admitted == (backfill,)
        rig.scheduler.to_stage(rig.now)
        rig.stage(head, prompt=4, answer=1)
        rig.step()


def test_fronts_go_before_newcomers() -> None:
    rig = Rig(max_sequences=2)
    rig.add_staged(P3, prompt=4, answer=2)
    rig.step()
    head = rig.add(P3)
    rig.step()
    assert rig.state(head) is RequestState.CLAIMED
    rig.scheduler.to_stage(rig.now)
    rig.stage(head, prompt=4)
    rig.add_staged(P1, prompt=4)
    rig.add_staged(P1, prompt=4)
    assert rig.step().admitted[0] == head, "it was picked first; more urgent ones passed it while it couldn't go"


def test_a_strict_newcomer_goes_before_any_other_front() -> None:
    rig = Rig(blocks=25, block_size=4, context_tokens=100, preemption=WAIT)
    rig.add_staged(P2, prompt=60, answer=2)
    rig.step()
    head = rig.add_staged(P2, prompt=44, answer=2)
    rig.step()
    assert rig.state(head) is RequestState.CLAIMED
    strict = rig.add_staged(P0, prompt=80, answer=2)
    rig.step()
    plans = rig.drain()
    admitted = [row for plan in plans for row in plan.admitted]
    assert admitted == [strict, head]


def test_a_strict_class_above_its_limit_is_not_asked_first() -> None:
    """HTB's strict_limit: past it the class is an ordinary one, and whom the discipline names goes."""
    rig = Rig(max_sequences=2)
    strict = rig.add_staged(P0, prompt=4, answer=9)
    other = rig.add_staged(P2, prompt=4, answer=9)
    rig.qdisc.order = (P2, P0, P1, P3)
    assert rig.step().admitted == (other, strict)


def test_a_cancelled_head_frees_its_class() -> None:
    rig = Rig(backfill_limit=0)
    head = rig.add(P1)
    assert rig.schedule() is None
    other = rig.add_staged(P3, prompt=4, answer=1)
    assert rig.schedule() is None
    rig.scheduler.cancel(head, rig.now)
    assert rig.step().admitted == (other,)
    assert rig.qdisc.charged[head] == 0, "nothing of it was computed"


def test_a_head_is_charged_when_it_is_picked_and_refunded_what_was_not_computed() -> None:
    rig = Rig(step_tokens=8)
    row = rig.add_staged(prompt=30)
    rig.step()
    assert rig.qdisc.charged[row] == 30
    rig.scheduler.cancel(row, rig.now)
    assert rig.qdisc.charged[row] == 8
