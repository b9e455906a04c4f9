"""Growth that finds no block: who makes room, and how it comes back."""

from typing import Any

import pytest

from scheduling.preemption_rules import PreemptionRules
from scheduling.priority import PriorityClass
from scheduling.state import RequestState
from tests.scheduling.batch_rig import P0, P1, P2, P3, Rig


def full_rig(*classes: PriorityClass, answer: int = 30, prompt: int = 4, **limits: Any) -> tuple[Rig, list[int]]:
    """One running sequence of each class, admitted by a prediction that is far too low, in a pool that they fill."""
    blocks = len(classes) * 2 + 1
    rig = Rig(blocks=blocks, block_size=4, context_tokens=blocks * 4, max_sequences=8, **limits)
    rig.lengths.output_tokens = 1
    rows = []
    for priority in classes:
        rows.append(rig.add_staged(priority, prompt=prompt, answer=answer))
        rig.schedule()
    return rig, rows


def first_preemption(rig: Rig) -> tuple[int, ...]:
    for _ in range(100):
        if preempted := rig.step().preempted:
            return preempted
    raise AssertionError("nothing was preempted")


def test_the_least_urgent_class_makes_room() -> None:
    rig, (p3, _, _) = full_rig(P3, P2, P1, answer=16)
    assert first_preemption(rig) == (p3,)


def test_a_borrower_makes_room_before_a_less_urgent_class_that_is_under_its_rate() -> None:
    rig, (_, p2, _) = full_rig(P3, P2, P1, answer=16)
    rig.qdisc.over_their_rate = {P2}
    assert first_preemption(rig) == (p2,)


def test_growth_never_takes_from_a_more_urgent_class() -> None:
    rig, (_, p3) = full_rig(P1, P3, answer=8)
    rig.qdisc.over_their_rate = {P1}
    assert first_preemption(rig) == (p3,)


def test_in_a_class_the_one_admitted_last_makes_room() -> None:
    rig, (_, _, last) = full_rig(P2, P2, P2, answer=16)
    assert first_preemption(rig) == (last,)


def test_a_sequence_may_have_to_make_room_for_itself() -> None:
    rig, (_, p3) = full_rig(P1, P3, answer=8)
    # P1 (12 tokens at its end) fits into 3 blocks, P3 wants a third when only two are left to it.
    preempted = first_preemption(rig)
    assert preempted == (p3,)


def test_a_strict_sequence_never_makes_room_for_another() -> None:
    rig, (strict, other) = full_rig(P0, P3, answer=14)
    assert first_preemption(rig) == (other,)
    rig.drain()
    assert rig.scheduler.statistics().preemptions >= 1
    assert rig.state(strict) is rig.state(other) is RequestState.FINISHED


def test_a_victim_keeps_its_tokens_and_computes_them_again() -> None:
    rig, (first, victim) = full_rig(P2, P2, answer=12)
    assert first_preemption(rig) == (victim,)
    assert rig.state(victim) is RequestState.PREFILL
    assert not rig.kv.holds(victim)
    produced = rig.produced[victim]
    plans = rig.drain()
    again = next(chunk for plan in plans for chunk in plan.chunks if chunk.row == victim)
    assert (again.start, again.tokens, again.samples, again.decode) == (0, 4 + produced, True, False)
    assert rig.produced[victim] == 12
    assert rig.state(first) is rig.state(victim) is RequestState.FINISHED


def test_a_victim_goes_before_new_work_of_its_class() -> None:
    rig, (first, victim) = full_rig(P2, P2, answer=12)
    newcomer = rig.add_staged(P2, prompt=4, answer=1)
    rig.add_staged(P2, prompt=4, answer=1)
    while not (plan := rig.step()).preempted:
        assert newcomer not in plan.admitted or rig.produced[newcomer] <= 1
    late = rig.add_staged(P2, prompt=4, answer=1)
    admitted = [row for plan in rig.drain() for row in plan.admitted]
    assert admitted.index(victim) < admitted.index(late)
    assert rig.state(first) is RequestState.FINISHED


def test_nothing_but_strict_is_admitted_in_a_step_that_preempted() -> None:
    rig, _ = full_rig(P3, P3, answer=12)
    while True:
        other = rig.add_staged(P1, prompt=1, answer=1)
        plan = rig.step()
        if plan.preempted:
            break
    assert other not in plan.admitted
    assert rig.state(other) is RequestState.STAGED


def test_less_urgent_newcomers_pass_a_victim_a_bounded_number_of_times() -> None:
    rig, (_, victim) = full_rig(P2, P2, answer=12, backfill_limit=2)
    assert first_preemption(rig) == (victim,)
    passed = 0
    while rig.state(victim) is not RequestState.FINISHED:
        rig.add_staged(P3, prompt=1, answer=1)
        plan = rig.step()
        if victim in plan.admitted:
            break
        passed += len(plan.admitted)
    assert passed <= 2


def test_a_victim_comes_back_without_leave_to_dispatch() -> None:
    rig, (_, victim) = full_rig(P2, P2, answer=12)
    assert first_preemption(rig) == (victim,)
    rig.add(P1)  # its class's head, had it leave
    for _ in range(40):
        if rig.scheduler.schedule(rig.now, may_dispatch=False) is None:
            break
        rig.step(may_dispatch=False)
    assert rig.state(victim) is RequestState.FINISHED


def test_a_preempted_sequence_can_be_cancelled() -> None:
    rig, (first, victim) = full_rig(P2, P2, answer=12)
    assert first_preemption(rig) == (victim,)
    rig.scheduler.cancel(victim, rig.now)
    rig.scheduler.check_integrity()
    assert rig.qdisc.settled[victim] == 1
    rig.drain()
    assert rig.state(first) is RequestState.FINISHED
    assert rig.kv.free_blocks == rig.kv.num_blocks


def test_the_work_done_twice_is_charged_to_who_caused_it() -> None:
    rig = Rig(blocks=3, block_size=4, context_tokens=12)
    rig.lengths.output_tokens = 1
    victim = rig.add_staged(P3, prompt=6, answer=6)
    causer = rig.add_staged(P2, prompt=3, answer=6)
    preempted = rig.step().preempted + rig.step().preempted
    assert preempted == ()
    assert rig.step().preempted == (victim,), "P2 starts its second block, and P3 holds the other two"
    assert rig.qdisc.caused == {causer: 7}
    rig.drain()
    assert rig.qdisc.charged[victim] == 6 + 2 * 6
    assert rig.qdisc.charged[causer] == 3 + 2 * 6 + 7


@pytest.mark.parametrize("sequences", [2, 3, 5])
def test_equal_requests_that_outgrow_the_pool_all_end(sequences: int) -> None:
    """The case of vllm PR 54530: two equal requests that preempt each other for ever."""
    rig, rows = full_rig(*[P2] * sequences, answer=sequences * 8 - 4)
    plans = rig.drain(steps=2000)
    assert {rig.state(row) for row in rows} == {RequestState.FINISHED}
    assert sum(len(plan.preempted) for plan in plans) > 0


# --- room for an urgent prompt that nobody has to give up -------------------------------------------------------------


def crowd_of_p3(preemptible: set[PriorityClass]) -> Rig:
    """As many as the pool of 32 blocks lets in, of four blocks each at last."""
    rules = PreemptionRules(preemptible=frozenset(preemptible))
    rig = Rig(
        blocks=32,
        block_size=4,
        max_sequences=16,
        step_tokens=200,
        staged_rows=32,
        preemption=rules,
        strict_prompt_tokens=24,
    )
    for _ in range(12):
        rig.add_staged(P3, prompt=15, answer=1)
        rig.schedule()
    return rig


def test_blocks_that_nobody_may_be_evicted_from_are_left_free_for_an_urgent_prompt() -> None:
    rig = crowd_of_p3(preemptible={P0, P1, P2})
    assert rig.kv.free_blocks >= 6
    urgent = rig.add_staged(P0, prompt=24, answer=1)
    plan = rig.step()
    assert urgent in plan.admitted
    assert not plan.evictions


def test_blocks_that_somebody_may_be_evicted_from_need_not_be_left_free() -> None:
    assert crowd_of_p3(preemptible=set(PriorityClass)).kv.free_blocks < 6
