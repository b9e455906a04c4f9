"""Two runs of one stream side by side, with intervals that say what is chance.

Knows requests as `simulate` and `load` write them. Does not know how the runs came about.

Figures are compared by their ratio B ÷ A, with a 95 % bootstrap interval (Efron, 1979; percentile method). Two things
of a queue must not be lost in the drawing:

- A request stood behind its neighbours, so neighbours' times are alike. Whole *blocks* of neighbours by arrival are
  drawn, √n of about √n requests each (Künsch, 1989), not single requests: those would look far more certain than they
  are.
- Both runs played the same stream. The same requests are drawn from both (*paired*), so what only this stream had
  cancels out. Without a stream in common, each is drawn for itself.

Limits: a run with one long burst is one observation, however many requests it had; repeat the runs to know more.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.runs.ttft_split import TTFT_STAGES

__all__ = ["ComparedRun", "ComparisonError", "FigureRatio", "compare_runs", "mean_split_s", "read_run"]

Floats = NDArray[np.float64]

_TABLE_CELLS = 2**20

_NEEDED = ("request", "class", "outcome", "arrival_s", "output_tokens", "ttft_s", "e2el_s")


class ComparisonError(Exception):
    """A run that can't be read, or two that have nothing in common. The message names the file and the remedy."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """Requests by number, in order of arrival."""

    name: str
    requests: NDArray[np.int64]
    priority: NDArray[np.str_]
    finished: NDArray[np.bool_]
    ttft_s: Floats
    """NaN of what did not finish, like the others."""
    tpot_s: Floats
    """NaN of answers of one token too."""
    e2el_s: Floats
    split_s: Mapping[str, Floats]
    """By stage of the time to the first token; empty of a simulated run."""


@dataclass(frozen=True, slots=True)
class FigureRatio:
    """One figure of both runs. None: a run has no finished request there."""

    figure: str
    a: float | None
    b: float | None
    ratio: float | None
    low: float | None
    high: float | None
    """Of the ratio's 95 % interval."""

    @property
    def decided(self) -> bool:
        """The interval does not hold 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def read_run(path: Path) -> ComparedRun:
    """A CSV of requests, or a folder that holds exactly one. Raises `ComparisonError`."""
    file = path
    if path.is_dir():
        files = sorted(path.glob("requests-*.csv"))
        if len(files) != 1:
            there = ", ".join(found.name for found in files) or "none"
            raise ComparisonError(f"{path}: one requests-*.csv is wanted, there is: {there}; name the file itself")
        file = files[0]
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            rows = list(csv.DictReader(opened))
    except (OSError, UnicodeDecodeError) as error:
        raise ComparisonError(f"{file}: can't be read: {error}") from error
    missing = [name for name in _NEEDED if not rows or name not in rows[0]]
    if missing:
        raise ComparisonError(f"{file}: is no CSV of `headrace load` or `simulate`: {', '.join(missing)} missing")
    try:
        return _run(file.stem.removeprefix("requests-"), rows)
    except ValueError as error:
        raise ComparisonError(f"{file}: {error}") from error


def _run(name: str, rows: Sequence[Mapping[str, str]]) -> ComparedRun:
    rows = sorted(rows, key=lambda row: float(row["arrival_s"]))

    def column(title: str) -> Floats:
        return np.array([float(row.get(title) or "nan") for row in rows])

    finished = np.array([row["outcome"] == "finished" for row in rows])
    ttft, e2el = (np.where(finished, column(title), np.nan) for title in ("ttft_s", "e2el_s"))
    tokens = column("output_tokens")
    more = np.where(tokens > 1, tokens - 1, np.nan)
    live = all(f"{stage}_s" in rows[0] for stage in TTFT_STAGES)
    return ComparedRun(
        name=name,
        requests=np.array([int(row["request"]) for row in rows]),
        priority=np.array([row["class"] for row in rows]),
        finished=finished,
        ttft_s=ttft,
        tpot_s=(e2el - ttft) / more,
        e2el_s=e2el,
        split_s={stage: column(f"{stage}_s") for stage in TTFT_STAGES} if live else {},
    )


# --- figures ----------------------------------------------------------------------------------------------------------


def _mean(table: Floats) -> Floats:
    """Of each row, of what is known in it; NaN of a row where nothing is."""
    known = np.isfinite(table)
    counts = known.sum(axis=1)
    means: Floats = np.where(known, table, 0.0).sum(axis=1) / np.where(counts, counts, np.nan)
    return means


def _quantile(percent: int) -> Callable[[Floats], Floats]:
    def of(table: Floats) -> Floats:
        if np.isfinite(table).all():
            quantiles: Floats = np.percentile(table, percent, axis=1)
            return quantiles
        known = [row[np.isfinite(row)] for row in table]
        return np.array([np.percentile(row, percent) if len(row) else np.nan for row in known])

    return of


_FIGURES: tuple[tuple[str, str, Callable[[Floats], Floats]], ...] = (
    ("TTFT mean", "ttft_s", _mean),
    ("TTFT p50", "ttft_s", _quantile(50)),
    ("TTFT p95", "ttft_s", _quantile(95)),
    ("TPOT mean", "tpot_s", _mean),
    ("E2E mean", "e2el_s", _mean),
    ("E2E p95", "e2el_s", _quantile(95)),
)


def compare_runs(a: ComparedRun, b: ComparedRun, *, draws: int = 2_000, seed: int = 1) -> dict[str, list[FigureRatio]]:
    """By class. The same seed gives the same intervals. Raises `ComparisonError` if no class is in both."""
    labels = sorted(set(a.priority) & set(b.priority))
    if not labels:
        raise ComparisonError(f"{a.name} and {b.name} have no class in common")
    return {str(label): _class_ratios(a, b, str(label), draws, seed) for label in labels}


def _class_ratios(a: ComparedRun, b: ComparedRun, label: str, draws: int, seed: int) -> list[FigureRatio]:
    places_a, places_b = np.flatnonzero(a.priority == label), np.flatnonzero(b.priority == label)
    paired = np.array_equal(a.requests[places_a], b.requests[places_b])
    random_a = np.random.default_rng(seed)
    random_b = np.random.default_rng(seed if paired else seed + 1)
    resampled: list[list[Floats]] = [[] for _ in _FIGURES]
    for rows in _chunks(draws, max(len(places_a), len(places_b))):
        drawn_a, drawn_b = _blocks(rows, places_a, random_a), _blocks(rows, places_b, random_b)
        for found, (_, field, figure) in zip(resampled, _FIGURES, strict=True):
            found.append(_ratio(figure(getattr(a, field)[drawn_a]), figure(getattr(b, field)[drawn_b])))
    ratios = []
    for found, (name, field, figure) in zip(resampled, _FIGURES, strict=True):
        of_a, of_b = figure(getattr(a, field)[None, places_a]), figure(getattr(b, field)[None, places_b])
        drawn = np.concatenate(found)
        drawn = drawn[np.isfinite(drawn)]
        low, high = np.percentile(drawn, (2.5, 97.5)) if len(drawn) else (np.nan, np.nan)
        ratios.append(FigureRatio(name, *map(_known, (of_a[0], of_b[0], _ratio(of_a, of_b)[0], low, high))))
    return ratios


def _chunks(draws: int, columns: int) -> Iterator[int]:
    """How many draws at a time: as one table they would fill the memory of a long run's reader."""
    rows = max(1, _TABLE_CELLS // columns)
    for start in range(0, draws, rows):
        yield min(rows, draws - start)


def _blocks(draws: int, places: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """Draws × places: runs of neighbours, the last one of a draw cut."""
    length = max(1, isqrt(len(places)))
    starts = random.integers(0, len(places) - length + 1, size=(draws, -(-len(places) // length)))
    drawn: NDArray[np.int64] = places[(starts[:, :, None] + np.arange(length)).reshape(draws, -1)[:, : len(places)]]
    return drawn


def _ratio(a: Floats, b: Floats) -> Floats:
    ratios: Floats = b / np.where(a > 0, a, np.nan)
    return ratios


def _known(value: Any) -> float | None:
    return float(value) if isfinite(value) else None


def mean_split_s(run: ComparedRun, label: str) -> dict[str, float] | None:
    """Mean seconds by stage of the requests that finished; None of a simulated run."""
    chosen = run.finished & (run.priority == label)
    if not run.split_s or not chosen.any():
        return None
    return {stage: float(_mean(values[None, chosen])[0]) for stage, values in run.split_s.items()}
