"""Our policies on the published experiments of the virtual token counter, beside the published results.

    python -m benchmarks.vtc_published FOLDER [--policy fifo --policy htb …] [--experiment overload …] [--json FILE]

FOLDER holds the per-request results of Ying1123/VTC-artifact as `SCHEDULER__EXPERIMENT.csv`. The machine (step times,
pool) is fitted on `FCFS__overload` alone and then held fixed. Every scheduler is told a request's output length
beforehand, as theirs was by `max_new_tokens`; VTC itself charges output only as it comes.

Where our engine must differ from theirs: prompts ride on decode steps instead of stopping them; a newcomer is looked
for at every step instead of every tenth; admission reckons in blocks and with a watermark. `--admission theirs` takes
their rule in tokens, adapters included (and their pool of 10,000 tokens) instead, to show how much of a difference that
explains.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.vtc_admission import StaggeredKV
from benchmarks.vtc_fit import FittedMachine, fit_machine
from benchmarks.vtc_results import ServedRun, VtcFigures, read_published, run_figures
from scheduling.limits import BatchLimits
from scheduling.policies import POLICIES, make_qdisc
from scheduling.priority import PriorityClass
from scheduling.state import RequestState
from scheduling.step_time import LinearStepTime
from scheduling.tree import ClassConfig, TreeConfig
from workers.runs.simulation import EngineModel, Policy, Simulation
from workers.runs.trace_mix import ArrivingRequest

FITTED_ON = ("FCFS", "overload")
PUBLISHED = ("FCFS", "VTC", "VTC_oracle", "LCF", "VTC_pred_50")
PUBLISHED_POOL_TOKENS = 10_000
_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Row:
    experiment: str
    who: str
    """`published FCFS`, `ours fifo`, …"""
    stream: str
    """Whose requests: experiments were run with streams of different length."""
    figures: VtcFigures
    light_client: str
    """The one that asked for least."""


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _arguments().parse_args(arguments)
    published = _published(parsed.folder)
    if FITTED_ON not in published:
        print(
            f"vtc_published: {parsed.folder} has no FCFS__overload.csv, which the machine is fitted on", file=sys.stderr
        )
        return 2
    admission = PUBLISHED_POOL_TOKENS if parsed.admission == "theirs" else None
    machine = _matched(published[FITTED_ON], fit_machine(published[FITTED_ON]), admission)
    experiments = sorted({experiment for _, experiment in published})
    rows: list[Row] = []
    for experiment in experiments:
        if parsed.experiment and experiment not in parsed.experiment:
            continue
        runs = {
            scheduler: published[scheduler, experiment]
            for scheduler in PUBLISHED
            if (scheduler, experiment) in published
        }
        rows += compare(experiment, runs, machine, parsed.policy or list(POLICIES), admission)
        print(f"vtc_published: {experiment} done", file=sys.stderr)
    _print(machine, rows)
    if parsed.json is not None:
        results = {
            "command": f"python -m benchmarks.vtc_published --admission {parsed.admission}",
            "figures": {"machine": machine.as_json()},
            "runs": [asdict(row) for row in rows],
        }
        parsed.json.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the published results")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="ours; may be repeated (all)")
    parser.add_argument("--experiment", action="append", help="only this one; may be repeated")
    parser.add_argument("--admission", choices=("ours", "theirs"), default="ours", help="whose rule (ours)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return parser


def _published(folder: Path) -> dict[tuple[str, str], ServedRun]:
    runs: dict[tuple[str, str], ServedRun] = {}
    for path in sorted(folder.glob("*__*.csv")):
        scheduler, _, experiment = path.stem.partition("__")
        runs[scheduler, experiment] = read_published(path)
    return runs


def _matched(run: ServedRun, machine: FittedMachine, their_pool: int | None) -> FittedMachine:
    """The fit, sped up or slowed down as a whole so that the run it was made on takes as long as it did."""
    ours = simulate(run, machine, "fifo", their_pool)
    factor = float(run.end_s.max() / ours.end_s.max())
    step = machine.step_time
    return replace(
        machine,
        step_time=LinearStepTime(
            factor * step.fixed_s, factor * step.per_prefill_token_s, factor * step.per_decode_sequence_s, 0.0
        ),
    )


# --- comparing --------------------------------------------------------------------------------------------------------


def compare(
    experiment: str,
    runs: dict[str, ServedRun],
    machine: FittedMachine,
    policies: Iterable[str],
    their_pool: int | None,
) -> list[Row]:
    """Published figures of one experiment and ours, all up to the last arrival of the shortest stream.

    `fifo` replays FCFS's stream where there is one, every other policy VTC's.
    """
    horizon_s = min(float(run.arrival_s.max()) for run in runs.values())
    light = _light_client(next(iter(runs.values())))
    rows = [
        Row(experiment, f"published {scheduler}", scheduler, run_figures(run, horizon_s), light)
        for scheduler, run in runs.items()
    ]
    for policy in policies:
        stream = "FCFS" if policy == "fifo" and "FCFS" in runs else "VTC" if "VTC" in runs else next(iter(runs))
        ours = simulate(runs[stream], machine, policy, their_pool)
        rows.append(Row(experiment, f"ours {policy}", stream, run_figures(ours, horizon_s), light))
    return rows


def _light_client(run: ServedRun) -> str:
    clients: list[str] = sorted(set(run.client.tolist()))
    return min(clients, key=lambda client: int(run.cost[run.client == client].sum()))


def simulate(
    run: ServedRun,
    machine: FittedMachine,
    name: str,
    their_pool: int | None,
) -> ServedRun:
    """The same requests under one of our policies; with their rule of admission and that pool, if it is given."""
    requests = [
        ArrivingRequest(number, arrival_s, prompt, output, PriorityClass.P1, client, client)
        for number, (arrival_s, prompt, output, client) in enumerate(
            zip(
                run.arrival_s.tolist(),
                run.prompt_tokens.tolist(),
                run.output_tokens.tolist(),
                run.client.tolist(),
                strict=True,
            )
        )
    ]
    requests.sort(key=lambda request: request.arrival_s)
    record = Simulation(requests, _engine(machine, their_pool), _policy(name, run)).run()
    done = [item for item in record.requests if item.outcome is RequestState.FINISHED]
    assert len(done) == len(requests), f"{len(requests) - len(done)} requests did not finish"
    ends = record.step_ends_s
    return ServedRun(
        client=np.array([item.request.tenant for item in done]),
        arrival_s=np.array([item.request.arrival_s for item in done]),
        prompt_tokens=np.array([item.request.prompt_tokens for item in done]),
        output_tokens=np.array([item.request.output_tokens for item in done]),
        first_token_s=np.array([ends[item.token_steps[0]] for item in done]),
        end_s=np.array([ends[item.token_steps[-1]] for item in done]),
    )


def _engine(machine: FittedMachine, their_pool: int | None) -> EngineModel:
    if their_pool is not None:
        return replace(
            _engine(machine, None),
            num_blocks=their_pool,
            block_size=1,
            make_kv=lambda index, blocks, block_size: StaggeredKV(index, blocks * block_size),
        )
    return EngineModel(
        step_time=machine.step_time,
        first_guess=machine.step_time,
        limits=BatchLimits(
            context_tokens=min(4096, machine.pool_tokens),
            max_sequences=256,
            step_tokens=4096,  # all newcomers' prompts in one step, as theirs
            step_max_s=float("inf"),
            staged_rows=512,
        ),
        num_blocks=machine.pool_tokens // _BLOCK_TOKENS,
        block_size=_BLOCK_TOKENS,
        known_lengths=True,
    )


def _policy(name: str, run: ServedRun) -> Policy:
    """One class for everybody, in which tenants share evenly."""
    tree = TreeConfig(
        classes=(ClassConfig(name="all", priority=PriorityClass.P1),),
        capacity_units_s=float(run.cost.sum() / run.end_s.max()),
        largest_item=int(run.cost.max()),
    )
    return Policy(name=name, make=partial(_make, name, tree))


def _make(name: str, tree: TreeConfig, index: Any, cost: Any) -> Any:
    return make_qdisc(name, index, tree, cost)


# --- telling ----------------------------------------------------------------------------------------------------------


def _print(machine: FittedMachine, rows: Sequence[Row]) -> None:
    step = machine.step_time
    print(
        f"fitted on FCFS__overload: a step takes {step.fixed_s * 1000:.1f} ms, + {step.per_prefill_token_s * 1000:.3f} "
        f"ms a prompt token, + {step.per_decode_sequence_s * 1000:.3f} ms a sequence; pool {machine.pool_tokens} "
        f"tokens; error of the fit {machine.mean_error_s * 1000:.0f} ms of {machine.mean_decode_s:.1f} s"
    )
    table = Table()
    for heading in ("experiment", "who", "accumulated gap", "windowed gap", "units/s", "light client", "mean TTFT s"):
        table.add_column(heading, justify="left" if heading in ("experiment", "who") else "right")
    before = None
    for row in rows:
        if before not in (None, row.experiment):
            table.add_section()
        before = row.experiment
        ttft = row.figures.mean_ttft_s
        others = [value for client, value in ttft.items() if client != row.light_client]
        table.add_row(
            row.experiment,
            row.who,
            f"{row.figures.accumulated_gap:,.0f}",
            f"{row.figures.windowed_gap:,.1f}",
            f"{row.figures.weighted_throughput:,.0f}",
            row.light_client,
            f"{ttft[row.light_client]:.2f}; others {min(others):.2f} … {max(others):.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    sys.exit(main())
