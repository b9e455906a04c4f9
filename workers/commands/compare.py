"""Compare two runs of the same requests: what got faster or slower, by how much, and what of it may be chance.

  headrace compare results/fifo results/htb

A and B are folders of `headrace load` or `headrace simulate`, or their CSVs of requests. Ratios are B ÷ A with a 95 %
bootstrap interval over blocks of neighbouring requests; one that holds 1 is shown as undecided. Of live runs, the mean
time to the first token is shown split into what it was spent on.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from workers.cli import UsageError
from workers.runs.run_comparison import (
    ComparedRun,
    ComparisonError,
    FigureRatio,
    compare_runs,
    mean_split_s,
    read_run,
)
from workers.runs.ttft_split import TTFT_STAGES

__all__ = ["add_arguments", "run"]

_PIPE_COLUMNS = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=Path, metavar="A")
    parser.add_argument("b", type=Path, metavar="B")
    parser.add_argument("--seed", type=int, default=1, help="of the bootstrap (1)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    try:
        a, b = read_run(arguments.a), read_run(arguments.b)
        ratios = compare_runs(a, b, seed=arguments.seed)
    except ComparisonError as error:
        raise UsageError(str(error)) from error
    if arguments.json:
        sys.stdout.buffer.write(orjson.dumps(_document(a, b, ratios), option=orjson.OPT_INDENT_2) + b"\n")
        return 0
    console = Console() if sys.stdout.isatty() else Console(width=_PIPE_COLUMNS)
    names = (a.name, b.name) if a.name != b.name else (f"A {a.name}", f"B {b.name}")
    console.print(_figures_table(names, a, b, ratios))
    splits = [(label, mean_split_s(a, label), mean_split_s(b, label)) for label in ratios]
    if any(of_a or of_b for _, of_a, of_b in splits):
        console.print(_split_table(names, splits))
    return 0


def _document(a: ComparedRun, b: ComparedRun, ratios: dict[str, list[FigureRatio]]) -> dict[str, Any]:
    return {
        "a": a.name,
        "b": b.name,
        "by_class": {
            label: {
                "requests": [int((run.priority == label).sum()) for run in (a, b)],
                "completed": [int((run.finished & (run.priority == label)).sum()) for run in (a, b)],
                "figures": [asdict(figure) | {"decided": figure.decided} for figure in figures],
                "mean_ttft_split_s": {"a": mean_split_s(a, label), "b": mean_split_s(b, label)},
            }
            for label, figures in ratios.items()
        },
    }


def _figures_table(
    names: tuple[str, str], a: ComparedRun, b: ComparedRun, ratios: dict[str, list[FigureRatio]]
) -> Table:
    table = Table(title="seconds; B ÷ A with its 95 % interval")
    table.add_column("class")
    table.add_column("figure")
    for heading in (*names, "B ÷ A", "interval", ""):
        table.add_column(heading, justify="right")
    for label, figures in ratios.items():
        done = [f"{int((run.finished & (run.priority == label)).sum())}" for run in (a, b)]
        table.add_row(label, "answered", *done, "", "", "")
        for figure in figures:
            interval = "–" if figure.low is None or figure.high is None else f"{figure.low:.2f} … {figure.high:.2f}"
            verdict = "" if figure.decided else "undecided"
            table.add_row(
                "", figure.figure, *map(_seconds, (figure.a, figure.b)), _times(figure.ratio), interval, verdict
            )
        table.add_section()
    return table


def _split_table(
    names: tuple[str, str], splits: Sequence[tuple[str, dict[str, float] | None, dict[str, float] | None]]
) -> Table:
    table = Table(title="mean time to first token, split; seconds")
    table.add_column("class")
    table.add_column("run")
    for stage in (*TTFT_STAGES, "sum"):
        table.add_column(stage, justify="right")
    for label, *both in splits:
        for name, split in zip(names, both, strict=True):
            cells = ["–"] * len(TTFT_STAGES) + ["–"] if split is None else [*map(_seconds, split.values()), _sum(split)]
            table.add_row(label, name, *cells)
        table.add_section()
    return table


def _sum(split: dict[str, float]) -> str:
    return _seconds(sum(split.values()))


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ×"
