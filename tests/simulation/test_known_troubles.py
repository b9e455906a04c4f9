"""What users of other schedulers complain of, each on virtual time. The complaint's source stands with each test.

The machine: eight slots, about 40 requests a second of 64 tokens in and 16 out (`simulation_rig`).
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from scheduling.default_tree import default_tree
from scheduling.preemption_rules import PreemptionMode, PreemptionRules
from scheduling.tree import ClassConfig, Rate, TreeConfig
from tests.simulation.simulation_rig import (
    P0,
    P1,
    P2,
    P3,
    STEP,
    engine,
    figures,
    of,
    request,
    simulate,
    stream,
    ttft_s,
)
from workers.runs.run_record import RunRecord
from workers.runs.trace_mix import ArrivingRequest

COST = 64 + 2 * 16
"""Of the usual request."""


def tree(capacity_units_s: float = 4000.0, **changes: dict[str, Any]) -> TreeConfig:
    """The default tree for this machine, with changes by class name."""
    shipped = default_tree(capacity_units_s=capacity_units_s, largest_item=1024)
    return replace(shipped, classes=tuple(replace(child, **changes.get(child.name, {})) for child in shipped.classes))


def admitted_between(run: RunRecord, tenant: str, start_s: float, end_s: float) -> int:
    return sum(
        record.admitted_s is not None and start_s <= record.admitted_s <= end_s for record in of(run, tenant=tenant)
    )


# --- one tenant floods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queued", [1_000, 100_000])
def test_a_tenant_of_many_queued_requests_delays_no_other_beyond_one_round(queued: int) -> None:
    """Batch jobs of one customer before everybody else's next request (vllm#13395, GAIE#1861)."""
    flood = [request(0.0, P2, "flood") for _ in range(queued)]
    run = simulate(stream(flood, [request(2.0, P2, "other")]), "htb", tree=tree(), until_s=4.0)
    (other,) = of(run, tenant="other")
    assert other.admitted_s is not None
    # One turn of the flood: its quantum, and one request that overdraws it. What runs when the other comes is not
    # taken back, and one row more may have been claimed just before.
    quantum = tree().of(P2).tenants.quantum
    assert admitted_between(run, "flood", 2.0, other.admitted_s) <= quantum // COST + 2


def test_under_fifo_the_same_tenant_does() -> None:
    flood = [request(0.0, P2, "flood") for _ in range(1_000)]
    run = simulate(stream(flood, [request(2.0, P2, "other")]), "fifo", until_s=4.0)
    assert of(run, tenant="other")[0].admitted_s is None


@pytest.mark.parametrize("part", [0.5, 0.9, 1.0, 1.1, 2.0])
def test_tenants_of_small_and_of_large_requests_get_the_same_whatever_the_capacity_is_taken_for(part: float) -> None:
    """Shares must not turn on requests' sizes, least of all where the configured capacity is just the real one."""
    small = [request(0.0, P2, "small", prompt=32, output=8) for _ in range(4_000)]
    large = [request(0.0, P2, "large", prompt=256, output=64) for _ in range(500)]
    requests = stream(small, large)
    real = float(simulate(requests, "fifo", until_s=30.0).ticks.service[-1].sum()) / 30
    run = simulate(requests, "htb", tree=tree(capacity_units_s=part * real), until_s=60.0)
    received = dict(zip([tenant for _, tenant in run.accounts], run.ticks.service[-1].tolist(), strict=True))
    assert received["large"] == pytest.approx(received["small"], rel=0.03)


# --- a long prompt ----------------------------------------------------------------------------------------------------


def long_prompt_among_short(name: str) -> RunRecord:
    """Slots for all: at most 20 run at once."""
    short = [request(0.1 * number, P1, f"short-{number % 4}", prompt=80, output=80) for number in range(40)]
    long = request(1.0, P1, "long", prompt=4000)
    return simulate(stream(short, [long]), name, engine(max_sequences=32), tree=tree())


@pytest.mark.parametrize("name", ["htb", "strict", "fifo"])
def test_a_long_prompt_does_not_stop_running_answers(name: str) -> None:
    """A 4,000-token prefill stops everybody's decode (vllm#10235, #21495)."""
    run = long_prompt_among_short(name)
    longest = STEP.predict(256, 20, 0)
    for record in run.requests:
        times = [run.step_ends_s[step] for step in record.token_steps]
        gaps = [after - before for before, after in pairwise(times)]
        assert max(gaps, default=0.0) <= longest + 1e-9


def test_a_long_prompt_delays_an_equal_short_one_by_no_more_than_its_own_steps() -> None:
    run = long_prompt_among_short("htb")
    # 4,000 tokens in steps of 256, less the decodes beside them; then the short one's own, and the one that it met.
    steps = -(-4000 // (256 - 20)) + 2
    for record in run.requests:
        if record.request.tenant != "long":
            assert ttft_s(run, record) <= steps * STEP.predict(256, 20, 0)


def test_a_long_background_prompt_delays_an_urgent_one_by_no_step_but_the_running_one() -> None:
    prompt = request(0.0, P3, "long", prompt=4000)
    urgent = [request(0.05 + 0.3 * number, P0, "urgent", prompt=80) for number in range(4)]
    run = simulate(stream([prompt], urgent), "htb", tree=tree())
    step = STEP.predict(256, 8, 0)
    for record in of(run, P0):
        assert ttft_s(run, record) <= 2 * step + 1e-9


# --- urgent and background --------------------------------------------------------------------------------------------


def trickle(rate: float, seconds: float = 30.0) -> list[ArrivingRequest]:
    return [request(number / rate, P0, "online") for number in range(int(rate * seconds))]


def background_service(run: RunRecord) -> float:
    """Cost units of P3 at the last tick."""
    places = [place for place, account in enumerate(run.accounts) if account[0] is P3]
    return float(run.ticks.service[-1][places].sum())


def background() -> list[ArrivingRequest]:
    return [request(0.0, P3, "batch") for _ in range(2_000)]


def test_a_trickle_of_p0_neither_starves_p3_nor_waits_for_it() -> None:
    """Batch that runs only while nothing urgent waits never runs (GAIE#1861); an urgent request behind a full batch
    waits until one of it ends (vllm#40004)."""
    machine = engine(strict_slots=2)
    alone = simulate(stream(background()), "htb", machine, tree=tree(), until_s=30.0)
    run = simulate(stream(trickle(4.0), background()), "htb", machine, tree=tree(), until_s=30.0)
    taken = 4.0 * 30.0 * COST
    # Others sit out while an urgent prompt is computed: its step's fixed part is not shared with them.
    left = 1 - 4.0 * STEP.fixed_s
    assert background_service(run) >= 0.95 * (left * background_service(alone) - taken)
    # The step that it met, and its own.
    assert max(ttft_s(run, record) for record in of(run, P0) if record.outcome) <= 2 * STEP.predict(256, 8, 0)


def test_without_a_slot_of_its_own_p0_takes_one_and_waits_no_longer() -> None:
    run = simulate(stream(trickle(4.0), background()), "htb", tree=tree(), until_s=30.0)
    assert max(ttft_s(run, record) for record in of(run, P0) if record.outcome) <= 2 * STEP.predict(256, 8, 0)
    assert run.batch.preemptions > 0


def share_beside_a_flood_of_p0(name: str, mode: PreemptionMode) -> float:
    """What P3 is served, as a part of what it is served alone."""
    machine = replace(engine(), preemption=PreemptionRules(mode=mode))
    alone = simulate(stream(background()), name, machine, tree=tree(), until_s=30.0)
    run = simulate(stream(trickle(100.0), background()), name, machine, tree=tree(), until_s=30.0)
    return background_service(run) / background_service(alone)


@pytest.mark.parametrize("mode", [PreemptionMode.COOPERATIVE, PreemptionMode.AUTO])
@pytest.mark.parametrize(("name", "starves"), [("htb", False), ("strict", True)])
def test_a_flood_of_p0_leaves_p3_its_share_whether_or_not_it_evicts(
    name: str, starves: bool, mode: PreemptionMode
) -> None:
    share = share_beside_a_flood_of_p0(name, mode)
    # Weights 16 and 2 are there, and what nobody uses of 8 and 4 is shared by the same.
    assert (share < 0.02) if starves else (share >= 0.9 * 2 / 18)


# --- preemption -------------------------------------------------------------------------------------------------------


def test_two_equal_requests_never_preempt_each_other() -> None:
    """Two that need the same block undo each other's work for ever (vllm PR 54530)."""
    short = [request(output=2) for _ in range(20)]
    long = [request(20.0, P1, tenant, prompt=64, output=150) for tenant in ("a", "b")]
    # Together they need 28 blocks of 16 tokens in the end; the scheduler expects two short answers.
    machine = engine(blocks=20, context_tokens=320, known_lengths=False)
    run = simulate(stream(short, long), "htb", machine, tree=tree())
    assert figures(run)["preemptions"] == 1
    assert all(record.outcome is not None for record in run.requests)


# --- a burst of the interactive tier ----------------------------------------------------------------------------------


def test_a_burst_with_a_borrow_limit_leaves_batch_its_latency_and_best_effort_alive() -> None:
    """A five-fold burst of interactive traffic takes the machine from everybody else (vllm#6077, #24484)."""
    limited = tree(
        realtime={"strict_limit": None, "rate": Rate(share=0.5), "borrow_limit": 0.3, "burst_s": 1.0},
        batch={"rate": Rate(share=0.3), "burst_s": 1.0},
        background={"rate": Rate(share=0.2), "burst_s": 1.0},
        online={"rate": Rate(share=0.0), "burst_s": 1.0},
    )
    normal = [request(number / 10.0, P0, "interactive") for number in range(100)]
    burst = [request(10.0 + number / 100.0, P0, "interactive") for number in range(2_000)]
    batch = [request(number / 5.0, P2, "batch") for number in range(150)]
    rest = [request(0.0, P3, "rest") for _ in range(1_000)]
    run = simulate(stream(normal, burst, batch, rest), "htb", tree=limited, until_s=30.0)
    capacity = float(run.ticks.service[-1].sum()) / len(run.ticks.running)
    # Batch asks for less than its rate, so each request waits at most for what may go first: the three others' bursts
    # spent at once, each overdrawn by a request, and what is in the slots.
    saved = sum(max(child.burst_s * share * 4000.0, 1024) for child, share in _rates(limited) if child.priority != P2)
    bound = (saved + 3 * COST + 8 * COST) / capacity
    waits = [ttft_s(run, record) for record in of(run, P2) if record.token_steps]
    assert len(waits) >= 140
    assert max(waits) <= bound
    served = background_service(run)
    assert served >= 0.9 * 0.2 * capacity * 30.0


def _rates(limited: TreeConfig) -> list[tuple[ClassConfig, float]]:
    rates = [(child, child.rate.share) for child in limited.classes if child.rate is not None]
    return [(child, share) for child, share in rates if share is not None]


# --- what figures show ------------------------------------------------------------------------------------------------


def test_a_queue_whose_mean_is_flat_while_it_swings_wider_is_seen() -> None:
    """A mean queue length looks calm while the swings grow; only the variance tells."""
    # One slot, one step a request, 0.1 s each.
    service_s = 0.1
    machine = engine(
        step_time=replace(STEP, fixed_s=service_s, per_prefill_token_s=0.0, per_decode_sequence_s=0.0), max_sequences=1
    )
    # Half a minute at ten waiting, then bursts of twenty each time the queue is empty: ten on average again.
    steady = [request(output=1) for _ in range(11)]
    steady += [request(service_s * number, output=1) for number in range(1, 290)]
    bursts = [request(30.0 + 2.0 * wave, output=1) for wave in range(15) for _ in range(20)]
    queue = figures(simulate(stream(steady, bursts), "fifo", machine))["queue"]
    before, after = queue["windows"][1:4], queue["windows"][6:9]
    mean_before, mean_after = (sum(window["mean"] for window in part) / 3 for part in (before, after))
    assert mean_after == pytest.approx(mean_before, rel=0.1)
    assert max(window["variance"] for window in before) < 1.0
    assert min(window["variance"] for window in after) > 20.0
