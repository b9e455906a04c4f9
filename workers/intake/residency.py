"""How much of the worker each class's waiting requests may fill: the weighted pull.

Knows rows by class, bytes that can't be let go of, their limits and the hysteresis. Does not know consumers: it says
whether a class should be paused, and by which bound. Owned by the event loop.

Rows are divided equally between the classes and bytes by weight with a floor for each, so a flood of one class never
takes the place (and with it the ingress) of another. (Rows are what a class sees of its own backlog, and the less
urgent ones have the longer backlogs: by weight they would see least.) A class pauses when it reaches its limit and
resumes at three quarters of it: a paused partition throws its fetched records away, so pausing must be rare.

The payloads of waiting requests pause nobody: what there is no room for is read again later
(`workers.intake.payloads`). Held are only the bytes of records that become dead letters, until those are delivered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from scheduling.priority import PriorityClass

__all__ = ["Bound", "ClassResidency", "Residency", "class_shares"]

_FLOOR = 0.05
"""Of the whole, for each class, whatever its weight."""
_RESUME_AT = 0.75


def class_shares(weights: Mapping[PriorityClass, float], whole: int) -> dict[PriorityClass, int]:
    """What each class may have of the whole, in bytes; at least 1."""
    total, spare = sum(weights.values()), 1.0 - _FLOOR * len(weights)
    return {priority: max(1, int(whole * (_FLOOR + spare * weight / total))) for priority, weight in weights.items()}


class Bound(StrEnum):
    """Why a class is paused."""

    ROWS = "rows"
    HELD_BYTES = "held bytes"


@dataclass(frozen=True, slots=True)
class ClassResidency:
    rows: int
    max_rows: int
    held_bytes: int
    max_held_bytes: int
    paused_by: Bound | None
    """The bound that was reached; None: it is not paused."""
    pauses: int
    """Times it was paused since the start."""

    @property
    def paused(self) -> bool:
        return self.paused_by is not None


class _Share:
    __slots__ = ("bytes", "max_bytes", "max_rows", "partitions", "paused_by", "pauses", "rows")

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self.max_rows, self.max_bytes = max_rows, max_bytes
        self.rows = self.bytes = self.pauses = 0
        self.paused_by: Bound | None = None
        self.partitions: dict[int, _Assignment] = {}

    def pause_if_full(self) -> None:
        if self.paused_by is None and (self.rows >= self.max_rows or self.bytes >= self.max_bytes):
            self.paused_by = Bound.ROWS if self.rows >= self.max_rows else Bound.HELD_BYTES
            self.pauses += 1

    def resume_if_low(self) -> None:
        if self.rows <= self.max_rows * _RESUME_AT and self.bytes <= self.max_bytes * _RESUME_AT:
            self.paused_by = None


@dataclass(slots=True)
class _Assignment:
    """What one assignment of one partition has resident."""

    epoch: int
    rows: int = 0
    bytes: int = 0


class Residency:
    def __init__(self, weights: Mapping[PriorityClass, float], max_rows: int, max_held_bytes: int) -> None:
        """`weights`: of the classes this worker serves; more urgent classes weigh more."""
        rows, held = max(1, max_rows // len(weights)), class_shares(weights, max_held_bytes)
        self._shares = {priority: _Share(rows, held[priority]) for priority in weights}

    def enter(self, priority: PriorityClass, partition: int, epoch: int, held_bytes: int = 0) -> None:
        """A record was taken in. Never refuses: it is in memory already; `paused` keeps the next ones out.

        `held_bytes`: of it, until it leaves."""
        share = self._shares[priority]
        assignment = share.partitions.get(partition)
        if assignment is None:
            assignment = share.partitions[partition] = _Assignment(epoch)
        assert assignment.epoch == epoch, f"{priority.label}-{partition} was not revoked before epoch {epoch}"
        assignment.rows += 1
        assignment.bytes += held_bytes
        share.rows += 1
        share.bytes += held_bytes
        share.pause_if_full()

    def leave(self, priority: PriorityClass, partition: int, epoch: int, held_bytes: int = 0) -> None:
        """A record was answered. One of an assignment that was revoked meanwhile has left already."""
        share = self._shares[priority]
        assignment = share.partitions.get(partition)
        if assignment is None or assignment.epoch != epoch:
            return
        assignment.rows -= 1
        assignment.bytes -= held_bytes
        assert assignment.rows >= 0, f"{priority.label}-{partition}: more records left than entered"
        assert assignment.bytes >= 0, f"{priority.label}-{partition}: more bytes left than entered"
        share.rows -= 1
        share.bytes -= held_bytes
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
        return self._shares[priority].paused_by is not None

    def statistics(self) -> dict[PriorityClass, ClassResidency]:
        return {
            priority: ClassResidency(
                share.rows, share.max_rows, share.bytes, share.max_bytes, share.paused_by, share.pauses
            )
            for priority, share in self._shares.items()
        }
