"""A flood of urgent requests over two low tenants, simulated: nobody is suspended more often than his budget allows."""

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


def test_without_a_budget_to_speak_of_urgent_requests_take_what_they_need() -> None:
    run = flood(budget=1_000)
    assert suspensions(run, "a") + suspensions(run, "b") >= 5, "then its reserve has followed, and none are needed"
    assert max(ttft_s(run, record) for record in of(run, P0)) < 0.3
    assert suspensions(run, "vip") == 0


@pytest.mark.parametrize("budget", [0, 1])
def test_nobody_is_suspended_more_often_than_his_budget_allows(budget: int) -> None:
    run = flood(budget)
    windows = int(run.end_s / WINDOW_S) + 1
    assert len(run.requests) == 80
    for tenant in ("a", "b"):
        assert suspensions(run, tenant) <= budget * windows
