"""What preemption costs and what its budget is worth, simulated: an urgent flood, waste on a trace.

    python -m benchmarks.preemption_study vip [--seconds N] [--seeds N] [--budgets N,N…]
    python -m benchmarks.preemption_study waste TRACE [--limit N] [--kv-tokens N]

TRACE is an Azure LLM inference trace (conversation). The machine is `llama2-70b-h100x8` of `headrace simulate` with 48
slots; scheduler, KV accounting and preemption are a worker's.

- `vip`: a large and a small low tenant keep the machine busy; bursts of urgent requests, which together stay below
  their class's ceiling, need what they have. The budget of suspensions a tenant and window off and on, beside a machine
  that evicts nobody for newcomers; each over several seeds.
- `waste`: the trace in the classes 5/60/30/5 at 1.2 × its capacity, in a pool that is short; the swap pool is half of
  it. Recomputed tokens and swapped bytes, priced as the tokens that could be computed in that time, as a part of all
  tokens; beside recomputation alone.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from rich.console import Console
from rich.table import Table

from kvcache.partitions import DEFAULT_SHARES, divide
from scheduling.default_tree import default_tree
from scheduling.limits import BatchLimits
from scheduling.policies import make_qdisc
from scheduling.preemption_rules import PreemptionMode, PreemptionRules
from scheduling.priority import PriorityClass
from scheduling.swap_rule import SwapRates
from scheduling.tree import TreeConfig
from workers.engine.assembly import strict_classes
from workers.runs.run_record import RunRecord
from workers.runs.run_results import request_times
from workers.runs.simulation import EngineModel, Policy, Simulation, SwapModel
from workers.runs.simulation_study import Study, measure_capacity, slo_of
from workers.runs.step_models import PRESETS
from workers.runs.trace_files import read_trace
from workers.runs.trace_mix import ArrivingRequest, mix, parse_source, scaled

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_TOKENS",
    "LOST_HEADINGS",
    "STEP_TIME",
    "Flood",
    "Lost",
    "Replay",
    "flood",
    "lost_of",
    "lost_row",
    "machine",
    "new_table",
    "rules_of",
    "run",
    "trace_requests",
]

P0, _, P2, _ = PriorityClass
STEP_TIME = PRESETS["llama2-70b-h100x8"]
BLOCK_TOKENS = 16
BLOCK_BYTES = 80 * 2 * 8 * 128 * 2 * BLOCK_TOKENS
"""Of Llama-2-70B in 16 bits: layers × (keys, values) × KV heads × their width × bytes × tokens."""
COPY_BYTES_S = 8 * 20e9
"""Eight links at once."""
SLOTS = 48
SHORT_POOL_TOKENS = 24_000
"""Of 48 slots full of conversations less than half."""
WINDOW_S = 60.0
LOW_RATES = {"large": 1.95, "small": 0.65}
"""Requests a second of the low tenants."""


# --- the machine ------------------------------------------------------------------------------------------------------


def machine(
    pool_tokens: int,
    rules: PreemptionRules,
    *,
    swap_places: int = 0,
    copy_bytes_s: float = COPY_BYTES_S,
    theta: float = 1.0,
    context_tokens: int = 8192,
    max_tokens: int = 1024,
) -> EngineModel:
    """`max_tokens`: the output limit that requests carry."""
    slots = divide("sequence slots", SLOTS, DEFAULT_SHARES)
    limits = BatchLimits(
        context_tokens=context_tokens,
        max_sequences=SLOTS,
        strict_slots=1,
        step_tokens=512,
        slot_parts={PriorityClass(owner): replace(part, ceiling=SLOTS) for owner, part in slots.items()},
    )
    rates = SwapRates(BLOCK_BYTES, copy_bytes_s, copy_bytes_s)
    return EngineModel(
        step_time=STEP_TIME,
        first_guess=STEP_TIME,
        limits=limits,
        num_blocks=pool_tokens // BLOCK_TOKENS,
        block_size=BLOCK_TOKENS,
        max_tokens=max_tokens,
        shares=DEFAULT_SHARES,
        preemption=rules,
        swap=SwapModel(swap_places, rates, theta) if swap_places else None,
    )


def rules_of(mode: PreemptionMode, budget: int = 64) -> PreemptionRules:
    tree = default_tree()
    slos = {child.priority: child.slo for child in tree.walk() if child.priority is not None}
    return PreemptionRules(mode=mode, budget=budget, window_s=WINDOW_S, slos=slos)


def run(
    requests: Sequence[ArrivingRequest],
    engine: EngineModel,
    tree: TreeConfig,
    on_preempted: Callable[[ArrivingRequest, float], None] = lambda _request, _now: None,
) -> RunRecord:
    policy = Policy(
        name="htb",
        make=lambda index, cost: make_qdisc("htb", index, tree, cost),
        strict_classes=strict_classes("htb", tree),
    )
    return Simulation(requests, engine, policy, partial(slo_of, tree), on_preempted).run()


# --- what was lost ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lost:
    preemptions: int
    swapped: int
    recomputed_tokens: int
    copied_s: float
    seconds: float
    """Recomputation and copies."""
    share: float
    """The same as tokens, of all tokens."""
    most_of_one_request: int
    end_s: float


def lost_of(record: RunRecord, copy_bytes_s: float = COPY_BYTES_S) -> Lost:
    token_s = STEP_TIME.per_prefill_token_s
    recomputed = record.batch.recomputed_tokens
    copied_s = (record.kv.swapped_out + record.kv.swapped_in) * BLOCK_BYTES / copy_bytes_s
    asked = sum(one.request.prompt_tokens + one.request.output_tokens for one in record.requests)
    return Lost(
        preemptions=record.batch.preemptions,
        swapped=record.batch.suspensions.swapped,
        recomputed_tokens=recomputed,
        copied_s=copied_s,
        seconds=recomputed * token_s + copied_s,
        share=(recomputed + copied_s / token_s) / asked,
        most_of_one_request=max(one.preemptions for one in record.requests),
        end_s=record.end_s,
    )


# --- an urgent flood --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flood:
    vip_attainment: float
    lowest_attainment: float
    """Of the low tenants."""
    most_of_a_request: int
    """Suspensions of one low request in any window, for others."""
    most_of_a_tenant: int
    """The same of a tenant's requests together."""
    past_budget: int
    """Suspensions of those whose tenant's budget was spent."""
    demotions: int
    tokens_s: float
    lost: Lost


def flood_requests(seconds: float, seed: int = 5) -> tuple[ArrivingRequest, ...]:
    """Low tenants that want somewhat more than the pool lets in, and every 4 s a burst of urgent requests."""
    draw = Random(seed)
    found: list[ArrivingRequest] = []
    for tenant, rate in LOW_RATES.items():
        now_s = 0.0
        while now_s < seconds:
            prompt, output = draw.randrange(300, 1_200), draw.randrange(100, 300)
            found.append(ArrivingRequest(0, now_s, prompt, output, P2, tenant, tenant))
            now_s += draw.expovariate(rate)
    for burst in range(1, int(seconds / 4)):
        for _ in range(draw.randrange(2, 15)):
            prompt, output = draw.randrange(50, 150), draw.randrange(60, 200)
            found.append(ArrivingRequest(0, 4.0 * burst + 0.5 * draw.random(), prompt, output, P0, "vip", "vip"))
    found.sort(key=lambda request: request.arrival_s)
    return tuple(replace(request, number=number) for number, request in enumerate(found))


def flood(mode: PreemptionMode, budget: int, seconds: float, seed: int = 5) -> Flood:
    tree = default_tree(capacity_units_s=10_000.0)
    engine = machine(
        SHORT_POOL_TOKENS,
        rules_of(mode, budget),
        swap_places=SHORT_POOL_TOKENS // BLOCK_TOKENS // 2,
        max_tokens=300,
    )
    of_requests: dict[int, list[float]] = {}
    of_tenants: dict[str, list[float]] = {}

    def note(request: ArrivingRequest, now: float) -> None:
        of_requests.setdefault(request.number, []).append(now)
        of_tenants.setdefault(request.tenant, []).append(now)

    record = run(flood_requests(seconds, seed), engine, tree, note)
    times = request_times(record)
    met = times.meets(partial(slo_of, tree))
    attainment = {tenant: float(met[times.tenant == tenant].mean()) for tenant in np.unique(times.tenant)}
    tokens = sum(one.request.prompt_tokens + one.request.output_tokens for one in record.requests)
    return Flood(
        vip_attainment=attainment.pop("vip"),
        lowest_attainment=min(attainment.values()),
        most_of_a_request=max(map(_most_in_a_window, of_requests.values()), default=0),
        most_of_a_tenant=max(map(_most_in_a_window, of_tenants.values()), default=0),
        past_budget=record.batch.suspensions.past_budget,
        demotions=record.batch.suspensions.demotions,
        tokens_s=tokens / record.end_s,
        lost=lost_of(record),
    )


def _most_in_a_window(times_s: Sequence[float]) -> int:
    return max(sum(start <= moment < start + WINDOW_S for moment in times_s) for start in times_s)


# --- a trace ----------------------------------------------------------------------------------------------------------


def trace_requests(trace: Path, limit: int | None) -> tuple[ArrivingRequest, ...]:
    """In the classes of the named mix 5/60/30/5, two tenants each class or so."""
    limited = "" if limit is None else f",limit={limit}"
    source = parse_source(f"{trace}@class=p0:5+p1:60+p2:30+p3:5,tenants=6{limited}")
    return mix([(source, read_trace(trace))], seed=1)


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace at a load × the capacity of the machine with a pool, which is measured once for all runs."""

    requests: tuple[ArrivingRequest, ...]
    tree: TreeConfig
    pool_tokens: int

    @classmethod
    def of(
        cls, requests: Sequence[ArrivingRequest], *, load: float = 1.2, pool_tokens: int = SHORT_POOL_TOKENS
    ) -> "Replay":
        tree = default_tree(capacity_units_s=10_000.0)
        engine = machine(
            pool_tokens, rules_of(PreemptionMode.RECOMPUTE), context_tokens=_longest(requests, pool_tokens)
        )
        capacity = measure_capacity(Study(tuple(requests), engine, tree, None))
        loaded = scaled(requests, capacity.factor(requests, load))
        return cls(loaded, replace(tree, capacity_units_s=capacity.units_s), pool_tokens)

    def run(self, mode: PreemptionMode) -> Lost:
        engine = machine(
            self.pool_tokens,
            rules_of(mode),
            swap_places=self.pool_tokens // BLOCK_TOKENS // 2,
            context_tokens=_longest(self.requests, self.pool_tokens),
        )
        return lost_of(run(self.requests, engine, self.tree))


def _longest(requests: Sequence[ArrivingRequest], pool_tokens: int) -> int:
    """The context of a worker that must take them all: with the limit that they carry, or the whole pool."""
    longest = max(request.prompt_tokens + max(request.output_tokens, 1024) for request in requests)
    return min(longest, pool_tokens)


# --- the command ------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="what preemption costs, simulated")
    studies = parser.add_subparsers(dest="study", required=True)
    vip = studies.add_parser("vip")
    vip.add_argument("--seconds", type=float, default=120.0)
    vip.add_argument("--seeds", type=int, default=10, help="how many (%(default)s)")
    vip.add_argument("--budgets", default="16,4,1", metavar="N,N…", help="(%(default)s)")
    waste = studies.add_parser("waste")
    waste.add_argument("trace", type=Path)
    waste.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    waste.add_argument("--kv-tokens", type=int, default=SHORT_POOL_TOKENS, metavar="N", help="(%(default)s)")
    parsed = parser.parse_args(arguments)
    console = Console(width=150)
    if parsed.study == "vip":
        budgets = [int(budget) for budget in parsed.budgets.split(",")]
        console.print(_vip_table(parsed.seconds, parsed.seeds, budgets))
    else:
        console.print(_waste_table(trace_requests(parsed.trace, parsed.limit), parsed.kv_tokens))
    return 0


def new_table(title: str, *headings: str) -> Table:
    table = Table(title=title)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left")
    return table


def _vip_table(seconds: float, seeds: int, budgets: Sequence[int]) -> Table:
    """The worst of all seeds, but for the sums of suspensions."""
    table = new_table(
        f"an urgent flood, {seconds:g} s, worst of {seeds} seeds; a window has {WINDOW_S:g} s",
        "",
        "VIP attainment",
        "lowest of the others",
        "suspensions",
        "most of a request",
        "most of a tenant",
        "past the budget",
        "demoted",
        "tokens/s",
        "cost",
        "lost",
    )
    unbounded = [flood(PreemptionMode.AUTO, _OFF, seconds, seed) for seed in range(seeds)]
    runs = {
        "nobody is evicted for newcomers": [flood(PreemptionMode.COOPERATIVE, _OFF, seconds, n) for n in range(seeds)],
        "budget off": unbounded,
    }
    for budget in budgets:
        runs[f"budget {budget}"] = [flood(PreemptionMode.AUTO, budget, seconds, seed) for seed in range(seeds)]
    for name, floods in runs.items():
        table.add_row(
            name,
            f"{min(one.vip_attainment for one in floods):.2%}",
            f"{min(one.lowest_attainment for one in floods):.2%}",
            str(sum(one.lost.preemptions for one in floods)),
            str(max(one.most_of_a_request for one in floods)),
            str(max(one.most_of_a_tenant for one in floods)),
            str(sum(one.past_budget for one in floods)),
            str(sum(one.demotions for one in floods)),
            f"{min(one.tokens_s for one in floods):,.0f}",
            f"{max(1 - one.tokens_s / free.tokens_s for one, free in zip(floods, unbounded, strict=True)):.1%}",
            f"{max(one.lost.share for one in floods):.2%}",
        )
    return table


_OFF = 1_000_000
"""A budget that nobody spends."""


def lost_row(name: str, lost: Lost) -> list[str]:
    return [
        name,
        str(lost.preemptions),
        str(lost.swapped),
        f"{lost.recomputed_tokens:,}",
        f"{lost.copied_s:.2f} s",
        f"{lost.seconds:.2f} s",
        f"{lost.share:.2%}",
        str(lost.most_of_one_request),
        f"{lost.end_s:,.1f} s",
    ]


LOST_HEADINGS = ("suspensions", "swapped", "recomputed", "copies", "lost", "of all tokens", "most of one", "makespan")


def _waste_table(requests: Sequence[ArrivingRequest], pool_tokens: int) -> Table:
    table = new_table(
        f"{len(requests)} conversations at 1.2 × capacity, {pool_tokens} tokens of KV", "mode", *LOST_HEADINGS
    )
    trace = Replay.of(requests, pool_tokens=pool_tokens)
    for mode in (PreemptionMode.RECOMPUTE, PreemptionMode.SWAP, PreemptionMode.AUTO):
        table.add_row(*lost_row(mode.value, trace.run(mode)))
    return table


if __name__ == "__main__":
    sys.exit(main())
