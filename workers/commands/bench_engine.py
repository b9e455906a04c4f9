"""Engine throughput on a workload of token ids, beside other engines.

All requests are submitted at once and run through the parts of `serve`: ingress, staging thread, scheduler, engine
thread, sampler, detokeniser; only Kafka is left out. Each engine is loaded in a process of its own, and they take
turns, --repeats times. Greedy, end tokens ignored, so all write the same number of tokens. Peers: transformers (static
`generate`, batches of 16) and vllm (vLLM's CPU build, in an environment of its own: --install-peers makes it).

--fit measures instead what a step takes on this machine, and writes it for `headrace simulate --step-time linear:FILE`.
"""

import argparse
import json
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from workers.bench_engine_peers import ENGINES, PeerError, install_peer, is_installed, loaded_engine
from workers.cli import CommandFailedError, UsageError

__all__ = ["add_arguments", "run"]

_FIT_S = 20.0
_FIGURES = ("output_tokens_s", "processor_s", "ttft_mean_s", "ttft_p95_s", "peak_rss_mb")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workload", type=Path, metavar="FILE", help="JSON {requests: [{prompt_token_ids, max_tokens}]}"
    )
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N of it (all)")
    parser.add_argument("--model", default="smollm2", metavar="SOURCE", help="as in serve (smollm2)")
    parser.add_argument("--dtypes", default="auto", metavar="D,D", help="number formats to run (auto)")
    parser.add_argument("--peers", default="transformers", metavar="P,P", help="transformers, vllm (transformers)")
    parser.add_argument("--install-peers", action="store_true", help="install those that are not here: gigabytes")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="pairs of runs; medians are reported (1)")
    parser.add_argument("--fit", action="store_true", help="measure the step-time model of the simulator")
    parser.add_argument("--out", type=Path, default=Path("out/bench-engine.json"), help="(out/bench-engine.json)")
    parser.add_argument("--json", action="store_true", help="print the JSON too")


def run(arguments: argparse.Namespace) -> int:
    from workers.bench_record import bench_record, write_record
    from workers.bench_workload import default_workload
    from workers.errors import ModelError
    from workers.model_source import find_model, prepare_model

    console = Console(stderr=True)
    if arguments.fit:
        return _fit(arguments, console)
    if arguments.workload is not None and not arguments.workload.is_file():
        raise UsageError(f"--workload {arguments.workload}: no such file")
    if not Path("benchmarks/transformers_peer.py").is_file():
        raise UsageError("the peers are in the repository's benchmarks/ folder: run this from its root")
    try:
        folder = prepare_model(find_model(arguments.model), console.print).folder
    except ModelError as error:
        raise UsageError(str(error)) from error
    engines = ["headrace", *_peers(arguments, console)]
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        workload = arguments.workload
        if workload is None:
            workload = Path(scratch) / "workload.json"
            workload.write_text(json.dumps(default_workload(folder)), encoding="utf-8")
        for dtype in arguments.dtypes.split(","):
            options = ["--model", str(folder), "--workload", str(workload), "--dtype", dtype]
            if arguments.requests is not None:
                options += ["--requests", str(arguments.requests)]
            try:
                runs += _take_turns(engines, options, dtype, arguments.repeats, console)
            except PeerError as error:
                raise CommandFailedError(str(error)) from error
    figures = _figures(runs, engines)
    record = bench_record(figures, runs)
    write_record(record, arguments.out)
    console.print(_table(figures, engines))
    console.print(f"written to {arguments.out}")
    if arguments.json:
        print(json.dumps(record))
    return 0


def _fit(arguments: argparse.Namespace, console: Console) -> int:
    """The coefficients of a linear step-time model of this machine, model and number format."""
    from workers.bench_record import bench_record, write_record
    from workers.config import load_config
    from workers.errors import ModelError
    from workers.loaded_model import load_model
    from workers.warm_up import measure_step_time

    dtype, *others = arguments.dtypes.split(",")
    if others:
        raise UsageError(f"--fit --dtypes {arguments.dtypes}: one number format at a time")
    config = load_config({"model": {"source": arguments.model}, "engine": {"dtype": dtype}})
    try:
        model = load_model(config.model, config.engine, config.kv, console.print)
    except ModelError as error:
        raise UsageError(str(error)) from error
    console.print(f"measuring steps for about {_FIT_S:g} s …")
    fitted = measure_step_time(model.runner, budget_s=_FIT_S)
    record = bench_record({"step_time": asdict(fitted)}, [])
    write_record(record, arguments.out)
    console.print(
        f"a step takes {fitted.fixed_s * 1e3:.2f} ms + {fitted.per_prefill_token_s * 1e3:.3f} ms a prompt token + "
        f"{fitted.per_decode_sequence_s * 1e3:.3f} ms a sequence + {fitted.per_context_token_s * 1e6:.2f} µs a token "
        f"of context; written to {arguments.out}: headrace simulate … --step-time linear:{arguments.out}"
    )
    if arguments.json:
        print(json.dumps(record))
    return 0


def _peers(arguments: argparse.Namespace, console: Console) -> list[str]:
    """The peers asked for, all of them installed."""
    names = [name for name in arguments.peers.split(",") if name]
    for name in names:
        if name not in ENGINES or name == "headrace":
            known = ", ".join(engine for engine in ENGINES if engine != "headrace")
            raise UsageError(f"--peers {name}: unknown; the peers are {known}")
        if not is_installed(name) and not arguments.install_peers:
            raise UsageError(f"the peer {name} is not installed: add --install-peers, which downloads gigabytes")
        try:
            install_peer(name, console.print)
        except PeerError as error:
            raise CommandFailedError(str(error)) from error
    return names


def _take_turns(
    engines: list[str], options: list[str], dtype: str, repeats: int, console: Console
) -> list[dict[str, Any]]:
    """All engines loaded at once: ours, peer, peer, ours, peer, peer … Raises `PeerError`."""
    runs = []
    with ExitStack() as stack:
        loaded = []
        for name in engines:
            console.print(f"loading {name}, {dtype} …")
            loaded.append(stack.enter_context(loaded_engine(name, options)))
        for repeat in range(repeats):
            for engine in loaded:
                console.print(f"{engine.name}, {dtype}, run {repeat + 1} of {repeats} …")
                runs.append({"engine": engine.name, "dtype": dtype} | engine.run())
    return runs


def _figures(runs: list[dict[str, Any]], engines: list[str]) -> dict[str, Any]:
    """By number format: each engine's medians, our ratio to each peer, how long our thread waited for the lock."""
    figures: dict[str, Any] = {}
    for dtype in dict.fromkeys(run["dtype"] for run in runs):
        of_dtype: dict[str, Any] = {}
        for engine in engines:
            mine = [run for run in runs if (run["engine"], run["dtype"]) == (engine, dtype)]
            of_dtype[engine] = {name: median(run[name] for run in mine) for name in _FIGURES}
            if engine == "headrace":
                of_dtype[engine]["gil_wait_share"] = median(run["gil_wait_share"] for run in mine)
        for peer in engines[1:]:
            ratio = of_dtype["headrace"]["output_tokens_s"] / of_dtype[peer]["output_tokens_s"]
            of_dtype[f"ratio_{peer}"] = ratio
            of_dtype[f"processor_ratio_{peer}"] = of_dtype[peer]["processor_s"] / of_dtype["headrace"]["processor_s"]
        figures[dtype] = of_dtype
    return figures


def _table(figures: dict[str, Any], engines: list[str]) -> Table:
    table = Table(title="medians; GIL wait: of the engine thread, as a share of step time")
    for heading in (
        "format",
        "engine",
        "output tokens/s",
        "TTFT mean",
        "TTFT p95",
        "processor time",
        "peak RSS",
        "GIL wait",
    ):
        table.add_column(heading, justify="left" if heading in ("format", "engine") else "right")
    for dtype, of_dtype in figures.items():
        for engine in engines:
            values = of_dtype[engine]
            wait = f"{values['gil_wait_share']:.2%}" if "gil_wait_share" in values else ""
            table.add_row(
                dtype,
                engine,
                f"{values['output_tokens_s']:.1f}",
                f"{values['ttft_mean_s']:.2f} s",
                f"{values['ttft_p95_s']:.2f} s",
                f"{values['processor_s']:.1f} s",
                f"{values['peak_rss_mb']:,.0f} MB",
                wait,
            )
        for peer in engines[1:]:
            ratio, less_work = of_dtype[f"ratio_{peer}"], of_dtype[f"processor_ratio_{peer}"]
            table.add_row(dtype, f"beside {peer}", f"{ratio:.2f} ×", "", "", f"÷ {less_work:.2f}", "", "")
    return table
