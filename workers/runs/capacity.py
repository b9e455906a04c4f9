"""What a machine does, measured: the cost a second of a run with the whole stream there at the start.

Knows run records. Does not know how a run came about, simulated or live.

Counted for as long as anything waits: the last requests, alone in their batch, say nothing about the machine. Load 1.0
stretches arrivals to the time that the whole stream's cost takes at that rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.cost import CostModel
from workers.runs.run_record import RunRecord
from workers.runs.trace_mix import ArrivingRequest

__all__ = ["Capacity", "capacity_of"]


@dataclass(frozen=True, slots=True)
class Capacity:
    units_s: float
    """Cost units a second."""
    requests_s: float
    stream_s: float
    """What the whole stream's cost takes at that rate."""

    def factor(self, requests: Sequence[ArrivingRequest], load: float) -> float:
        """By which arrivals must be stretched for that load. 0 where all arrive at once: there is no load then."""
        last_s = requests[-1].arrival_s
        return self.stream_s / (load * last_s) if last_s else 0.0


def capacity_of(run: RunRecord, cost: CostModel) -> Capacity:
    """`run`: all requests arrived at its start, and each was served."""
    requests = [record.request for record in run.requests]
    units = sum(cost.prompt(r.prompt_tokens) + cost.output(r.output_tokens) for r in requests)
    saturated = np.flatnonzero(run.ticks.queued.sum(axis=1))
    if len(saturated):
        last = int(saturated[-1])
        units_s = float(run.ticks.service[last].sum()) / ((last + 1) * run.ticks.interval_s)
    else:
        # All of it fits into one batch, or a second: there is nothing but the whole run.
        units_s = units / run.end_s
    return Capacity(units_s, len(requests) * units_s / units, units / units_s)
