"""Play request traces against a running stack, at their arrival times, and measure what its clients feel.

  headrace load conv.csv@class=p0:0.3+p1:0.7,tenants=4 synthetic@class=p3,requests=50,prompt=64,output=32 \\
      --speed 2 --length-scale 0.1 --out results/htb
  headrace load --mix day.txt --out results/fifo            # a file with one source a line, # for comments
  headrace compare results/fifo results/htb

Traces are written as for `headrace simulate` (its --help has the formats), and so are the results: results.json, a CSV
of requests, a PNG, report.html. Requests are sent when they are due, whatever became of the earlier ones, and all times
count from when they were due (open loop, no coordinated omission). Prompts are random token ids of the trace's lengths,
and answers are as long as the trace says. SLOs and tenants' weights are those of the configuration: give the worker's
own with --config.
"""

import argparse
import asyncio
import math
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from scheduling.cost import CostModel
from scheduling.priority import PriorityClass
from scheduling.tree import Slo, TreeConfig, TreeError
from topics.catalogue import Catalogue
from topics.extras import how_to_install
from workers.cli import UsageError
from workers.commands.connection import add_kafka_arguments, connection, kafka_config
from workers.commands.explained import explained
from workers.commands.run_output import write_runs
from workers.configuration.config import ConfigError, load_config
from workers.engine.assembly import class_tree
from workers.runs.load_player import LoadPlayer, Observation
from workers.runs.load_run import live_run
from workers.runs.load_traffic import load_record, played
from workers.runs.run_record import Account, RunRecord
from workers.runs.run_report import ReportRun
from workers.runs.run_results import Figures, request_times, run_figures, write_requests
from workers.runs.step_models import PRESETS, linear_guess, parse_step_model
from workers.runs.trace_files import TraceError, read_trace
from workers.runs.trace_mix import ArrivingRequest, SourceError, TraceSource, mix, parse_source

__all__ = ["add_arguments", "run"]

_LATE_S = 0.05
"""A load generator that is later than this at its 99th percentile is not to be trusted, and says so."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    parser.add_argument("traces", nargs="*", metavar="TRACE", help="as for `headrace simulate`")
    parser.add_argument("--mix", type=Path, metavar="FILE", help="further sources, one a line; paths are seen from it")
    parser.add_argument("--speed", type=float, default=1.0, help="arrivals so many times as fast (1)")
    parser.add_argument(
        "--length-scale", type=float, default=1.0, help="prompts and answers × this, at least 1 token (1)"
    )
    parser.add_argument("--duration-s", type=float, help="only the requests that are due by then")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (1)")
    parser.add_argument("--label", default="live", help="name of the run in its results (live)")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="for replies, after the last request (300)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results.json, CSV, PNG and report.html")
    parser.add_argument("--no-plots", action="store_true", help="no PNG")
    parser.add_argument("--json", action="store_true", help="print results.json")


def run(arguments: argparse.Namespace) -> int:
    if arguments.out is not None and not arguments.no_plots and find_spec("matplotlib") is None:
        raise UsageError(f"plots need matplotlib, or --no-plots: {how_to_install('bench')}")
    try:
        config = load_config()
        requests = _requests(arguments)
        guess = linear_guess(parse_step_model(next(iter(PRESETS))))
        tree = class_tree(config.scheduling, guess, CostModel(), config.engine.max_sequences)
    except (ConfigError, TraceError, SourceError, TreeError) as error:
        raise UsageError(str(error)) from error
    if arguments.out is not None:
        with explained():
            arguments.out.mkdir(parents=True, exist_ok=True)
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with explained():
        seen = asyncio.run(_play(arguments, requests))
    record = live_run(requests, seen, CostModel())
    figures = run_figures(record, partial(_slo, tree), partial(_weight, tree))
    _write(arguments, started, requests, seen, record, figures)
    return 0 if figures["completed"] == len(requests) else 1


# --- what is asked for ------------------------------------------------------------------------------------------------


def _requests(arguments: argparse.Namespace) -> tuple[ArrivingRequest, ...]:
    for name in ("speed", "length_scale", "timeout_s", "duration_s"):
        value = getattr(arguments, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"--{name.replace('_', '-')} {value}: a number above 0")
    sources = [parse_source(text) for text in arguments.traces]
    if arguments.mix is not None:
        sources.extend(_mix_file(arguments.mix))
    if not sources:
        raise UsageError("nothing to play: name a TRACE, or a file of them with --mix")
    stream = mix([(source, _read(source)) for source in sources], arguments.seed)
    requests = played(stream, speed=arguments.speed, length_scale=arguments.length_scale)
    if arguments.duration_s is not None:
        requests = tuple(request for request in requests if request.arrival_s <= arguments.duration_s)
        if not requests:
            raise UsageError(f"--duration-s {arguments.duration_s:g}: no request is due by then")
    return requests


def _mix_file(path: Path) -> Iterator[TraceSource]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--mix {path}: can't be read: {error}") from error
    for line in lines:
        text = line.partition("#")[0].strip()
        if text:
            source = parse_source(text)
            yield source if source.path is None else parse_source(str(path.parent / text))


def _read(source: TraceSource) -> Any:
    return source.synthetic() if source.path is None else read_trace(source.path)


def _slo(tree: TreeConfig, priority: PriorityClass) -> Slo:
    return tree.of(priority).slo


def _weight(tree: TreeConfig, account: Account) -> float:
    return tree.of(account[0]).tenants.weight_of(account[1])


# --- playing ----------------------------------------------------------------------------------------------------------


async def _play(arguments: argparse.Namespace, requests: Sequence[ArrivingRequest]) -> list[Observation]:
    config = kafka_config(arguments)
    catalogue = Catalogue(prefix=config.topic_prefix, group_prefix=config.group_prefix)
    run_id = uuid.uuid4().hex[:8]
    records = []
    for request in requests:
        request_id = f"load-{run_id}-{request.number}"
        make = partial(load_record, request, request_id, catalogue, arguments.seed)
        records.append((request.arrival_s, request_id, make))
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True)
    ) as progress:
        task = progress.add_task("connecting", total=len(requests))

        def show(sent: int, ended: int) -> None:
            progress.update(task, completed=ended, description=f"{sent} sent, {ended} answered of {len(requests)}")

        async with LoadPlayer(connection(config, "headrace-load"), catalogue) as player:
            return await player.play(records, timeout_s=arguments.timeout_s, on_progress=show)


# --- telling ----------------------------------------------------------------------------------------------------------


def _write(
    arguments: argparse.Namespace,
    started: str,
    requests: Sequence[ArrivingRequest],
    seen: Sequence[Observation],
    record: RunRecord,
    figures: Figures,
) -> None:
    late = sorted(observation.late_s for observation in seen)
    late_p99_s = late[(len(late) - 1) * 99 // 100]
    if late_p99_s > _LATE_S:
        print(
            f"headrace: 1 request in 100 was sent {late_p99_s:.2f} s late or later: this side can't keep up; "
            "latencies count from when a request was due",
            file=sys.stderr,
        )
    span_s = requests[-1].arrival_s
    cost = CostModel()
    offered = sum(cost.prompt(r.prompt_tokens) + cost.output(r.output_tokens) for r in requests)
    settings = {
        "traces": list(arguments.traces),
        "mix": None if arguments.mix is None else str(arguments.mix),
        "started": started,
        "requests": len(requests),
        "seed": arguments.seed,
        "speed": arguments.speed,
        "length_scale": arguments.length_scale,
        "offered_s": round(span_s, 6),
        "offered_units_s": round(offered / span_s, 6) if span_s else None,
        "late_p99_ms": round(late_p99_s * 1000, 3),
        "late_max_ms": round(late[-1] * 1000, 3),
    }
    load_text = f"speed {arguments.speed:g}"
    png = None
    if arguments.out is not None:
        write_requests(arguments.out / f"requests-{arguments.label}.csv", record)
        if not arguments.no_plots:
            from workers.runs.run_plots import draw_run

            png = draw_run(f"{arguments.label}, {load_text}", record, request_times(record))
            (arguments.out / f"{arguments.label}.png").write_bytes(png)
    errors = figures.get("errors")
    write_runs(
        arguments.out,
        settings,
        [ReportRun(arguments.label, load_text, figures, png)],
        {"runs": [{"policy": arguments.label, "load": None, **figures}]},
        title=f"{len(requests)} requests, {figures['completed']} answered" + (f"; errors: {errors}" if errors else ""),
        as_json=arguments.json,
    )
