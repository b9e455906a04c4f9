"""The published runs of the virtual token counter: their requests, their times, and figures from either.

Knows the result files of Ying1123/VTC-artifact (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024)
and how that project computes service from first-token and end times. Does not know simulation: our runs are brought
into the same form, so that both are measured by the same code.

Service of a request is 1 a prompt token and 2 an output token, spread evenly from its first token to its end.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["ServedRun", "VtcFigures", "read_published", "run_figures"]

_TICKS = 100
_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class ServedRun:
    """Requests and when each was answered, as arrays. Published or simulated."""

    client: NDArray[np.str_]
    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    first_token_s: NDArray[np.float64]
    end_s: NDArray[np.float64]

    @property
    def cost(self) -> NDArray[np.int64]:
        return self.prompt_tokens + 2 * self.output_tokens


@dataclass(frozen=True, slots=True)
class VtcFigures:
    """Over a horizon; services in cost units."""

    accumulated_gap: float
    """The largest distance, at any time, between the most and the least served client's service since the start."""
    windowed_gap: float
    """Their "service difference": in windows of a minute, the distance of each client's service a second from the most
    served one's, or from what it asked for where that is less; summed over clients, averaged over time."""
    weighted_throughput: float
    """Cost units a second."""
    mean_ttft_s: dict[str, float]
    """By client, of requests that arrived within the horizon."""


def read_published(path: Path) -> ServedRun:
    """Raises `ValueError` naming the file if a column is missing or no number."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        arrival_s = np.array([float(row["arrival_s"]) for row in rows])
        return ServedRun(
            client=np.array([row["client"] for row in rows]),
            arrival_s=arrival_s,
            prompt_tokens=np.array([int(row["prompt_len"]) for row in rows]),
            output_tokens=np.array([int(row["output_len"]) for row in rows]),
            first_token_s=arrival_s + np.array([float(row["ttft_s"]) for row in rows]),
            end_s=arrival_s + np.array([float(row["latency_s"]) for row in rows]),
        )
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a published result: {error}") from error


def run_figures(run: ServedRun, horizon_s: float) -> VtcFigures:
    clients = sorted(set(run.client.tolist()))
    ticks = np.linspace(0.0, horizon_s, _TICKS + 1)
    accumulated = _served(run, clients, np.zeros_like(ticks), ticks)
    windows = ticks[:-1]
    service = _served(run, clients, windows - _WINDOW_S / 2, windows + _WINDOW_S / 2) / _WINDOW_S
    asked = _asked(run, clients, windows) / _WINDOW_S
    short = np.minimum(service.max(axis=0) - service, np.abs(asked - service))
    within = run.arrival_s <= horizon_s
    return VtcFigures(
        accumulated_gap=float((accumulated.max(axis=0) - accumulated.min(axis=0)).max()),
        windowed_gap=float(short.sum(axis=0).mean()),
        weighted_throughput=float(accumulated[:, -1].sum() / horizon_s),
        mean_ttft_s={
            client: float((run.first_token_s - run.arrival_s)[within & (run.client == client)].mean())
            for client in clients
            if (within & (run.client == client)).any()
        },
    )


def _served(
    run: ServedRun, clients: Sequence[str], start_s: NDArray[np.float64], end_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Clients × intervals: cost units served within each."""
    served = np.zeros((len(clients), len(start_s)))
    length = np.maximum(run.end_s - run.first_token_s, 1e-9)
    for place, client in enumerate(clients):
        own = run.client == client
        first, end, rate = run.first_token_s[own], run.end_s[own], (run.cost / length)[own]
        for number, (left, right) in enumerate(zip(start_s, end_s, strict=True)):
            overlap = np.clip(np.minimum(right, end) - np.maximum(left, first), 0.0, None)
            served[place, number] = float((rate * overlap).sum())
    return served


def _asked(run: ServedRun, clients: Sequence[str], middle_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Clients × windows: cost units of what arrived within each."""
    asked = np.zeros((len(clients), len(middle_s)))
    for place, client in enumerate(clients):
        own = run.client == client
        for number, middle in enumerate(middle_s):
            inside = np.abs(run.arrival_s[own] - middle) <= _WINDOW_S / 2
            asked[place, number] = float(run.cost[own][inside].sum())
    return asked
