"""How fast KV blocks are copied out and in, beside a plain copy of the same bytes.

Scattered blocks of the model's size go out to places that lie together and come in again, by the code that swaps
suspended requests. Beside it a warm copy between two buffers that were there before, of the same bytes, by the same
threads, and our copy of blocks that lie together, which is what compaction could gain; the three alternate. And for
copies of many sizes, by how much the estimate that decides between swapping and recomputing is off.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from workers.cli import UsageError

__all__ = ["add_arguments", "run"]

_SMOLLM2 = {"layers": 30, "kv_heads": 3, "head_dim": 64, "block_size": 16}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=512, metavar="N", help="that a copy moves (512)")
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="pairs of copies each way (15)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    parser.add_argument("--dtype", default="bfloat16", help="of the KV (bfloat16)")
    for name, value in _SMOLLM2.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, metavar="N", help=f"({value})")
    parser.add_argument("--out", type=Path, default=Path("out/bench-swap.json"), help="(out/bench-swap.json)")
    parser.add_argument("--json", action="store_true", help="print the JSON too")


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from workers.bench.record import bench_record, write_record
    from workers.models.devices import choose_placement
    from workers.runners.errors import DeviceError

    if arguments.blocks < 2 or arguments.repeats < 1:
        raise UsageError(f"--blocks {arguments.blocks}, --repeats {arguments.repeats}: at least 2 and 1")
    try:
        placement = choose_placement(arguments.device, arguments.dtype)
    except DeviceError as error:
        raise UsageError(str(error)) from error
    figures, runs = _measure(arguments, placement)
    record = bench_record(figures, runs)
    write_record(record, arguments.out)
    console = Console(stderr=True)
    for way in ("out", "in"):
        console.print(
            f"{way}: {figures[f'{way}_gb_s']:.2f} GB/s, plain copy {figures[f'{way}_plain_gb_s']:.2f} GB/s, "
            f"ratio {figures[f'{way}_ratio']:.3f}; scattered blocks beside blocks that lie together: "
            f"{figures[f'{way}_together_gain']:+.1%} of the time"
        )
    console.print(f"median error of the estimate: {100 * figures['prediction_error']:.1f} %")
    console.print(f"written to {arguments.out}")
    if arguments.json:
        print(json.dumps(record))
    return 0


def _measure(arguments: argparse.Namespace, placement: Any) -> tuple[dict[str, float], list[dict[str, Any]]]:
    import torch

    from kvcache.storage import KVStorage, SwapSpace
    from kvcache.swap_plan import BlockCopy, Direction
    from scheduling.swap_rule import SwapRule
    from workers.runners.swap_space import measure_swap

    torch.set_num_threads(placement.threads)
    count = arguments.blocks
    shape = (arguments.kv_heads, arguments.block_size, arguments.head_dim)
    storage = KVStorage(2 * count, arguments.layers, shape, placement.dtype, placement.device)
    storage.blocks.fill_(1)
    space = SwapSpace(storage, count, time.perf_counter)
    space.places.fill_(1)
    draw = random.Random(1)
    blocks, together = tuple(draw.sample(range(2 * count), count)), tuple(range(count, 2 * count))
    places = tuple(range(count))
    here = storage.blocks.flatten(1).view(torch.int64)[:count]
    there = torch.ones_like(space.places)

    def settle() -> None:
        if placement.device.type == "cuda":
            torch.cuda.synchronize(placement.device)

    def timed(act: Callable[..., object], *values: object) -> float:
        settle()
        started_s = time.perf_counter()
        act(*values)
        settle()
        return time.perf_counter() - started_s

    size_gb = count * space.block_bytes / 1e9

    def pair() -> dict[str, float]:
        return {
            "out_s": timed(space.copy, [BlockCopy(Direction.OUT, blocks, places)]),
            "out_plain_s": timed(there.copy_, here),
            "out_together_s": timed(space.copy, [BlockCopy(Direction.OUT, together, places)]),
            "in_s": timed(space.copy, [BlockCopy(Direction.IN, blocks, places)]),
            "in_plain_s": timed(here.copy_, there),
            "in_together_s": timed(space.copy, [BlockCopy(Direction.IN, together, places)]),
        }

    pair()  # touches memory for the first time
    runs = [pair() for _ in range(arguments.repeats)]
    space.take_timings()
    rule = SwapRule(measure_swap(space, 2 * count, count), theta=1.0)
    errors = []
    for _ in range(4 * arguments.repeats):
        size = draw.randrange(1, count + 1)
        predicted_s = rule.swap_s(size)
        chosen = tuple(draw.sample(range(2 * count), size))
        took_s = timed(space.copy, [BlockCopy(way, chosen, places[:size]) for way in Direction])
        errors.append(abs(predicted_s / took_s - 1))
        for timing in space.take_timings():
            rule.copied(timing.direction, timing.blocks, timing.seconds)
    figures = {"prediction_error": median(errors)}
    for way in ("out", "in"):
        figures[f"{way}_ratio"] = median(one[f"{way}_plain_s"] / one[f"{way}_s"] for one in runs)
        figures[f"{way}_together_gain"] = median(one[f"{way}_s"] / one[f"{way}_together_s"] for one in runs) - 1
        figures[f"{way}_gb_s"] = size_gb / median(one[f"{way}_s"] for one in runs)
        figures[f"{way}_plain_gb_s"] = size_gb / median(one[f"{way}_plain_s"] for one in runs)
    return figures, runs
