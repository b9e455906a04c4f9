"""Service level objectives: which a request had, which it met, and what part of them lately.

Knows objectives, timelines and windows. Does not know metrics or traces, which ask it. An objective that nobody could
have met does not count: a request that failed by its caller's doing (4xx) has none but the ones before its failure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.priority import PriorityClass
from scheduling.tree import Slo
from workers.intake.request import Arrival, Ending

__all__ = ["Attainment", "SlidingRatio", "SloTracker", "objectives"]

_FIRST_SERVER_ERROR = 500
_CELLS = 60
WINDOWS_S = {"5m": 300.0, "1h": 3_600.0}


def objectives(slo: Slo | None, arrival: Arrival, ending: Ending) -> dict[str, bool]:
    """`ttft`, `tpot`, `gap`, `e2e` and `deadline`, as far as this request has them, and whether they were met."""
    error, timeline = ending.error, ending.timeline
    if error is not None and error.status_code < _FIRST_SERVER_ERROR:
        return {}
    ended_s = timeline.ended_s
    assert ended_s is not None, f"{arrival.id} has no end"
    met: dict[str, bool] = {}
    if arrival.hard_deadline_s is not None:
        met["deadline"] = error is None and ended_s <= arrival.hard_deadline_s
    if slo is None:
        return met
    first_s = timeline.first_token_s
    if slo.ttft_s is not None:
        met["ttft"] = first_s is not None and first_s - arrival.arrived_s <= slo.ttft_s
    if slo.e2e_s is not None:
        met["e2e"] = error is None and ended_s - arrival.arrived_s <= slo.e2e_s
    if (token_s := timeline.token_s) is not None:
        if slo.tpot_s is not None:
            met["tpot"] = token_s <= slo.tpot_s
        if slo.gap_s is not None:
            met["gap"] = timeline.longest_gap_s <= slo.gap_s
    return met


class SlidingRatio:
    """Part of what came in the last `window_s` seconds, to a sixtieth of it. One writer; read from any thread."""

    def __init__(self, window_s: float) -> None:
        self._cell_s = window_s / _CELLS
        self._cells: dict[int, tuple[int, int]] = {}
        """By number of the cell since the clock's nought: met, and all."""

    def add(self, now: float, met: bool) -> None:
        number = int(now / self._cell_s)
        good, total = self._cells.get(number, (0, 0))
        self._cells[number] = good + met, total + 1
        if len(self._cells) > 2 * _CELLS:
            self._cells = {cell: counts for cell, counts in self._cells.items() if cell > number - _CELLS}

    def ratio(self, now: float) -> float | None:
        """None: nothing came."""
        first = int(now / self._cell_s) - _CELLS
        counts = [counts for cell, counts in self._cells.copy().items() if cell > first]
        total = sum(total for _, total in counts)
        return sum(good for good, _ in counts) / total if total else None


@dataclass(frozen=True, slots=True)
class Attainment:
    priority: PriorityClass
    slo: str
    window: str
    ratio: float


class SloTracker:
    """What part of the ended requests met each objective, by origin class and window."""

    def __init__(self, slos: Mapping[PriorityClass, Slo]) -> None:
        self._slos = slos
        self._ratios: dict[tuple[PriorityClass, str, str], SlidingRatio] = {}

    def record(self, arrival: Arrival, ending: Ending, now: float) -> dict[str, bool]:
        """An ended request; its objectives."""
        met = objectives(self._slos.get(arrival.origin_class), arrival, ending)
        for name, was_met in met.items():
            for window, window_s in WINDOWS_S.items():
                key = arrival.origin_class, name, window
                if key not in self._ratios:
                    self._ratios[key] = SlidingRatio(window_s)
                self._ratios[key].add(now, was_met)
        return met

    def attainment(self, now: float) -> list[Attainment]:
        """From any thread."""
        return [
            Attainment(*key, ratio)
            for key, sliding in self._ratios.copy().items()
            if (ratio := sliding.ratio(now)) is not None
        ]
