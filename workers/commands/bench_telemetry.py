"""What telemetry costs: the engine with metrics and traces, beside itself without.

Runs of one workload take turns, with and without, --pairs times: throughput, and the processor time of the engine
thread around a step (decision time). One more run reads the thread's clock around each call into telemetry. Every
request is traced; a worker's sampling, by default its producers', may leave most of that out.
"""

import argparse
import json
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from rich.console import Console

__all__ = ["add_arguments", "run"]

_BOOTSTRAPS = 10_000
_SEED = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2", metavar="SOURCE", help="as in serve (smollm2)")
    parser.add_argument("--requests", type=int, default=32, metavar="N", help="in a run, at most 64 (32)")
    parser.add_argument("--max-tokens", type=int, default=32, metavar="N", help="that each of them writes (32)")
    parser.add_argument("--pairs", type=int, default=9, metavar="N", help="of runs (9)")
    parser.add_argument("--out", type=Path, default=Path("out/bench-telemetry.json"), help="(out/bench-telemetry.json)")
    parser.add_argument("--json", action="store_true", help="print the JSON too")


def run(arguments: argparse.Namespace) -> int:
    from workers.bench.record import bench_record, write_record
    from workers.bench.telemetry import measured_run, metered_run
    from workers.bench.workload import MIXES, make_workload
    from workers.commands.explained import explained
    from workers.configuration.config import load_config
    from workers.models.loaded_model import load_model
    from workers.models.model_source import find_model, prepare_model

    console = Console(stderr=True)
    with explained():
        folder = prepare_model(find_model(arguments.model), console.print).folder
        config = load_config({"model": {"source": str(folder)}})
        model = load_model(config.model, config.engine, config.kv)
    workload = make_workload(folder, MIXES["mixed"])["requests"][: arguments.requests]
    requests = [{**request, "max_tokens": arguments.max_tokens} for request in workload]
    measured_run(config, model, requests[:4], telemetry=True)  # caches, imports
    runs: list[dict[str, Any]] = []
    for pair in range(arguments.pairs):
        # Who goes first changes, so that a machine that slows down is the same to both.
        for telemetry in (True, False) if pair % 2 else (False, True):
            runs.append(measured_run(config, model, requests, telemetry=telemetry))
            console.print(
                f"{pair + 1}: {'with' if telemetry else 'without'} {runs[-1]['output_tokens_s']:.1f} tokens/s"
            )
    metered = metered_run(config, model, requests)
    figures = _figures(runs) | {
        name: metered[name] for name in ("engine_thread_s", "event_loop_s", "share_of_step_time", "calls")
    }
    record = bench_record(figures, [*runs, metered])
    write_record(record, arguments.out)
    low, high = figures["throughput_ratio_interval"]
    console.print(
        f"throughput {figures['throughput_ratio']:.3f} of that without (95 % interval {low:.3f} to {high:.3f}); "
        f"decision time {figures['decision_ratio']:.3f}; "
        f"inside telemetry {figures['share_of_step_time']:.2%} of the step time"
    )
    if arguments.json:
        print(json.dumps(record))
    return 0


def _figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    by_side = {side: [run for run in runs if run["telemetry"] is side] for side in (True, False)}
    pairs = list(zip(by_side[True], by_side[False], strict=True))
    ratios = [on["output_tokens_s"] / off["output_tokens_s"] for on, off in pairs]
    return {
        "throughput_ratio": median(ratios),
        "throughput_ratio_interval": _interval(ratios),
        "decision_ratio": median(on["decision_cpu_us"] / off["decision_cpu_us"] for on, off in pairs),
        "decision_cpu_us": {
            name: median(run["decision_cpu_us"] for run in by_side[side])
            for name, side in (("on", True), ("off", False))
        },
    }


def _interval(ratios: list[float]) -> tuple[float, float]:
    """Of their median: 95 %, by bootstrap."""
    random = Random(_SEED)
    medians = sorted(median(random.choices(ratios, k=len(ratios))) for _ in range(_BOOTSTRAPS))
    return medians[int(0.025 * _BOOTSTRAPS)], medians[int(0.975 * _BOOTSTRAPS)]
