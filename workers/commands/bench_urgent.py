"""Urgent requests over a batch that fills the engine, through Kafka, with the shipped configuration.

All batch requests are sent at once; when the running limit is reached, an urgent one comes at every interval. Phases:
idle (urgent requests alone), fifo, htb; with --small-pool also htb with a KV pool of a quarter, in each
preemption.mode, so that urgent requests need what others have; with --concurrency fifo, drr and htb again at each
running limit. Each urgent request must have met a full engine (all slots but a twentieth) with work waiting, or the
command fails, and says of which phase its figures mean nothing.

Printed for each phase: TTFT of the urgent requests, where it went, steps, the batch's throughput, what was suspended.
The makespan of all requests is priced by a step table fitted on all steps of the run; the clock stands beside it.

The full size takes long on a slow machine. A short form, some minutes:
  headrace bench urgent --requests 24 --urgent 6 --output-tokens 48 --max-sequences 8
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from scheduling.preemption_rules import PreemptionMode
from topics.catalogue import CLASS_LABELS
from topics.local_broker import LocalBroker
from workers.bench.engine_peers import PeerError, is_installed, loaded_engine
from workers.cli import CommandFailedError, UsageError
from workers.commands.explained import explained
from workers.commands.serving import (
    add_worker_arguments,
    check_this_machine,
    load_with_progress,
    local_kafka,
    worker_config,
)

if TYPE_CHECKING:
    from workers.bench.urgent import Phase, UrgentLoad
    from workers.configuration.config import WorkerConfig

__all__ = ["add_arguments", "run"]

_PIPE_COLUMNS = 140
_SWEPT = ("fifo", "drr", "htb")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_worker_arguments(parser)
    sizes = (
        ("requests", 192, "of the batch"),
        ("urgent", 20, "urgent requests in each phase"),
        ("output-tokens", 128, "of each batch request"),
        ("urgent-prompt-tokens", 100, "of each urgent request"),
        ("urgent-output-tokens", 16, "of each urgent request"),
    )
    for name, default, what in sizes:
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{what} ({default})")
    parser.add_argument(
        "--prompt-tokens", default="32-320", metavar="A-B", help="of each batch request, evenly from … to (32-320)"
    )
    parser.add_argument("--interval", type=float, default=1.5, metavar="S", help="between urgent requests (1.5)")
    parser.add_argument("--first-after", type=float, default=4.0, metavar="S", help="until the first urgent one (4)")
    parser.add_argument("--small-pool", action="store_true", help="also with a quarter of the KV pool, in each mode")
    parser.add_argument("--modes", default="", metavar="M,M", help="of --small-pool (all)")
    parser.add_argument("--concurrency", default="", metavar="N,N", help=f"running limits for {', '.join(_SWEPT)}")
    parser.add_argument(
        "--peers", default="", metavar="P", help="vllm: the same load on vLLM, fcfs and priority (none)"
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench-urgent.json"), help="(out/bench-urgent.json)")
    parser.add_argument("--json", action="store_true", help="print the JSON too")


def run(arguments: argparse.Namespace) -> int:
    # Into a pipe or a file as wide as it needs; a terminal wraps what doesn't fit.
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _PIPE_COLUMNS)
    check_this_machine(worker_config(arguments))  # what is wrong is said before anything starts
    modes, limits, named_peers = _modes(arguments), _concurrency(arguments), _peers(arguments)
    load = _load(arguments)
    with (
        explained(),
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        LocalBroker(Path(folder), on_progress=console.print) as broker,
    ):
        bench = _Run(arguments, broker.bootstrap_servers, load, console)
        phases = asyncio.run(bench.phases(modes, limits))
    peers = {name: bench.peer(name) for name in named_peers}
    from workers.bench.record import bench_record, write_record

    figures = _figures(phases) | peers
    record = bench_record(figures, [_told(phase) for phase in phases])
    write_record(record, arguments.out)
    _print(console, figures)
    console.print(f"written to {arguments.out}")
    if arguments.json:
        print(json.dumps(record))
    if figures["not_loaded"]:
        raise CommandFailedError("; ".join(figures["not_loaded"]))
    return 0


class _Run:
    """All phases on one broker and one loaded model; each has topics of its own."""

    def __init__(self, arguments: argparse.Namespace, servers: str, load: "UrgentLoad", console: Console) -> None:
        self._arguments = arguments
        self._servers = servers
        self._load = load
        self._console = console
        self._bodies: dict[bool, list[dict[str, Any]]] = {}

    async def phases(self, modes: Sequence[PreemptionMode], limits: Sequence[int]) -> list["Phase"]:
        from dataclasses import replace

        from workers.bench.urgent import request_bodies, run_phase, small_pool

        config = self._config("idle", "htb")
        model = await asyncio.to_thread(load_with_progress, config, self._console)
        quarter = small_pool(model, self._load, config.engine.max_sequences)
        idle = replace(self._load, batch=0, first_after_s=0.0)
        wanted = [("idle", config, model, idle)]
        wanted += [(policy, self._config(policy, policy), model, self._load) for policy in ("fifo", "htb")]
        wanted += [
            (f"htb_small_pool_{mode.value}", self._config(mode.value, "htb", mode=mode), quarter, self._load)
            for mode in modes
        ]
        for limit in limits:
            for policy in _SWEPT:
                name = f"{policy}_{limit}"
                load = replace(self._load, batch=max(self._load.batch, 2 * limit))
                wanted.append((name, self._config(name, policy, max_sequences=limit), model, load))
        self._bodies = request_bodies(model.tokenizer, self._load)
        phases = []
        for name, of_phase, model_of_phase, load in wanted:
            self._console.print(f"\n{name.replace('_', ' ')} …")
            phases.append(await run_phase(name, of_phase, model_of_phase, load, self._console))
        return phases

    def peer(self, name: str) -> dict[str, Any]:
        """The same load on a peer, after `phases`; each of its policies in a process of its own."""
        from workers.models.devices import choose_placement
        from workers.models.model_source import find_model, prepare_model

        config = self._config("peer", "htb")
        # What we run in: `auto` may mean another format to a peer.
        dtype = str(choose_placement(config.engine.device, config.engine.dtype).dtype).removeprefix("torch.")
        folder = prepare_model(find_model(config.model.source), self._console.print).folder
        load = {
            "batch": self._bodies[False],
            "urgent": self._bodies[True][1:],
            "first_after_s": self._load.first_after_s,
            "interval_s": self._load.interval_s,
            "max_sequences": config.engine.max_sequences,
            "step_tokens": config.engine.step_tokens,
        }
        figures: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
            file = Path(scratch) / "load.json"
            file.write_text(json.dumps(load), encoding="utf-8")
            for policy in ("fcfs", "priority"):
                self._console.print(f"\n{name}, {policy}: loading …")
                options = ["--model", str(folder), "--load", str(file), "--policy", policy]
                options += ["--dtype", dtype]
                try:
                    with loaded_engine(name, options, "benchmarks.vllm_urgent") as engine:
                        answer = engine.run()
                except PeerError as error:
                    raise CommandFailedError(str(error)) from error
                figures |= {"idle": answer["idle"], policy: answer[policy]}
        return figures

    def _config(
        self, name: str, policy: str, *, mode: PreemptionMode | None = None, max_sequences: int | None = None
    ) -> "WorkerConfig":
        fixed: dict[str, dict[str, Any]] = {
            "kafka": local_kafka(self._servers) | {"topic_prefix": f"bench-{name.replace('_', '-')}"},
            "scheduling": {"policy": policy},
        }
        if mode is not None:
            fixed["preemption"] = {"mode": mode}
        if max_sequences is not None:
            shipped = worker_config(self._arguments).engine.step_tokens
            fixed["engine"] = {"max_sequences": max_sequences, "step_tokens": max(max_sequences, shipped)}
        return worker_config(self._arguments, classes=CLASS_LABELS, **fixed)


def _load(arguments: argparse.Namespace) -> "UrgentLoad":
    from workers.bench.urgent import UrgentLoad

    for name in ("requests", "urgent", "output_tokens", "urgent_prompt_tokens", "urgent_output_tokens"):
        least = 2 if name == "urgent_output_tokens" else 1
        if getattr(arguments, name) < least:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: at least {least}")
    try:
        shortest, longest = (int(part) for part in arguments.prompt_tokens.split("-"))
    except ValueError as error:
        raise UsageError(f"--prompt-tokens {arguments.prompt_tokens}: two numbers, such as 32-320") from error
    if not 1 <= shortest <= longest:
        raise UsageError(f"--prompt-tokens {arguments.prompt_tokens}: from the smaller to the larger, at least 1")
    if arguments.interval < 0 or arguments.first_after < 0:
        raise UsageError("--interval and --first-after are seconds, not negative")
    return UrgentLoad(
        batch=arguments.requests,
        urgent=arguments.urgent,
        batch_prompt_tokens=(shortest, longest),
        batch_output_tokens=arguments.output_tokens,
        urgent_prompt_tokens=arguments.urgent_prompt_tokens,
        urgent_output_tokens=arguments.urgent_output_tokens,
        first_after_s=arguments.first_after,
        interval_s=arguments.interval,
    )


def _peers(arguments: argparse.Namespace) -> list[str]:
    names = [name for name in arguments.peers.split(",") if name]
    for name in names:
        if name != "vllm":
            raise UsageError(f"--peers {name}: unknown; the peer is vllm")
        if not is_installed(name):
            raise UsageError(f"the peer {name} is not installed: headrace bench engine --peers {name} --install-peers")
    if names and not Path("benchmarks/vllm_urgent.py").is_file():
        raise UsageError("the peers are in the repository's benchmarks/ folder: run this from its root")
    return names


def _modes(arguments: argparse.Namespace) -> list[PreemptionMode]:
    if not arguments.small_pool:
        return []
    named = [name for name in arguments.modes.split(",") if name]
    known = {mode.value: mode for mode in PreemptionMode}
    for name in named:
        if name not in known:
            raise UsageError(f"--modes {name}: unknown; one of {', '.join(known)}")
    return [known[name] for name in named] or list(PreemptionMode)


def _concurrency(arguments: argparse.Namespace) -> list[int]:
    try:
        limits = [int(part) for part in arguments.concurrency.split(",") if part]
    except ValueError as error:
        raise UsageError(f"--concurrency {arguments.concurrency}: numbers, such as 32,64") from error
    if any(limit < 2 for limit in limits):
        raise UsageError(f"--concurrency {arguments.concurrency}: at least 2 each, a batch and an urgent request")
    return limits


def _figures(phases: Sequence["Phase"]) -> dict[str, Any]:
    from workers.bench.urgent_figures import NoLoadError, check_load, makespans, phase_figures

    loaded = [phase for phase in phases if phase.name != "idle"]
    figures: dict[str, Any] = {phase.name: phase_figures(phase) for phase in phases}
    not_loaded = []
    for phase in loaded:
        try:
            met = check_load(phase, slots="small_pool" not in phase.name)
        except NoLoadError as error:
            not_loaded.append(str(error))
        else:
            figures[phase.name]["met_at_least"] = asdict(met)
    figures["not_loaded"] = not_loaded
    for name, seconds in makespans(loaded).items():
        figures[name]["makespan_priced_s"] = seconds
    if (auto := figures.get(f"htb_small_pool_{PreemptionMode.AUTO.value}")) is not None:
        figures["htb_small_pool"] = auto
    idle, htb, fifo = figures["idle"], figures["htb"], figures["fifo"]
    figures["step_max_s"] = htb["step_max_s"]
    figures["ttft_target_s"] = 1.1 * idle["ttft_p95_s"] + htb["step_max_s"]
    figures["makespan_ratio_priced"] = htb["makespan_priced_s"] / fifo["makespan_priced_s"]
    figures["makespan_ratio_wall"] = htb["makespan_wall_s"] / fifo["makespan_wall_s"]
    return figures


def _told(phase: "Phase") -> dict[str, Any]:
    """Every request and every step of a phase."""
    from workers.bench.urgent_figures import ttft_parts

    return {
        "phase": phase.name,
        "requests": [
            asdict(request) | ({"ttft_parts_s": ttft_parts(request, phase.steps)} if request.urgent else {})
            for request in phase.requests
        ],
        "steps": [
            [step.started_s, step.ended_s, step.prefill_tokens, step.decode_sequences, step.context_tokens]
            for step in phase.steps
        ],
    }


def _print(console: Console, figures: dict[str, Any]) -> None:
    from workers.bench.urgent_figures import PARTS

    table = Table(title="urgent requests; times in seconds, steps in ms")
    for heading in ("", "TTFT p50", "p95", "max", "step p50", "max", "batch tok/s", "makespan", "priced", "preempted"):
        table.add_column(heading, justify="right" if heading else "left")
    parts = Table(title="where the TTFT went: median (longest), ms")
    for heading in ("", *PARTS):
        parts.add_column(heading, justify="right" if heading else "left")
    lost = Table(title="suspended: what it cost, and how long it took")
    for heading in ("", "swapped", "recomputed", "cost", "estimated", "room usable, max", "resume queue", "suspended"):
        lost.add_column(heading, justify="right" if heading else "left")
    for name, of_phase in figures.items():
        if not isinstance(of_phase, dict) or name == "htb_small_pool":
            continue
        if "ttft_parts_p50_s" not in of_phase:
            for policy, theirs in of_phase.items():
                table.add_row(f"{name} {policy}", *_of_everybody(theirs))
            continue
        label = name.replace("_", " ")
        table.add_row(label, *_of_everybody(of_phase), str(of_phase["preemptions"]))
        middle, longest = of_phase["ttft_parts_p50_s"], of_phase["ttft_parts_max_s"]
        parts.add_row(label, *(f"{1e3 * middle[part]:.0f} ({1e3 * longest[part]:.0f})" for part in PARTS))
        if of_phase["preemptions"]:
            lost.add_row(
                label,
                str(of_phase["swapped"]),
                str(of_phase["recomputed"]),
                f"{of_phase['lost_s']:.2f} s",
                f"{of_phase['lost_estimated_s']:.2f} s",
                f"{of_phase['room_usable_max_ms']:.1f} ms",
                f"{of_phase['resume_queue_mean_s']:.2f} s",
                f"{of_phase['suspended_mean_s']:.2f} s",
            )
    console.print(table)
    console.print(parts)
    if lost.row_count:
        console.print(lost)
    console.print(
        f"p95 under htb {figures['htb']['ttft_p95_s']:.3f} s; 1.1 × idle + the longest step: "
        f"{figures['ttft_target_s']:.3f} s. Makespan htb ÷ fifo: {figures['makespan_ratio_priced']:.4f} priced, "
        f"{figures['makespan_ratio_wall']:.3f} by the clock"
    )


def _of_everybody(figures: dict[str, Any]) -> list[str]:
    """What is said of a phase of ours and of a peer's."""
    return [
        *(f"{figures[f'ttft_{which}_s']:.3f}" for which in ("p50", "p95", "max")),
        *(f"{1e3 * figures[name]:.0f}" if name in figures else "" for name in ("step_p50_s", "step_max_s")),
        *(
            f"{figures[name]:.1f}" if name in figures else ""
            for name in ("batch_tokens_s", "makespan_wall_s", "makespan_priced_s")
        ),
    ]
