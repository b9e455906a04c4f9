"""The experiments of `benchmarks.preemption_study` and `theta_study`, short."""

from pathlib import Path

import pytest

from benchmarks import preemption_study
from benchmarks.preemption_study import Replay, flood, trace_requests
from benchmarks.theta_study import contested
from scheduling.preemption_rules import PreemptionMode

TRACE = Path(__file__).parents[1] / "data" / "azure_2023_conv.csv"
BUDGET = 1
SECONDS = 60.0
SEED = 8
"""One whose urgent requests go past budgets."""


def test_a_budget_bounds_what_each_request_suffers_and_costs_neither_the_urgent_nor_the_machine_much() -> None:
    unbounded = flood(PreemptionMode.AUTO, 1_000_000, SECONDS, SEED)
    bounded = flood(PreemptionMode.AUTO, BUDGET, SECONDS, SEED)
    assert unbounded.most_of_a_tenant > BUDGET, "else the budget shows nothing"
    assert bounded.most_of_a_request <= BUDGET
    assert bounded.past_budget > 0, "else the urgent had others to take from"
    assert min(unbounded.vip_attainment, bounded.vip_attainment) >= 0.995
    assert bounded.lowest_attainment >= 0.99
    assert bounded.tokens_s >= 0.97 * unbounded.tokens_s


def test_little_is_lost_on_a_trace_beyond_capacity() -> None:
    """In a pool of an eighth of what full slots take: in a larger one nobody is suspended at all."""
    trace = Replay.of(trace_requests(TRACE, 60), pool_tokens=6_000)
    for mode in (PreemptionMode.AUTO, PreemptionMode.RECOMPUTE):
        lost = trace.run(mode)
        assert lost.preemptions > 0
        assert (lost.swapped > 0) is (mode is PreemptionMode.AUTO)
        assert lost.share <= 0.02
        assert lost.most_of_one_request <= 2


@pytest.mark.parametrize(("theta", "swaps"), [(0.05, False), (20.0, True)])
def test_the_contested_pool_suspends_and_theta_decides_how(theta: float, swaps: bool) -> None:
    lost = contested(PreemptionMode.AUTO, 16.0, dearness=1.0, theta=theta)
    assert lost.preemptions > 0
    assert lost.swapped == (lost.preemptions if swaps else 0)


def test_its_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert preemption_study.main(["waste", str(TRACE), "--limit", "12"]) == 0
    assert "recompute" in capsys.readouterr().out
