"""What the machine does, in cost units a second: it gives the shares of a class tree their size.

Knows cost and busy seconds of steps. Does not know the tree. Only saturated steps are samples: a half-empty step says
what was asked for, not what was possible. Time between steps is not counted, so an idle machine is no slow one.
"""

from dataclasses import dataclass

__all__ = ["CapacityMeter", "CapacityStatistics"]

_WINDOW_S = 30.0
"""Weight of the past, in busy seconds."""
_TOLD_CHANGE = 0.02
"""A smaller change is not worth new rates."""


@dataclass(frozen=True, slots=True)
class CapacityStatistics:
    units_s: float
    busy_s: float
    """Busy seconds seen."""


class CapacityMeter:
    """A decaying mean of cost ÷ time. `initial_units_s` counts as one window of experience."""

    def __init__(self, initial_units_s: float) -> None:
        if not initial_units_s > 0:
            raise ValueError(f"capacity is {initial_units_s} units a second: it must be above 0")
        self._seconds = _WINDOW_S
        self._units = initial_units_s * _WINDOW_S
        self._told = initial_units_s
        self._busy_s = 0.0

    def observe(self, units: int, seconds: float) -> float | None:
        """A saturated step. Returns the capacity if it has changed enough to be worth telling the discipline."""
        assert seconds > 0, f"{seconds=}"
        keep = max(0.0, 1.0 - seconds / _WINDOW_S)
        self._units = keep * self._units + units
        self._seconds = keep * self._seconds + seconds
        self._busy_s += seconds
        now = self._units / self._seconds
        if abs(now - self._told) <= _TOLD_CHANGE * self._told or not now > 0:
            return None
        self._told = now
        return now

    def statistics(self) -> CapacityStatistics:
        return CapacityStatistics(self._units / self._seconds, self._busy_s)
