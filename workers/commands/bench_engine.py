"""Engine throughput on a workload of token ids, beside transformers' static `generate`.

All requests are submitted at once and run through the parts of `serve`: ingress, staging thread, scheduler, engine
thread, sampler, detokeniser; only Kafka is left out. Each engine runs in a process of its own, one after the other,
--repeats times. Greedy, end tokens ignored, so both write the same number of tokens.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from workers.cli import UsageError

__all__ = ["add_arguments", "run"]

_ENGINES = {"headrace": "workers.bench_engine", "transformers": "benchmarks.transformers_peer"}
_FIGURES = ("output_tokens_s", "ttft_mean_s", "ttft_p95_s", "peak_rss_mb")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workload", type=Path, metavar="FILE", help="JSON {requests: [{prompt_token_ids, max_tokens}]}"
    )
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N of it (all)")
    parser.add_argument("--model", default="smollm2", metavar="SOURCE", help="as in serve (smollm2)")
    parser.add_argument("--dtypes", default="auto", metavar="D,D", help="number formats to run (auto)")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="pairs of runs; medians are reported (1)")
    parser.add_argument("--out", type=Path, default=Path("out/bench-engine.json"), help="(out/bench-engine.json)")
    parser.add_argument("--json", action="store_true", help="print the JSON too")


def run(arguments: argparse.Namespace) -> int:
    from workers.bench_record import bench_record, write_record
    from workers.bench_workload import default_workload
    from workers.errors import ModelError
    from workers.model_source import find_model, prepare_model

    console = Console(stderr=True)
    if arguments.workload is not None and not arguments.workload.is_file():
        raise UsageError(f"--workload {arguments.workload}: no such file")
    if not Path("benchmarks/transformers_peer.py").is_file():
        raise UsageError("the peers are in the repository's benchmarks/ folder: run this from its root")
    try:
        folder = prepare_model(find_model(arguments.model), console.print).folder
    except ModelError as error:
        raise UsageError(str(error)) from error
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        workload = arguments.workload
        if workload is None:
            workload = Path(scratch) / "workload.json"
            workload.write_text(json.dumps(default_workload(folder)), encoding="utf-8")
        for dtype in arguments.dtypes.split(","):
            for repeat in range(arguments.repeats):
                for engine, module in _ENGINES.items():
                    console.print(f"{engine}, {dtype}, run {repeat + 1} of {arguments.repeats} …")
                    runs.append({"engine": engine, "dtype": dtype} | _run(module, folder, workload, dtype, arguments))
    figures = _figures(runs)
    record = bench_record(figures, runs)
    write_record(record, arguments.out)
    console.print(_table(figures))
    console.print(f"written to {arguments.out}")
    if arguments.json:
        print(json.dumps(record))
    return 0


def _run(module: str, folder: Path, workload: Path, dtype: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", module, "--model", str(folder), "--workload", str(workload), "--dtype", dtype]
    if arguments.requests is not None:
        command += ["--requests", str(arguments.requests)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


def _figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """By number format: each engine's medians, the ratio, and how long the engine thread waited for the lock."""
    figures: dict[str, Any] = {}
    for dtype in dict.fromkeys(run["dtype"] for run in runs):
        of_dtype: dict[str, Any] = {}
        for engine in _ENGINES:
            mine = [run for run in runs if (run["engine"], run["dtype"]) == (engine, dtype)]
            of_dtype[engine] = {name: median(run[name] for run in mine) for name in _FIGURES}
            if engine == "headrace":
                of_dtype[engine]["gil_wait_share"] = median(run["gil_wait_share"] for run in mine)
        of_dtype["ratio_transformers"] = (
            of_dtype["headrace"]["output_tokens_s"] / of_dtype["transformers"]["output_tokens_s"]
        )
        figures[dtype] = of_dtype
    return figures


def _table(figures: dict[str, Any]) -> Table:
    table = Table(title="medians; GIL wait: of the engine thread, as a share of step time")
    for heading in ("format", "engine", "output tokens/s", "TTFT mean", "TTFT p95", "peak RSS", "GIL wait"):
        table.add_column(heading, justify="left" if heading in ("format", "engine") else "right")
    for dtype, of_dtype in figures.items():
        for engine in _ENGINES:
            values = of_dtype[engine]
            wait = f"{values['gil_wait_share']:.2%}" if "gil_wait_share" in values else ""
            table.add_row(
                dtype,
                engine,
                f"{values['output_tokens_s']:.1f}",
                f"{values['ttft_mean_s']:.2f} s",
                f"{values['ttft_p95_s']:.2f} s",
                f"{values['peak_rss_mb']:,.0f} MB",
                wait,
            )
        table.add_row(dtype, "ratio", f"{of_dtype['ratio_transformers']:.2f} ×", "", "", "", "")
    return table
