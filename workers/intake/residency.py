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
    __slots__ = ("bytes", "max_bytes", "max_rows", "partitions", "paused", "pauses", "rows")

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self.max_rows, self.max_bytes = max_rows, max_bytes
        self.rows = self.bytes = self.pauses = 0
        self.paused = False
        self.partitions: dict[int, _Assignment] = {}

    def resume_if_low(self) -> None:
        if self.rows <= self.max_rows * _RESUME_AT and self.bytes <= self.max_bytes * _RESUME_AT:
            self.paused = False


@dataclass(slots=True)
class _Assignment:
    """What one assignment of one partition has resident."""

    epoch: int
    rows: int = 0
    bytes: int = 0


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

    def enter(self, priority: PriorityClass, partition: int, epoch: int, size: int) -> None:
        """A record was taken in. Never refuses: it is in memory already; `paused` keeps the next ones out."""
        share = self._shares[priority]
        assignment = share.partitions.get(partition)
        if assignment is None:
            assignment = share.partitions[partition] = _Assignment(epoch)
        assert assignment.epoch == epoch, f"{priority.label}-{partition} was not revoked before epoch {epoch}"
        assignment.rows += 1
        assignment.bytes += size
        share.rows += 1
        share.bytes += size
        if not share.paused and (share.rows >= share.max_rows or share.bytes >= share.max_bytes):
            share.paused = True
            share.pauses += 1

    def leave(self, priority: PriorityClass, partition: int, epoch: int, size: int) -> None:
        """A record was answered. One of an assignment that was revoked meanwhile has left already."""
        share = self._shares[priority]
        assignment = share.partitions.get(partition)
        if assignment is None or assignment.epoch != epoch:
            return
        assignment.rows -= 1
        assignment.bytes -= size
        assert assignment.rows >= 0, f"{priority.label}-{partition}: more records left than entered"
        assert assignment.bytes >= 0, f"{priority.label}-{partition}: more bytes left than entered"
        share.rows -= 1
        share.bytes -= size
        share.resume_if_low()

    def revoke(self, priority: PriorityClass, partition: int) -> None:
        """The partition is another worker's now: all of its records leave."""
        share = self._shares[priority]
        assignment = share.partitions.pop(partition, None)
        if assignment is not None:
            share.rows -= assignment.rows
            share.bytes -= assignment.bytes
            share.resume_if_low()

    def paused(self, priority: PriorityClass) -> bool:
        return self._shares[priority].paused

    def statistics(self) -> dict[PriorityClass, ClassResidency]:
        return {
            priority: ClassResidency(
                share.rows, share.bytes, share.max_rows, share.max_bytes, share.paused, share.pauses
            )
            for priority, share in self._shares.items()
        }
