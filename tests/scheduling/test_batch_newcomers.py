"""Room that others have: for whom they are evicted, who it is, and who is spared."""

from typing import Any

import pytest

from kvcache.partitions import Part
from kvcache.swap_plan import BlockCopy, Direction
from scheduling.preemption_rules import PreemptionMode, PreemptionRules
from scheduling.priority import PriorityClass
from scheduling.state import RequestState
from scheduling.swap_rule import SwapRates
from scheduling.tree import Slo
from tests.scheduling.batch_rig import P0, P1, P2, P3, Rig


def filled(*classes: PriorityClass, prompt: int = 16, **options: Any) -> tuple[Rig, list[int]]:
    """A request of each class runs and decodes, and together they hold all blocks but one."""
    settings: dict[str, Any] = {"max_sequences": 8, "strict_slots": 1, "step_tokens": 200}
    blocks = len(classes) * (prompt // 4 + 1) + 1
    rig = Rig(blocks=blocks, block_size=4, context_tokens=4 * blocks, **(settings | options))
    rig.lengths.output_tokens = 1
    rows = []
    for number, priority in enumerate(classes):
        rows.append(rig.add_staged(priority, prompt=prompt, answer=20, tenant=f"t{number}"))
    rig.step()
    return rig, rows


def test_a_strict_newcomer_without_blocks_gets_them_in_the_same_step() -> None:
    rig, (p1, p3) = filled(P1, P3)
    urgent = rig.add_staged(P0, prompt=16, answer=1)
    plan = rig.step()
    assert (plan.admitted, plan.preempted) == ((urgent,), (p3,))
    assert plan.evictions[0].for_row == urgent
    assert urgent in [chunk.row for chunk in plan.chunks]
    assert rig.state(p1) is RequestState.DECODE


def test_a_strict_newcomer_without_a_slot_gets_one() -> None:
    rig, rows = filled(P2, P3, max_sequences=3)
    first = rig.add_staged(P0, prompt=1, answer=20)
    assert rig.step().admitted == (first,)
    second = rig.add_staged(P0, prompt=1, answer=1)
    plan = rig.step()
    assert (plan.admitted, plan.preempted) == ((second,), (rows[1],))


def test_the_slot_of_strict_classes_is_lent_to_who_gives_it_back_within_a_step() -> None:
    rig = Rig(max_sequences=3, strict_slots=1, step_tokens=200)
    rows = [rig.add_staged(P3, prompt=2, answer=20) for _ in range(3)]
    assert rig.step().admitted == tuple(rows)
    urgent = rig.add_staged(P0, prompt=2, answer=1)
    plan = rig.step()
    assert (plan.admitted, plan.preempted) == ((urgent,), (rows[2],))
    assert urgent in [chunk.row for chunk in plan.chunks]
    assert rig.step().admitted == (rows[2],), "and back to who lent it"


@pytest.mark.parametrize(
    "rules",
    [
        PreemptionRules(mode=PreemptionMode.COOPERATIVE),
        PreemptionRules(preemptible=frozenset({P1, P2})),
        PreemptionRules(budget=0),
    ],
    ids=["mode", "class", "budget"],
)
def test_it_is_not_lent_where_nobody_may_be_evicted(rules: PreemptionRules) -> None:
    rig = Rig(max_sequences=3, strict_slots=1, step_tokens=200, preemption=rules)
    rows = [rig.add_staged(P3, prompt=2, answer=20) for _ in range(3)]
    assert rig.step().admitted == tuple(rows[:2])
    urgent = rig.add_staged(P0, prompt=2, answer=1)
    assert rig.step().admitted == (urgent,)


def test_enough_victims_or_none() -> None:
    rig, rows = filled(P0, P3)
    urgent = rig.add_staged(P0, prompt=30, answer=1)
    assert rig.step().preempted == (), "without P3 there would be too few still"
    assert rig.state(urgent) is RequestState.CLAIMED
    assert rig.state(rows[1]) is RequestState.DECODE


def test_a_small_victim_is_spared_where_a_later_one_is_enough() -> None:
    rig = Rig(blocks=12, block_size=4, context_tokens=48, max_sequences=8, step_tokens=200)
    rig.lengths.output_tokens = 1
    large = rig.add_staged(P3, prompt=28, answer=20)
    small = rig.add_staged(P3, prompt=8, answer=20)
    rig.step()
    urgent = rig.add_staged(P0, prompt=26, answer=1)
    assert rig.step().preempted == (large,), "the small one alone, which has less to lose, would not do"
    assert rig.state(small) is RequestState.DECODE
    assert rig.state(urgent) is RequestState.FINISHED


@pytest.mark.parametrize("mode", [PreemptionMode.NONE, PreemptionMode.COOPERATIVE])
def test_where_nobody_is_evicted_for_newcomers_they_wait(mode: PreemptionMode) -> None:
    rig, _ = filled(P3, P3, preemption=PreemptionRules(mode=mode))
    urgent = rig.add_staged(P0, prompt=16, answer=1)
    assert rig.step().preempted == ()
    assert rig.state(urgent) is RequestState.CLAIMED


def test_a_class_within_its_reserve_evicts_borrowers() -> None:
    parts = {P1: Part(8, 11), P3: Part(2, 11)}
    rig, (p3, other) = filled(P3, P3, parts=parts)
    newcomer = rig.add_staged(P1, prompt=16, answer=1)
    plan = rig.step()
    assert plan.admitted == (newcomer,)
    assert plan.preempted == (other,), "the one admitted last, of equals"
    assert rig.state(p3) is RequestState.DECODE


def test_a_class_beyond_its_reserve_waits() -> None:
    rig, _ = filled(P3, P3, parts={P1: Part(3, 11)})
    newcomer = rig.add_staged(P1, prompt=16, answer=1)
    assert rig.step().preempted == ()
    assert rig.state(newcomer) is RequestState.CLAIMED


def test_who_stays_within_its_reserve_is_no_borrower() -> None:
    rig, _ = filled(P3, P3, parts={P1: Part(1, 11), P3: Part(10, 11)})
    rig.add_staged(P1, prompt=2, answer=1)
    assert rig.step().preempted == ()


def test_nobody_more_urgent_makes_room_for_a_newcomer_within_its_reserve() -> None:
    rig, _ = filled(P1, P1, parts={P2: Part(10, 11)})
    rig.add_staged(P2, prompt=16, answer=1)
    assert rig.step().preempted == ()


def test_slots_have_reserves_and_ceilings_as_blocks_have() -> None:
    slots = {P1: Part(2, 4), P3: Part(0, 3)}
    rig = Rig(max_sequences=4, strict=(), slot_parts=slots, step_tokens=200)
    background = [rig.add_staged(P3, prompt=2, answer=40) for _ in range(4)]
    assert rig.step().admitted == tuple(background[:3]), "the ceiling"
    batch = rig.add_staged(P2, prompt=2, answer=40)
    assert rig.step().admitted == (batch,)
    online = rig.add_staged(P1, prompt=2, answer=1)
    plan = rig.step()
    assert (plan.admitted, plan.preempted) == ((online,), (background[2],))


def test_a_borrower_goes_before_a_less_urgent_class_that_is_under_its_rate() -> None:
    rig, (p2, p3) = filled(P2, P3, parts={P1: Part(8, 11)})
    rig.qdisc.over_their_rate = {P2}
    newcomer = rig.add_staged(P1, prompt=16, answer=1)
    assert rig.step().preempted == (p2,)
    assert newcomer in rig.produced
    assert rig.state(p3) is RequestState.DECODE


def test_to_a_strict_newcomer_rank_alone_counts() -> None:
    rig, (_, p3) = filled(P2, P3, parts={P1: Part(8, 11)})
    rig.qdisc.over_their_rate = {P2}
    rig.add_staged(P0, prompt=16, answer=1)
    assert rig.step().preempted == (p3,)


def test_who_is_under_its_rate_gives_way_where_no_borrower_can() -> None:
    rig, (_, p3) = filled(P2, P3, parts={P1: Part(8, 11)})
    rig.add_staged(P1, prompt=16, answer=1)
    assert rig.step().preempted == (p3,)


def early_and_late() -> tuple[Rig, int, int]:
    """Two of a class with an SLO fill the pool; the later one has more slack."""
    rules = PreemptionRules(slos={P1: Slo(e2e_s=30.0)})
    rig = Rig(blocks=11, context_tokens=44, max_sequences=8, step_tokens=64, preemption=rules)
    rig.lengths.output_tokens = 1
    early = rig.add_staged(P1, prompt=16, answer=20)
    rig.step()
    rig.now += 5
    late = rig.add_staged(P1, prompt=16, answer=20)
    rig.step()
    return rig, early, late


def test_the_one_with_the_most_slack_goes_first() -> None:
    rig, early, late = early_and_late()
    rig.add_staged(P0, prompt=16, answer=1)
    assert rig.step().preempted == (late,)
    assert rig.state(early) is RequestState.DECODE


def test_the_one_suspended_least_often_goes_before_one_with_more_slack() -> None:
    rig, early, late = early_and_late()
    rig.add_staged(P0, prompt=16, answer=1)
    assert rig.step().preempted == (late,)
    rig.step()
    assert rig.state(late) is RequestState.DECODE
    rig.add_staged(P0, prompt=16, answer=1)
    assert rig.step().preempted == (early,)


def test_a_class_that_is_not_preemptible_is_spared() -> None:
    rig, rows = filled(P2, P3, preemption=PreemptionRules(preemptible=frozenset({P2})))
    rig.add_staged(P0, prompt=16, answer=1)
    assert rig.step().preempted == (rows[0],)


def test_a_tenant_whose_budget_is_spent_is_spared_and_demoted() -> None:
    rules = PreemptionRules(budget=0)
    rig, (p1, _) = filled(P1, P1, preemption=rules)
    rig.add_staged(P0, prompt=16, answer=1)
    assert rig.step().preempted == ()
    assert rig.index.service_of(p1) is P2
    assert rig.index.origin_of(p1) is P1
    assert rig.scheduler.statistics().suspensions.demotions == 2


def test_no_single_request_is_suspended_more_often_in_a_window_than_a_tenant_may_be_whoever_asks() -> None:
    rules = PreemptionRules(budget=1, window_s=60.0)
    rig = Rig(blocks=11, block_size=4, context_tokens=44, max_sequences=8, step_tokens=64, preemption=rules)
    rig.lengths.output_tokens = 1
    rig.add_staged(P3, prompt=30, answer=10, tenant="low")
    evicted = []
    for urgent_s in (1.0, 2.0, 62.0):
        rig.step()
        rig.now = urgent_s
        rig.add_staged(P0, prompt=20, answer=1)
        evicted.append(len(rig.step().preempted))
        rig.step()
    assert evicted == [1, 0, 1]


def crowd(tenants: str, budget: int, **options: Any) -> tuple[Rig, list[int]]:
    """A running P3 request of each tenant, named by a letter, of 5 blocks; and none is free for another prompt."""
    blocks = 5 * len(tenants) + 1
    rules = PreemptionRules(budget=budget)
    settings: dict[str, Any] = {"context_tokens": 4 * blocks, "max_sequences": 8, "step_tokens": 200}
    rig = Rig(blocks=blocks, block_size=4, preemption=rules, **(settings | options))
    rig.lengths.output_tokens = 1
    rows = [rig.add_staged(P3, prompt=16, answer=30, tenant=tenant) for tenant in tenants]
    rig.step()
    return rig, rows


def urgent_victims(rig: Rig) -> tuple[int, ...]:
    """Whom an urgent request suspends, which then goes on."""
    urgent = rig.add_staged(P0, prompt=16, answer=30)
    plan = rig.step()
    assert urgent in plan.admitted
    return plan.preempted


def test_an_urgent_request_takes_first_from_tenants_with_a_budget_left() -> None:
    rig, (a, other_a, b) = crowd("aab", budget=1)
    assert urgent_victims(rig) == (b,), "the one admitted last"
    assert urgent_victims(rig) == (other_a,)
    assert rig.scheduler.statistics().suspensions.past_budget == 0
    assert rig.state(a) is RequestState.DECODE


def test_an_urgent_request_goes_past_a_tenants_budget_where_nobody_else_is_left() -> None:
    rig, (first, second) = crowd("aa", budget=1)
    assert urgent_victims(rig) == (second,)
    assert urgent_victims(rig) == (first,)
    assert rig.scheduler.statistics().suspensions.past_budget == 1


def test_a_class_within_its_reserve_never_goes_past_a_tenants_budget() -> None:
    rig, (_, second) = crowd("aa", budget=1, parts={P1: Part(11, 11)})
    assert urgent_victims(rig) == (second,)
    rig.add_staged(P1, prompt=16, answer=1)
    assert rig.step().preempted == ()


def test_an_urgent_request_that_grows_takes_from_who_is_past_its_budget_and_not_from_itself() -> None:
    rig, (first, second) = crowd("aa", budget=1)
    assert urgent_victims(rig) == (second,)
    evictions = next(plan.evictions for _ in range(20) if (plan := rig.step()).evictions)
    urgent = 2
    assert [(one.row, one.for_row) for one in evictions] == [(first, urgent)]


def reserve_left_free(budget: int, tenants: str) -> int:
    """Blocks that are free when as many of the tenants' requests run as may, where P0 has a reserve of 10 of 22."""
    rules = PreemptionRules(budget=budget)
    parts: dict[int, Part] = {P0: Part(10, 22)}
    rig = Rig(blocks=22, context_tokens=88, max_sequences=8, step_tokens=200, preemption=rules, parts=parts)
    rig.lengths.output_tokens = 1
    for tenant in tenants:
        rig.add_staged(P3, prompt=19, answer=1, tenant=tenant)
    assert rig.schedule() is not None
    return rig.kv.free_blocks


def test_an_urgent_reserve_is_lent_to_no_more_requests_than_may_be_suspended() -> None:
    assert reserve_left_free(64, "aaaa") == 2
    assert reserve_left_free(1, "abcd") == 2
    assert reserve_left_free(1, "aaaa") >= 5, "one of them would give back its own five blocks, and no other"
    assert reserve_left_free(0, "abcd") >= 10


def test_a_swapped_victim_goes_on_where_it_was() -> None:
    rules = PreemptionRules(mode=PreemptionMode.SWAP)
    rig, (_, victim) = filled(P1, P3, preemption=rules, swap_places=8, swap_rates=SwapRates(100, 1e6, 1e6))
    computed = rig.scheduler.running(victim).computed_tokens
    rig.add_staged(P0, prompt=16, answer=1)
    table = tuple(rig.kv.table(victim))
    plan = rig.step()
    assert plan.evictions[0].swapped
    (out,) = plan.swaps
    assert (out.direction, out.blocks) == (Direction.OUT, table[:4])
    back = next(plan for plan in rig.drain() if victim in plan.admitted)
    (copy,) = back.swaps
    assert isinstance(copy, BlockCopy)
    assert (copy.direction, copy.places) == (Direction.IN, out.places)
    (chunk,) = [chunk for chunk in back.chunks if chunk.row == victim]
    assert (chunk.start, chunk.tokens, chunk.decode) == (computed, 1, True)
    assert rig.scheduler.statistics().recomputed_tokens == 0


def test_a_full_swap_pool_means_recompute() -> None:
    rules = PreemptionRules(mode=PreemptionMode.SWAP)
    rig, _ = filled(P1, P3, preemption=rules, swap_places=3, swap_rates=SwapRates(100, 1e6, 1e6))
    rig.add_staged(P0, prompt=16, answer=1)
    plan = rig.step()
    assert not plan.evictions[0].swapped
    assert plan.swaps == ()


@pytest.mark.parametrize(("bytes_s", "swapped"), [(1e9, True), (1e3, False)])
def test_auto_takes_what_costs_less(bytes_s: float, swapped: bool) -> None:
    rules = PreemptionRules(mode=PreemptionMode.AUTO)
    rig, _ = filled(P1, P3, preemption=rules, swap_places=8, swap_rates=SwapRates(100, bytes_s, bytes_s))
    rig.add_staged(P0, prompt=16, answer=1)
    (eviction,) = rig.step().evictions
    assert eviction.swapped == swapped
    assert eviction.swap_s == pytest.approx(2 * 4 * 100 / bytes_s)
    assert eviction.recompute_s == pytest.approx(16 * 0.001)


def test_a_cancelled_swapped_request_gives_its_places_back() -> None:
    rules = PreemptionRules(mode=PreemptionMode.SWAP)
    rig, (_, victim) = filled(P1, P3, preemption=rules, swap_places=8, swap_rates=SwapRates(100, 1e6, 1e6))
    rig.add_staged(P0, prompt=16, answer=1)
    rig.step()
    assert rig.kv.statistics().swapped == 4
    rig.scheduler.cancel(victim, rig.now)
    assert rig.kv.statistics().swapped == 0
    rig.scheduler.check_integrity()


def test_what_a_victim_finds_in_the_cache_is_given_back_to_who_paid() -> None:
    rig = Rig(blocks=9, block_size=4, context_tokens=36, max_sequences=8, step_tokens=64)
    rig.lengths.output_tokens = 1
    victim = rig.add_staged(P3, prompt=25, answer=6, max_output=6, names=[*range(101, 110)])
    rig.step()
    urgent = rig.add_staged(P0, prompt=10, answer=2, max_output=2)
    assert rig.step().preempted == (victim,)
    assert rig.qdisc.caused[urgent] == 25
    rig.drain()
    assert rig.scheduler.statistics().recomputed_tokens < 25
    assert rig.state(victim) is RequestState.FINISHED


def test_other_decodes_sit_out_while_a_strict_prompt_is_computed() -> None:
    rig = Rig(max_sequences=8, step_tokens=20, sit_out_steps=2)
    streams = [rig.add_staged(P2, prompt=2, answer=20) for _ in range(6)]
    rig.step()
    rig.add_staged(P0, prompt=60, answer=1)
    decodes = [rig.step().decode_tokens for _ in range(4)]
    assert decodes == [0, 0, len(streams), 0], "for two steps in a row at most"


def test_decodes_that_cost_little_do_not_sit_out() -> None:
    rig = Rig(max_sequences=8, step_tokens=32)
    rig.add_staged(P2, prompt=2, answer=40)
    rig.step()
    rig.add_staged(P0, prompt=20, answer=1)
    plan = rig.step()
    assert (plan.prefill_tokens, plan.decode_tokens) == (20, 1)


def test_a_very_long_prompt_leaves_a_part_of_each_step_to_others() -> None:
    rig = Rig(step_tokens=32, long_prompt_tokens=50, long_prompt_step_tokens=20)
    long = rig.add_staged(P2, prompt=60, answer=1)
    other = rig.add_staged(P2, prompt=40, answer=1)
    tokens = {chunk.row: chunk.tokens for chunk in rig.step().chunks}
    assert tokens == {long: 20, other: 12}
    strict = rig.add_staged(P0, prompt=60, answer=1)
    assert [(chunk.row, chunk.tokens) for chunk in rig.step().chunks] == [(strict, 32)]
