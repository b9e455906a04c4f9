"""Swap or recompute: seconds lost by the factor θ of the rule (`scheduling.swap_rule`), simulated.

    python -m benchmarks.theta_study [--seconds N]

Batch requests with long prompts fill a small pool, and a class within its reserve takes it back every 5 s; swapping is
half as dear as recomputation, as dear, and twice as dear. The machine is that of `benchmarks.preemption_study`.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from rich.console import Console
from rich.table import Table

from benchmarks.preemption_study import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    LOST_HEADINGS,
    STEP_TIME,
    Lost,
    lost_of,
    lost_row,
    machine,
    new_table,
    rules_of,
    run,
)
from scheduling.default_tree import default_tree
from scheduling.preemption_rules import PreemptionMode
from scheduling.priority import PriorityClass
from workers.runs.trace_mix import ArrivingRequest

__all__ = ["contested", "contested_requests"]

_, P1, P2, _ = PriorityClass
POOL_TOKENS = 16_000


def contested_requests(seconds: float, seed: int = 1) -> tuple[ArrivingRequest, ...]:
    """Long batch prompts that fill the pool, and every 5 s requests of a class that is within its reserve."""
    draw = Random(seed)
    found: list[ArrivingRequest] = []
    for tenant in ("a", "b"):
        now_s = 0.0
        while now_s < seconds:
            prompt, output = draw.randrange(1_000, 4_000), draw.randrange(100, 400)
            found.append(ArrivingRequest(0, now_s, prompt, output, P2, tenant, tenant))
            now_s += draw.expovariate(0.8)
    for burst in range(1, int(seconds / 5)):
        for _ in range(draw.randrange(1, 4)):
            prompt, output = draw.randrange(1_000, 3_000), draw.randrange(20, 100)
            found.append(ArrivingRequest(0, 5.0 * burst + 0.5 * draw.random(), prompt, output, P1, "online", "online"))
    found.sort(key=lambda request: request.arrival_s)
    return tuple(replace(request, number=number) for number, request in enumerate(found))


def contested(mode: PreemptionMode, seconds: float, *, dearness: float, theta: float = 1.0) -> Lost:
    """`dearness`: a block's copies, out and in, against the prefill of its tokens."""
    copy_bytes_s = 2 * BLOCK_BYTES / (BLOCK_TOKENS * STEP_TIME.per_prefill_token_s) / dearness
    engine = machine(
        POOL_TOKENS,
        rules_of(mode),
        swap_places=POOL_TOKENS // BLOCK_TOKENS // 2,
        copy_bytes_s=copy_bytes_s,
        theta=theta,
        max_tokens=400,
    )
    return lost_of(run(contested_requests(seconds), engine, default_tree(capacity_units_s=10_000.0)), copy_bytes_s)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="seconds lost by θ, simulated")
    parser.add_argument("--seconds", type=float, default=60.0)
    Console(width=150).print(_theta_table(parser.parse_args(arguments).seconds))
    return 0


def _theta_table(seconds: float) -> Table:
    table = new_table(f"a small pool, contested for {seconds:g} s", "swap ÷ recompute", "rule", *LOST_HEADINGS)
    for dearness in (0.5, 1.0, 2.0):
        for mode in (PreemptionMode.RECOMPUTE, PreemptionMode.SWAP):
            lost = contested(mode, seconds, dearness=dearness)
            table.add_row(f"{dearness:g}", *lost_row(mode.value, lost))
        for theta in (0.25, 0.5, 1.0, 2.0, 4.0):
            lost = contested(PreemptionMode.AUTO, seconds, dearness=dearness, theta=theta)
            table.add_row(f"{dearness:g}", *lost_row(f"θ = {theta:g}", lost))
    return table


if __name__ == "__main__":
    sys.exit(main())
