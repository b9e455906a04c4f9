"""How evenly tenants were served: gaps of accumulated service, and Jain's index over windows.

Knows ticks of service and backlog, and weights. Does not know requests or latencies.

All figures compare service ÷ weight, in cost units, and only between tenants that are *backlogged*: who asks for
little is meant to get little. Parties are compared within a class, for between classes shares differ by design.

**Gap.** For two parties and each stretch of time in which both were backlogged without a pause, the largest amount by
which one got ahead of the other: the range of the difference of their services. This is the quantity that fair
queueing bounds (Golestani 1994; Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, bound it by
2·max(w_p·L_input, w_q·M) for their counter). *Maximum* is over pairs and stretches, *mean* is of the distance at each
tick, counted from the start of the stretch.

**Windowed gap.** In each window, the most-served minus the least-served of those backlogged throughout.

**Jain's index** (Jain, Chiu, Hawe 1984): (Σx)² ÷ (n·Σx²), 1 if all get the same, 1/n if one gets everything. Over the
whole run, x is what a party received while it was backlogged ÷ what its weight's part of the backlogged parties'
service would have been in the same ticks, so that a party that was backlogged for a short while is not called starved.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.runs.run_record import Ticks

__all__ = ["MAX_COMPARED", "Fairness", "Party", "WindowFairness", "fairness"]

MAX_COMPARED = 128
"""Pairs are compared among so many parties, the most served ones: the work grows with the square."""
WINDOWS_S = (1.0, 10.0, 60.0)


@dataclass(frozen=True, slots=True)
class Party:
    """Who is compared: some accounts as one, and their weight."""

    name: str
    accounts: tuple[int, ...]
    """Places in the run's accounts: columns of the ticks."""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class WindowFairness:
    """None: at no time were two parties backlogged through a whole window."""

    window_s: float
    windows: int
    """Windows with at least two parties backlogged throughout."""
    jain_mean: float | None
    jain_min: float | None
    gap_mean: float | None
    gap_max: float | None


@dataclass(frozen=True, slots=True)
class Fairness:
    parties: int
    compared: int
    gap_max: float | None
    gap_mean: float | None
    jain: float | None
    """Over the whole run."""
    windows: tuple[WindowFairness, ...]


def fairness(ticks: Ticks, parties: Sequence[Party]) -> Fairness:
    service, backlogged = _tables(ticks, parties)
    compared = parties
    if len(parties) > MAX_COMPARED:
        most = np.sort(np.argsort(-service[-1], kind="stable")[:MAX_COMPARED]) if len(service) else np.arange(0)
        service, backlogged = service[:, most], backlogged[:, most]
        compared = [parties[place] for place in most]
    weights = np.array([party.weight for party in compared])
    gap_max, gap_mean = _pair_gaps(service, backlogged)
    return Fairness(
        parties=len(parties),
        compared=len(compared),
        gap_max=gap_max,
        gap_mean=gap_mean,
        jain=_whole_jain(service, backlogged, weights),
        windows=tuple(_window(ticks.interval_s, service, backlogged, window_s) for window_s in WINDOWS_S),
    )


def jain_index(shares: NDArray[np.float64]) -> float:
    """1 for nothing at all: nobody got more than another."""
    squares = float(np.square(shares).sum())
    return 1.0 if squares == 0 else float(shares.sum()) ** 2 / (len(shares) * squares)


def _tables(ticks: Ticks, parties: Sequence[Party]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Service ÷ weight with a row of zeros for the start, and backlog; ticks × parties."""
    length = len(ticks.service)
    service = np.zeros((length + 1, len(parties)))
    backlogged = np.zeros((length, len(parties)), dtype=np.bool_)
    for place, party in enumerate(parties):
        columns = list(party.accounts)
        service[1:, place] = ticks.service[:, columns].sum(axis=1) / party.weight
        backlogged[:, place] = ticks.backlogged[:, columns].any(axis=1)
    return service, backlogged


def _pair_gaps(service: NDArray[np.float64], backlogged: NDArray[np.bool_]) -> tuple[float | None, float | None]:
    largest: float | None = None
    distance = 0.0
    ticks = 0
    for first in range(backlogged.shape[1]):
        for second in range(first + 1, backlogged.shape[1]):
            both = backlogged[:, first] & backlogged[:, second]
            if not both.any():
                continue
            difference = service[:, first] - service[:, second]
            for start, end in _stretches(both):
                # Interval k lies between the services of rows k and k + 1.
                part = difference[start : end + 1]
                largest = max(largest or 0.0, float(part.max() - part.min()))
                distance += float(np.abs(part[1:] - part[0]).sum())
                ticks += end - start
    return largest, distance / ticks if ticks else None


def _stretches(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where flags are set without a pause: [start, end) pairs."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _window(
    interval_s: float, service: NDArray[np.float64], backlogged: NDArray[np.bool_], window_s: float
) -> WindowFairness:
    ticks = max(1, round(window_s / interval_s))
    indexes: list[float] = []
    gaps: list[float] = []
    for start in range(0, len(backlogged) - ticks + 1, ticks):
        throughout = backlogged[start : start + ticks].all(axis=0)
        if throughout.sum() < 2:
            continue
        received = (service[start + ticks] - service[start])[throughout]
        indexes.append(jain_index(received))
        gaps.append(float(received.max() - received.min()))
    if not indexes:
        return WindowFairness(ticks * interval_s, 0, None, None, None, None)
    return WindowFairness(
        window_s=ticks * interval_s,
        windows=len(indexes),
        jain_mean=float(np.mean(indexes)),
        jain_min=min(indexes),
        gap_mean=float(np.mean(gaps)),
        gap_max=max(gaps),
    )


def _whole_jain(
    service: NDArray[np.float64], backlogged: NDArray[np.bool_], weights: NDArray[np.float64]
) -> float | None:
    """`service` is ÷ weight already."""
    several = backlogged.sum(axis=1) >= 2
    present = backlogged & several[:, None]
    was_backlogged = present.any(axis=0)
    if not was_backlogged.any():
        return None
    received = np.where(present, np.diff(service, axis=0), 0.0)
    # What a unit of weight would have got, had the backlogged parties shared by weight.
    shared_weight = (present * weights).sum(axis=1)
    fair = np.divide((received * weights).sum(axis=1), shared_weight, out=np.zeros(len(several)), where=several)
    due = (present * fair[:, None]).sum(axis=0)
    ratio = np.divide(received.sum(axis=0), due, out=np.ones(len(due)), where=due > 0)
    return jain_index(ratio[was_backlogged])
