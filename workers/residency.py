"""How much of the worker each class's waiting requests may fill: the weighted pull.

Knows rows and bytes resident by class, their limits and the hysteresis. Does not know consumers: it says whether a
class should be paused. Owned by the event loop.

Rows and bytes are divided between the classes by weight with a floor for each, so a flood of one class never takes
the place (and with it the ingress) of another. A class pauses when it reaches its limit and resumes at three quarters
of it: a paused partition throws its fetched records away, so pausing must be rare.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.priority import PriorityClass

__all__ = ["ClassResidency", "Residency"]

_FLOOR = 0.05
"""Of the whole, for each class, whatever its weight."""
_RESUME_AT = 0.75


@dataclass(frozen=True, slots=True)
class ClassResidency:
    rows: int
    bytes: int
    max_rows: int
    max_bytes: int
    paused: bool
    pauses: int
    """Times it was paused since the start."""


class _Share:
    __slots__ = ("bytes", "max_bytes", "max_rows", "paused", "pauses", "rows")

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self.max_rows, self.max_bytes = max_rows, max_bytes
        self.rows = self.bytes = self.pauses = 0
        self.paused = False


class Residency:
    def __init__(self, weights: Mapping[PriorityClass, float], max_rows: int, max_bytes: int) -> None:
        """`weights`: of the classes this worker serves; more urgent classes weigh more."""
        total = sum(weights.values())
        spare = 1.0 - _FLOOR * len(weights)
        self._shares = {
            priority: _Share(
                max(1, int(max_rows * (_FLOOR + spare * weight / total))),
                max(1, int(max_bytes * (_FLOOR + spare * weight / total))),
            )
            for priority, weight in weights.items()
        }

    def enter(self, priority: PriorityClass, size: int) -> None:
        """A record was taken in. Never refuses: it is in memory already; `paused` keeps the next ones out."""
        share = self._shares[priority]
        share.rows += 1
        share.bytes += size
        if not share.paused and (share.rows >= share.max_rows or share.bytes >= share.max_bytes):
            share.paused = True
            share.pauses += 1

    def leave(self, priority: PriorityClass, size: int) -> None:
        share = self._shares[priority]
        share.rows -= 1
        share.bytes -= size
        assert share.rows >= 0, f"{priority!r} left more often than it entered"
        assert share.bytes >= 0, f"{priority!r} left with more bytes than it entered with"
        if share.rows <= share.max_rows * _RESUME_AT and share.bytes <= share.max_bytes * _RESUME_AT:
            share.paused = False

    def paused(self, priority: PriorityClass) -> bool:
        return self._shares[priority].paused

    def statistics(self) -> dict[PriorityClass, ClassResidency]:
        return {
            priority: ClassResidency(
                share.rows, share.bytes, share.max_rows, share.max_bytes, share.paused, share.pauses
            )
            for priority, share in self._shares.items()
        }
