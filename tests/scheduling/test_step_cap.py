"""Steps that get shorter for a TPOT target."""

from scheduling.preemption_rules import PreemptionRules
from scheduling.tree import Slo
from tests.scheduling.batch_rig import P0, P2, Rig

TARGET_S = 0.03
"""A step takes 10 ms, and 1 ms for each decode and prompt token."""


def rig(target_s: float | None = TARGET_S) -> Rig:
    return Rig(
        blocks=200,
        step_tokens=200,
        step_max_s=0.1,
        context_tokens=400,
        preemption=PreemptionRules(slos={P0: Slo(tpot_s=target_s)}),
    )


def with_an_urgent_decode(target_s: float | None = TARGET_S) -> Rig:
    machine = rig(target_s)
    machine.add_staged(P0, prompt=8, answer=20)
    machine.step()
    return machine


def test_a_prompt_takes_what_lets_the_next_token_come_in_time() -> None:
    machine = with_an_urgent_decode()
    machine.add_staged(P2, prompt=200)
    for _ in range(3):
        plan = machine.step()
        assert plan.predicted_s <= TARGET_S + 1e-9
        assert plan.prefill_tokens == 19, "what 10 ms, and 1 ms for the decode, leave of 30"
    assert machine.scheduler.statistics().shortened_steps >= 3


def test_what_it_is_ahead_of_its_schedule_is_lent() -> None:
    machine = with_an_urgent_decode()
    machine.step()
    machine.step()
    # Three tokens in 22 ms after the first: the fourth is due 90 ms after it.
    machine.add_staged(P2, prompt=200)
    assert machine.step().prefill_tokens == 90 - 22 - 11


def test_one_that_is_behind_is_not_made_worse_and_starves_nobody() -> None:
    machine = with_an_urgent_decode()
    machine.now += 1.0
    machine.add_staged(P2, prompt=200)
    assert machine.step().prefill_tokens == 19


def test_a_target_that_the_decodes_alone_miss_has_no_say() -> None:
    machine = with_an_urgent_decode(target_s=0.0105)
    machine.add_staged(P2, prompt=200)
    assert machine.step().prefill_tokens == 89, "the configured 100 ms"


def test_without_a_target_the_step_is_what_is_configured() -> None:
    machine = with_an_urgent_decode(target_s=None)
    machine.add_staged(P2, prompt=200)
    assert machine.step().prefill_tokens == 89


def test_a_strict_prompt_is_not_held_to_it() -> None:
    machine = with_an_urgent_decode()
    machine.add_staged(P0, prompt=60)
    assert machine.step().prefill_tokens == 60
