"""What the queueing disciplines cost a request, with up to a million queued.

Each run is a process of its own: the queue is filled to a depth, over a tenth as many flows (at most 100,000), in a
tree of three levels; then each round enqueues a request, dequeues one and charges it once. The mean of that is the
figure; the 99th percentile, index rows, settlement and memory stand beside it. `heapq` is a plain priority queue. The
rounds of all policies are interleaved, --repeats times; medians are reported.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from scheduling.policies import POLICIES
from workers.bench.scheduler import HEAPQ
from workers.cli import UsageError

__all__ = ["add_arguments", "run"]

_POLICIES = ("htb", "vtc", "fifo")
_DEPTHS = (1_000, 10_000, 100_000, 1_000_000)
_MOST_FLOWS = 100_000
_FIGURES = ("mean_us", "p99_us", "index_us", "settle_us", "bytes_a_row")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        action="append",
        choices=POLICIES,
        help=f"may be repeated ({', '.join(_POLICIES)}); {HEAPQ} always runs beside them",
    )
    parser.add_argument("--depth", action="append", type=int, metavar="N", help="queued requests (1000 … 1000000)")
    parser.add_argument("--requests", type=int, default=50_000, metavar="N", help="timed in each run (50000)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="(3)")
    parser.add_argument("--out", type=Path, default=Path("out/bench-scheduler.json"), help="(out/bench-scheduler.json)")
    parser.add_argument("--json", action="store_true", help="print the JSON too")


def run(arguments: argparse.Namespace) -> int:
    from workers.bench.record import bench_record, write_record

    for name in ("requests", "repeats"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name} {getattr(arguments, name)}: at least 1")
    policies = [HEAPQ, *dict.fromkeys(arguments.policy or _POLICIES)]
    depths = sorted(dict.fromkeys(arguments.depth or _DEPTHS))
    if depths[0] < 1:
        raise UsageError(f"--depth {depths[0]}: at least 1")
    console = Console(stderr=True)
    runs: list[dict[str, Any]] = []
    for repeat in range(arguments.repeats):
        for depth in depths:
            for policy in policies:
                console.print(f"{policy}, {depth} queued, run {repeat + 1} of {arguments.repeats} …")
                runs.append(_run(policy, depth, arguments.requests, seed=repeat + 1))
    figures = _figures(runs, policies, depths)
    record = bench_record(figures, runs)
    write_record(record, arguments.out)
    console.print(_table(figures))
    console.print(f"written to {arguments.out}")
    if arguments.json:
        print(json.dumps(record))
    return 0


def _run(policy: str, depth: int, requests: int, seed: int) -> dict[str, Any]:
    flows = min(_MOST_FLOWS, max(1, depth // 10))
    options = {"policy": policy, "depth": depth, "flows": flows, "requests": requests, "seed": seed}
    command = [sys.executable, "-m", "workers.bench.scheduler"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def _figures(runs: list[dict[str, Any]], policies: list[str], depths: list[int]) -> dict[str, Any]:
    """By policy and depth: medians, and the ratio to the plain priority queue at that depth."""
    figures: dict[str, Any] = {}
    for policy in policies:
        figures[policy] = {}
        for depth in depths:
            mine = [run for run in runs if (run["policy"], run["depth"]) == (policy, depth)]
            of_depth = {name: median(run[name] for run in mine) for name in _FIGURES}
            plain = figures[HEAPQ].get(str(depth), of_depth)
            figures[policy][str(depth)] = of_depth | {"ratio_heapq": of_depth["mean_us"] / plain["mean_us"]}
    return figures


def _table(figures: dict[str, Any]) -> Table:
    table = Table(title="a request: enqueue + dequeue + one charge; medians")
    for heading in ("policy", "queued", "mean", "99th", f"× {HEAPQ}", "index row", "settle", "bytes a row"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for policy, by_depth in figures.items():
        for depth, values in by_depth.items():
            table.add_row(
                policy,
                f"{int(depth):,}",
                f"{values['mean_us']:.1f} µs",
                f"{values['p99_us']:.1f} µs",
                f"{values['ratio_heapq']:.1f}",
                f"{values['index_us']:.1f} µs",
                f"{values['settle_us']:.1f} µs",
                f"{values['bytes_a_row']:.0f}",
            )
    return table
