"""What paging costs: block accounting beside a decode step, and a prefix hit beside its suffix alone.

Accounting: what the KV manager does for one step of 64 decoding sequences (a token's room for each, blocks named as
they fill, tables read), in the engine thread's processor time, beside that of the step itself.

A prefix hit: names are hashed, blocks found and shared, and the suffix computed behind them; beside it the suffix alone
over KV that is there, without any of that, and the whole prompt computed. The three alternate; medians of the pairs.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console

from workers.cli import UsageError
from workers.commands.explained import explained

if TYPE_CHECKING:
    from workers.models.loaded_model import LoadedModel

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2", metavar="SOURCE", help="as in serve (smollm2)")
    parser.add_argument("--dtype", default="auto", help="(auto)")
    sizes = (
        ("sequences", 64, "that decode"),
        ("context", 256, "tokens of each"),
        ("steps", 10, "decode steps that are timed"),
        ("prefix", 512, "tokens that two prompts share"),
        ("suffix", 32, "tokens of the second prompt behind them"),
        ("pairs", 20, "prefix hits that are timed"),
    )
    for name, default, what in sizes:
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{what} ({default})")
    parser.add_argument("--out", type=Path, default=Path("out/bench-paging.json"), help="(out/bench-paging.json)")
    parser.add_argument("--json", action="store_true", help="print the JSON too")


def run(arguments: argparse.Namespace) -> int:
    for name in ("sequences", "context", "steps", "prefix", "suffix", "pairs"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name} {getattr(arguments, name)}: at least 1")
    from workers.bench.record import bench_record, write_record
    from workers.configuration.config import load_config
    from workers.models.loaded_model import load_model

    console = Console(stderr=True, highlight=False)
    config = load_config({"model": {"source": arguments.model}, "engine": {"dtype": arguments.dtype}})
    with explained():
        model = load_model(config.model, config.engine, config.kv, console.print)
    accounting = _accounting(model, arguments)
    hits = _prefix_hits(model, arguments)
    figures = {
        "accounting_ms": 1e3 * median(one["accounting_s"] for one in accounting),
        "step_ms": 1e3 * median(one["step_s"] for one in accounting),
        "accounting_share": median(one["accounting_s"] / one["step_s"] for one in accounting),
        "hit_ms": 1e3 * median(one["hit_s"] for one in hits),
        "suffix_ms": 1e3 * median(one["suffix_s"] for one in hits),
        "full_ms": 1e3 * median(one["full_s"] for one in hits),
        "hit_over_suffix": median((one["hit_s"] - one["suffix_s"]) / one["full_s"] for one in hits),
    }
    record = bench_record(figures, [*accounting, *hits])
    write_record(record, arguments.out)
    console.print(
        f"accounting: {figures['accounting_ms']:.2f} ms of processor time beside a decode step of "
        f"{arguments.sequences} with {figures['step_ms']:.1f} ms: {figures['accounting_share']:.2%}"
    )
    console.print(
        f"prefix hit: {figures['hit_ms']:.1f} ms, the suffix alone {figures['suffix_ms']:.1f} ms, the whole prompt "
        f"{figures['full_ms']:.1f} ms; hit − suffix = {figures['hit_over_suffix']:.2%} of the whole"
    )
    console.print(f"written to {arguments.out}")
    if arguments.json:
        print(json.dumps(record))
    return 0


def _accounting(model: "LoadedModel", arguments: argparse.Namespace) -> list[dict[str, float]]:
    from kvcache.block_hash import BlockHasher
    from kvcache.manager import KVCacheManager
    from workers.intake.sampling import GREEDY
    from workers.runners.runner import SequenceInput

    runner = model.runner
    kv = KVCacheManager(runner.num_blocks, runner.block_size)
    hasher = BlockHasher(runner.block_size, model="bench", adapter="", dtype=model.dtype)
    # Of one more token each, so that blocks fill at different steps, as they do.
    tokens = [_tokens(model, arguments.context + row % runner.block_size, row) for row in range(arguments.sequences)]
    names = [hasher.names(one, "") for one in tokens]
    for row, one in enumerate(tokens):
        found = kv.allocate(row, len(one), owner_class=2, predicted_tokens=len(one) + 128, names=names[row])
        if found is None:
            raise UsageError(
                f"--sequences {arguments.sequences} --context {arguments.context}: the KV pool is too small"
            )
    runs = []
    for step in range(arguments.steps + 1):
        begun_s = time.thread_time()
        kv.tick(float(step))
        for row, one in enumerate(tokens):
            kv.grow(row, len(one))
        tables = [kv.table(row) for row in range(len(tokens))]
        accounting_s = time.thread_time() - begun_s
        begun_s = time.thread_time()
        sampled = runner.step(
            [
                SequenceInput(one[-1:], len(one) - 1, table, GREEDY, history=one)
                for one, table in zip(tokens, tables, strict=True)
            ]
        )
        step_s = time.thread_time() - begun_s
        begun_s = time.thread_time()
        for row, (one, token) in enumerate(zip(tokens, sampled, strict=True)):
            assert token is not None
            kv.computed(row, len(one))
            one.append(token)
            if len(one) % runner.block_size == 0:
                hasher.extend(names[row], one, "")
        accounting_s += time.thread_time() - begun_s
        runs.append({"accounting_s": accounting_s, "step_s": step_s})
    for row in range(len(tokens)):
        kv.release(row)
    return runs[1:]  # the first touches memory


def _prefix_hits(model: "LoadedModel", arguments: argparse.Namespace) -> list[dict[str, float]]:
    size = model.runner.block_size
    prefix = _tokens(model, max(size, arguments.prefix - arguments.prefix % size), 0)
    runs = []
    for pair in range(arguments.pairs + 1):
        cache = _Cache(model)  # nothing is found in an empty one
        own, others = (_tokens(model, arguments.suffix, seed) for seed in (2 * pair + 1, 2 * pair + 2))
        begun_s = time.perf_counter()
        cache.answer(prefix + own)
        full_s = time.perf_counter() - begun_s
        begun_s = time.perf_counter()
        found = cache.answer(prefix + others)
        hit_s = time.perf_counter() - begun_s
        assert found == len(prefix), f"{found} tokens were found of {len(prefix)}"
        begun_s = time.perf_counter()
        cache.compute(prefix + others, found)
        runs.append({"full_s": full_s, "hit_s": hit_s, "suffix_s": time.perf_counter() - begun_s})
    return runs[1:]


class _Cache:
    """A pool of which nothing is known yet; requests that answer with one token, all of which stay."""

    def __init__(self, model: "LoadedModel") -> None:
        from kvcache.block_hash import BlockHasher
        from kvcache.manager import KVCacheManager

        self._runner = model.runner
        self._kv = KVCacheManager(self._runner.num_blocks, self._runner.block_size)
        self._hasher = BlockHasher(self._runner.block_size, model="bench", adapter="", dtype=model.dtype)
        self._row = -1

    def answer(self, prompt: list[int]) -> int:
        """All that is done for a prompt; how many of its tokens were found."""
        self._row += 1
        allocation = self._kv.allocate(self._row, len(prompt), owner_class=2, names=self._hasher.names(prompt, ""))
        if allocation is None:
            raise UsageError(f"two prompts of {len(prompt)} tokens are more than the KV pool holds: lower --prefix")
        self.compute(prompt, allocation.cached_tokens)
        self._kv.computed(self._row, len(prompt))
        return allocation.cached_tokens

    def compute(self, prompt: list[int], start: int) -> None:
        """The forward alone, of the last request."""
        from workers.intake.sampling import GREEDY
        from workers.runners.runner import SequenceInput

        self._runner.step([SequenceInput(prompt[start:], start, self._kv.table(self._row), GREEDY, history=prompt)])


def _tokens(model: "LoadedModel", count: int, seed: int) -> list[int]:
    """Any, and others for another seed."""
    return [(7919 * seed + 31 * place) % (model.limits.vocabulary - 10) + 5 for place in range(count)]
