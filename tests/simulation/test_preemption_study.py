"""The experiments of `benchmarks.preemption_study`, short."""

from pathlib import Path

import pytest

from benchmarks import preemption_study
from benchmarks.preemption_study import Replay, flood, trace_requests
from scheduling.preemption_rules import PreemptionMode

TRACE = Path(__file__).parents[1] / "data" / "azure_2023_conv.csv"
BUDGET = 6
SECONDS = 40.0


def test_a_budget_bounds_what_each_tenant_suffers_and_costs_neither_the_urgent_nor_the_machine_much() -> None:
    unbounded = flood(PreemptionMode.AUTO, 1_000_000, SECONDS)
    bounded = flood(PreemptionMode.AUTO, BUDGET, SECONDS)
    assert unbounded.most_suspensions > BUDGET, "else the budget shows nothing"
    assert bounded.most_suspensions <= BUDGET
    assert min(unbounded.vip_attainment, bounded.vip_attainment) >= 0.995
    assert bounded.lowest_attainment >= 0.99
    assert bounded.tokens_s >= 0.97 * unbounded.tokens_s


def test_little_is_lost_on_a_trace_beyond_capacity_and_swapping_loses_less() -> None:
    """In a pool of an eighth of what full slots take: in a larger one nobody is suspended at all."""
    trace = Replay.of(trace_requests(TRACE, None), pool_tokens=6_000)
    auto, recompute = trace.run(PreemptionMode.AUTO), trace.run(PreemptionMode.RECOMPUTE)
    assert auto.preemptions > 0
    assert auto.swapped > 0
    assert auto.share <= 0.02
    assert auto.seconds <= recompute.seconds
    assert auto.most_of_one_request <= 2


def test_its_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert preemption_study.main(["waste", str(TRACE), "--limit", "20"]) == 0
    assert "recompute" in capsys.readouterr().out
