"""Play request traces against a running stack, at their arrival times, and measure what its clients feel.

  headrace load conv.csv@class=p0:0.3+p1:0.7,tenants=4 synthetic@class=p3,requests=50,prompt=64,output=32 \\
      --speed 2 --length-scale 0.1 --out results
  headrace load --mix day.txt --policy fifo --policy htb --load 1.2 --out results    # a file with one source a line
  headrace compare results/requests-fifo.csv results/requests-htb.csv

Traces are written as for `headrace simulate` (its --help has the formats), and so are the results: results.json, a CSV
of requests, a PNG, report.html. Requests are sent when they are due, whatever became of the earlier ones, and all times
count from when they were due (open loop, no coordinated omission). Prompts are random token ids of the trace's lengths,
other ones in each play, and answers are as long as the trace says. SLOs and tenants' weights are those of the
configuration: give the worker's own with --config.

With --policy the running workers get that policy by an order, as of `headrace control`, while the stream is played, and
afterwards what they had. With --load the stream is first played all at once, to see what the stack can do.
"""

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scheduling.policies import POLICIES
from scheduling.priority import PriorityClass
from scheduling.tree import Slo, TreeConfig, TreeError
from topics.catalogue import Catalogue
from topics.extras import how_to_install
from topics.record_producer import RecordRefusedError
from workers.cli import UsageError
from workers.commands.connection import add_kafka_arguments, connection, kafka_config
from workers.commands.explained import explained
from workers.commands.load_playing import COST, Play, RunningStack, play_all
from workers.commands.run_output import write_runs
from workers.configuration.config import ConfigError, load_config
from workers.engine.assembly import class_tree
from workers.runs.load_traffic import played
from workers.runs.policy_turns import PolicyNotAppliedError
from workers.runs.run_record import Account
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
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--speed", type=float, default=1.0, help="arrivals so many times as fast (1)")
    pace.add_argument("--load", type=float, help="arrivals so fast that they ask for so much of what the stack can do")
    parser.add_argument(
        "--length-scale", type=float, default=1.0, help="prompts and answers × this, at least 1 token (1)"
    )
    parser.add_argument("--duration-s", type=float, help="only the requests that are due by then, before --load")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (1)")
    name = parser.add_mutually_exclusive_group()
    name.add_argument("--label", default="live", help="name of the run in its results (live)")
    name.add_argument(
        "--policy",
        action="append",
        default=[],
        choices=POLICIES,
        metavar="POLICY",
        help=f"let the workers have it meanwhile; once for each play, which has its name: {', '.join(POLICIES)}",
    )
    parser.add_argument("--timeout-s", type=float, default=300.0, help="for replies, after the last request (300)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results.json, CSV, PNG and report.html")
    parser.add_argument("--no-plots", action="store_true", help="no PNG")
    parser.add_argument("--json", action="store_true", help="print results.json")


def run(arguments: argparse.Namespace) -> int:
    if arguments.out is not None and not arguments.no_plots and find_spec("matplotlib") is None:
        raise UsageError(f"plots need matplotlib, or --no-plots: {how_to_install('bench')}")
    if len(set(arguments.policy)) < len(arguments.policy):
        raise UsageError(f"--policy {' --policy '.join(arguments.policy)}: a policy stands there twice")
    try:
        config = load_config()
        requests = _requests(arguments)
        guess = linear_guess(parse_step_model(next(iter(PRESETS))))
        tree = class_tree(config.scheduling, guess, COST, config.engine.max_sequences)
    except (ConfigError, TraceError, SourceError, TreeError) as error:
        raise UsageError(str(error)) from error
    if arguments.load is not None and not requests[-1].arrival_s:
        raise UsageError(
            "--load: all requests arrive at once, and that can't be slower or faster; give a source a rate="
        )
    if arguments.out is not None:
        with explained():
            arguments.out.mkdir(parents=True, exist_ok=True)
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with explained(PolicyNotAppliedError, RecordRefusedError):
        played_runs = asyncio.run(_play(arguments, requests))
    figures = [run_figures(play.record, partial(_slo, tree), partial(_weight, tree)) for play in played_runs]
    _write(arguments, started, played_runs, figures)
    wanted = max(1, len(arguments.policy)) * len(requests)
    return 0 if sum(one["completed"] for one in figures) == wanted else 1


# --- what is asked for ------------------------------------------------------------------------------------------------


def _requests(arguments: argparse.Namespace) -> tuple[ArrivingRequest, ...]:
    for name in ("speed", "load", "length_scale", "timeout_s", "duration_s"):
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


async def _play(arguments: argparse.Namespace, requests: tuple[ArrivingRequest, ...]) -> list[Play]:
    config = kafka_config(arguments)
    catalogue = Catalogue(prefix=config.topic_prefix, group_prefix=config.group_prefix)
    stack = RunningStack(connection(config, "headrace-load"), catalogue, arguments.timeout_s)
    return await play_all(stack, requests, label=arguments.label, policies=arguments.policy, load=arguments.load)


# --- telling ----------------------------------------------------------------------------------------------------------


def _write(
    arguments: argparse.Namespace, started: str, played_runs: Sequence[Play], figures: Sequence[Figures]
) -> None:
    load_text = f"speed {arguments.speed:g}" if arguments.load is None else f"{arguments.load:g}"
    shown, runs = [], []
    for play, found in zip(played_runs, figures, strict=True):
        png = None
        if arguments.out is not None:
            write_requests(arguments.out / f"requests-{play.label}.csv", play.record)
            if not arguments.no_plots:
                from workers.runs.run_plots import draw_run

                png = draw_run(f"{play.label}, {load_text}", play.record, request_times(play.record))
                (arguments.out / f"{play.label}.png").write_bytes(png)
        shown.append(ReportRun(play.label, load_text, found, png))
        runs.append({"policy": play.label, "load": arguments.load, **_lateness(play), **found})
    write_runs(
        arguments.out,
        _settings(arguments, started, played_runs[0]),
        shown,
        {"runs": runs},
        title=_title(arguments, played_runs, figures),
        as_json=arguments.json,
    )


def _lateness(play: Play) -> dict[str, float]:
    late = sorted(observation.late_s for observation in play.seen)
    late_p99_s = late[(len(late) - 1) * 99 // 100]
    if late_p99_s > _LATE_S:
        print(
            f"headrace: {play.label}: 1 request in 100 was sent {late_p99_s:.2f} s late or later: this side can't keep "
            "up; latencies count from when a request was due",
            file=sys.stderr,
        )
    return {"late_p99_ms": round(late_p99_s * 1000, 3), "late_max_ms": round(late[-1] * 1000, 3)}


def _settings(arguments: argparse.Namespace, started: str, play: Play) -> dict[str, Any]:
    span_s = play.requests[-1].arrival_s
    offered = sum(COST.prompt(r.prompt_tokens) + COST.output(r.output_tokens) for r in play.requests)
    return {
        "traces": list(arguments.traces),
        "mix": None if arguments.mix is None else str(arguments.mix),
        "started": started,
        "requests": len(play.requests),
        "seed": arguments.seed,
        "speed": arguments.speed,
        "length_scale": arguments.length_scale,
        "offered_s": round(span_s, 6),
        "offered_units_s": round(offered / span_s, 6) if span_s else None,
        "capacity_units_s": None if play.capacity is None else round(play.capacity.units_s, 6),
    }


def _title(arguments: argparse.Namespace, played_runs: Sequence[Play], figures: Sequence[Figures]) -> str:
    answered = []
    for play, found in zip(played_runs, figures, strict=True):
        errors = f" (errors: {found['errors']})" if found.get("errors") else ""
        answered.append(f"{play.label} {found['completed']}{errors}")
    title = f"{len(played_runs[0].requests)} requests; answered: {', '.join(answered)}"
    if len(played_runs) < len(arguments.policy):
        title += f"; {arguments.policy[len(played_runs)]} was not begun: requests were left unanswered"
    return title
