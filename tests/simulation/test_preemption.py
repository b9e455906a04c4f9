"""A flood of urgent requests over two low tenants, simulated: what a budget of suspensions bounds, and what not."""

from dataclasses import replace

import pytest

from kvcache.partitions import DEFAULT_SHARES
from scheduling.preemption_rules import PreemptionMode, PreemptionRules
from tests.simulation.simulation_rig import P0, P2, engine, of, request, simulate, stream, ttft_s
from workers.runs.run_record import RunRecord

WINDOW_S = 10.0


def flood(budget: int) -> RunRecord:
    """A pool that the low tenants fill, and urgent prompts that need a third of it."""
    low = [request(0.0, P2, tenant, prompt=64, output=60) for tenant in ("a", "b") for _ in range(30)]
    urgent = [request(0.5 + 0.5 * number, P0, "vip", prompt=200, output=4) for number in range(20)]
    machine = replace(
        engine(blocks=48, context_tokens=512),
        shares=DEFAULT_SHARES,
        preemption=PreemptionRules(mode=PreemptionMode.RECOMPUTE, budget=budget, window_s=WINDOW_S),
    )
    return simulate(stream(low, urgent), "htb", machine)


def suspensions(run: RunRecord, tenant: str) -> int:
    return sum(record.preemptions for record in of(run, tenant=tenant))


@pytest.mark.parametrize("budget", [1_000, 1])
def test_urgent_requests_take_what_they_need_whatever_budgets_are_left(budget: int) -> None:
    run = flood(budget)
    assert suspensions(run, "a") + suspensions(run, "b") >= 5, "then its reserve has followed, and none are needed"
    assert max(ttft_s(run, record) for record in of(run, P0)) < 0.3
    assert suspensions(run, "vip") == 0


def test_no_request_is_suspended_more_often_than_its_budget_allows() -> None:
    for record in flood(budget=1).requests:
        assert record.admitted_s is not None
        assert record.ended_s is not None
        windows = int((record.ended_s - record.admitted_s) / WINDOW_S) + 1
        assert record.preemptions <= windows


def test_without_a_budget_nobody_is_suspended() -> None:
    run = flood(budget=0)
    assert len(run.requests) == 80
    assert suspensions(run, "a") + suspensions(run, "b") == 0
