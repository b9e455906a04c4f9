"""Replay request traces on virtual time, under several policies side by side: an hour of traffic in a minute.

  headrace simulate conv.csv@class=p0:0.3+p1:0.7,tenants=4 code.csv@class=p1 \\
      arxiv.csv@class=p2,rate=0.5 synthetic@class=p3,requests=500,prompt=512,output=256 \\
      --policy htb --policy fifo --load 0.8 --load 1.3 --seed 1 --out results

Scheduler, queueing discipline and KV accounting are those of a worker; only the model is replaced, by one of how long a
step takes. The worker's settings (engine.max_sequences, engine.step_tokens, …) come from the configuration.

A trace is FILE@key=value,… in a format told by the file's header: Azure LLM inference traces, Mooncake, VTC, vidur,
LLMServingSim, or our own (arrival_s, prompt_tokens, output_tokens; class, tenant, flow if you like).

  class=p1 or p0:0.3+p1:0.7   service class, or a random split      rate=2.5    mean requests a second
  tenant=a or a:2+b:1         tenants                               limit=1000  only the first requests
  tenants=5, flows=8          so many, equally often                start=30    delay in seconds
  synthetic@…                 requests=, prompt=, output= tokens; at once where no rate= is given
  chat@…, code@…, summarise@…, 5/60/30/5@…   named mixes with the lengths of public traces: requests=, rate=

--out gets results.json (in the names of `vllm bench serve`, plus fairness), a CSV of requests and a PNG for each run,
and report.html, which needs no other file. The same seed gives the same bytes.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scheduling.cost import CostKind
from scheduling.limits import LimitsError
from scheduling.policies import POLICIES
from scheduling.tree import TreeError
from topics.extras import how_to_install
from workers.cli import UsageError
from workers.commands.run_output import write_runs
from workers.configuration.config import ConfigError, WorkerConfig, load_config
from workers.engine.assembly import batch_limits, class_tree, cost_model
from workers.runs.capacity import Capacity
from workers.runs.run_report import ReportRun
from workers.runs.run_results import Figures
from workers.runs.simulation import EngineModel
from workers.runs.simulation_study import (
    RunFailed,
    RunTask,
    Study,
    alone_tasks,
    measure_capacity,
    run_tasks,
    slowdowns,
)
from workers.runs.step_models import PRESETS, StepModelError, linear_guess, parse_step_model
from workers.runs.trace_files import Trace, TraceError, read_trace
from workers.runs.trace_mix import ArrivingRequest, SourceError, TraceSource, mix, parse_source

__all__ = ["add_arguments", "run"]

DEFAULT_STEP_TIME = "llama2-70b-h100x8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "traces", nargs="+", metavar="TRACE", help="FILE@key=value,…, synthetic@key=value,… or a named mix"
    )
    parser.add_argument(
        "--policy",
        action="append",
        choices=POLICIES,
        help=f"one of {', '.join(POLICIES)}; may be repeated (the configuration's scheduling.policy)",
    )
    parser.add_argument(
        "--load",
        action="append",
        type=float,
        metavar="L",
        help="stretch the arrivals to so much of the capacity (1.0 = all of it); may be repeated (as recorded)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (1)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results.json, CSVs, PNGs and report.html")
    parser.add_argument(
        "--step-time",
        default=DEFAULT_STEP_TIME,
        metavar="MODEL",
        help=f"{', '.join(PRESETS)}, linear:FILE, linear:fixed_s=…,…, or table:FILE@hardware=… ({DEFAULT_STEP_TIME})",
    )
    parser.add_argument("--kv-tokens", type=int, default=131_072, help="tokens that the KV pool holds (131072)")
    parser.add_argument("--block-size", type=int, default=16, help="tokens a KV block (16)")
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=1024,
        help="output limit that requests carry; more where they gave more (1024)",
    )
    parser.add_argument(
        "--lengths",
        choices=("predicted", "known"),
        default="predicted",
        help="known: the scheduler is told each output length beforehand (predicted)",
    )
    parser.add_argument("--staging-ms", type=float, default=0.0, help="time of the staging thread for a request (0)")
    parser.add_argument(
        "--alone", action="store_true", help="also run each class and tenant by itself, for slowdowns against alone"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at the same time (all cores)")
    parser.add_argument("--no-plots", action="store_true", help="no PNGs")
    parser.add_argument("--json", action="store_true", help="print results.json")


def run(arguments: argparse.Namespace) -> int:
    plots = arguments.out is not None and not arguments.no_plots
    if plots and find_spec("matplotlib") is None:
        raise UsageError(f"plots need matplotlib, or --no-plots: {how_to_install('bench')}")
    try:
        config = load_config()
        sources = [(source, _read(source)) for source in map(parse_source, arguments.traces)]
        requests = mix(sources, arguments.seed)
        engine = _engine(arguments, config, requests)
        tree = class_tree(config.scheduling, engine.first_guess, engine.cost, config.engine.max_sequences)
        study = Study(requests, engine, tree, arguments.out, plots)
    except (ConfigError, TraceError, SourceError, StepModelError, LimitsError, TreeError) as error:
        raise UsageError(str(error)) from error
    policies = list(dict.fromkeys(arguments.policy or [config.scheduling.policy]))
    loads = list(dict.fromkeys(arguments.load or [None]))
    for load in loads:
        if load is not None and not 0 < load < 100:
            raise UsageError(f"--load {load}: a part of the capacity, such as 0.8 or 1.3")
    if arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: at least 1")
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        capacity, runs, study = _measure_and_run(study, policies, loads, arguments)
    except RunFailed as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    settings = _settings(arguments, study, capacity, [trace for _, trace in sources])
    _write(arguments, settings, runs, study)
    return 0


# --- what is asked for ------------------------------------------------------------------------------------------------


def _read(source: TraceSource) -> Trace:
    return source.synthetic() if source.path is None else read_trace(source.path)


def _engine(arguments: argparse.Namespace, config: WorkerConfig, requests: Sequence[ArrivingRequest]) -> EngineModel:
    for name in ("kv_tokens", "block_size", "max_tokens"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: at least 1")
    if not 0 <= arguments.staging_ms < float("inf"):
        raise UsageError(f"--staging-ms {arguments.staging_ms}: milliseconds, from 0 up")
    num_blocks = arguments.kv_tokens // arguments.block_size
    if num_blocks < 1:
        raise UsageError(f"--kv-tokens {arguments.kv_tokens}: less than one block of {arguments.block_size} tokens")
    longest = max(request.prompt_tokens + max(request.output_tokens, arguments.max_tokens) for request in requests)
    engine = config.engine
    model = parse_step_model(arguments.step_time)
    guess = linear_guess(model)
    return EngineModel(
        step_time=model,
        first_guess=guess,
        limits=batch_limits(engine, config.scheduling, guess, min(longest, num_blocks * arguments.block_size)),
        num_blocks=num_blocks,
        block_size=arguments.block_size,
        cost=cost_model(CostKind(config.scheduling.cost), guess, engine.max_sequences),
        max_tokens=arguments.max_tokens,
        known_lengths=arguments.lengths == "known",
        staging_s=arguments.staging_ms / 1000,
    )


def _ordinary_cost(study: Study) -> int:
    """The cost that 99 of 100 requests don't exceed."""
    cost = study.engine.cost
    costs = sorted(cost.prompt(r.prompt_tokens) + cost.output(r.output_tokens) for r in study.requests)
    return costs[(len(costs) - 1) * 99 // 100]


# --- running ----------------------------------------------------------------------------------------------------------


class _Bars:
    """A progress bar for each run, on standard error. Nothing where that is no terminal."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )

    def __enter__(self) -> "_Bars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def task(self, name: str, total: int) -> "_Bar":
        return _Bar(self._progress, name, total)


class _Bar:
    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=total)
        self._step = max(1, total // 200)
        self._shown = 0

    def __call__(self, ended: int) -> None:
        if ended >= self._shown + self._step:
            self._shown = ended
            self._progress.update(self._task, completed=ended)

    def finish(self) -> None:
        self._progress.update(self._task, completed=self._progress.tasks[self._task].total)


def _measure_and_run(
    study: Study, policies: Sequence[str], loads: Sequence[float | None], arguments: argparse.Namespace
) -> tuple[Capacity, list[tuple[RunTask, Figures]], Study]:
    with _Bars() as bars:
        capacity = measure_capacity(study, bars.task("capacity", len(study.requests)))
        tree = replace(
            study.tree,
            capacity_units_s=capacity.units_s,
            largest_item=max(study.tree.largest_item, _ordinary_cost(study)),
        )
        study = replace(study, tree=tree)
        return capacity, _run_all(study, capacity, policies, loads, arguments, bars), study


def _run_all(
    study: Study,
    capacity: Capacity,
    policies: Sequence[str],
    loads: Sequence[float | None],
    arguments: argparse.Namespace,
    bars: _Bars,
) -> list[tuple[RunTask, Figures]]:
    factors = {load: 1.0 if load is None else capacity.factor(study.requests, load) for load in loads}
    tasks = [RunTask(policy, load, factors[load]) for load in loads for policy in policies]
    alone = {load: alone_tasks(study, load, factors[load]) if arguments.alone else [] for load in loads}
    every = tasks + [task for load in loads for task in alone[load]]
    shown = [bars.task(f"{task.policy}, load {task.load_text}", len(study.requests)) for task in tasks]
    figures = run_tasks(
        study, every, arguments.jobs, lambda place, ended: shown[place](ended) if place < len(shown) else None
    )
    for bar in shown:
        bar.finish()
    singles = dict(zip(every, figures, strict=True))
    runs: list[tuple[RunTask, Figures]] = []
    for task, together in zip(tasks, figures, strict=False):
        if others := alone[task.load]:
            together["slowdown"] = slowdowns(together, others, [singles[other] for other in others])
        runs.append((task, together))
    return runs


# --- telling ----------------------------------------------------------------------------------------------------------


def _settings(
    arguments: argparse.Namespace, study: Study, capacity: Capacity, traces: Sequence[Trace]
) -> dict[str, Any]:
    limits = study.engine.limits
    return {
        "traces": [
            {"source": text, "format": trace.format, "requests_in_file": len(trace.requests)}
            for text, trace in zip(arguments.traces, traces, strict=True)
        ],
        "requests": len(study.requests),
        "seed": arguments.seed,
        "step_time": arguments.step_time,
        "kv_tokens": study.engine.num_blocks * study.engine.block_size,
        "max_sequences": limits.max_sequences,
        "step_tokens": limits.step_tokens,
        "step_max_ms": round(limits.step_max_s * 1000, 6),
        "context_tokens": limits.context_tokens,
        "lengths": arguments.lengths,
        "max_tokens": arguments.max_tokens,
        "staging_ms": arguments.staging_ms,
        "capacity_requests_s": round(capacity.requests_s, 6),
        "capacity_units_s": round(capacity.units_s, 6),
    }


def _write(
    arguments: argparse.Namespace, settings: dict[str, Any], runs: Sequence[tuple[RunTask, Figures]], study: Study
) -> None:
    shown = [ReportRun(task.policy, task.load_text, figures, _picture(study, task)) for task, figures in runs]
    write_runs(
        arguments.out,
        settings,
        shown,
        {"runs": [{"policy": task.policy, "load": task.load, **figures} for task, figures in runs]},
        title=f"{len(study.requests)} requests; capacity {settings['capacity_requests_s']:.3g} requests/s",
        as_json=arguments.json,
    )


def _picture(study: Study, task: RunTask) -> bytes | None:
    if study.out is None or not study.plots:
        return None
    return (study.out / f"{task.stem}.png").read_bytes()
