"""The queueing discipline's protocol: what every policy (`htb`, `fifo`, `strict`, …) promises.

Knows rows of `scheduling.index.Index` and costs. Does not know tokens, blocks or steps: the batch scheduler tells
it which classes have room, charges it for what was computed, and settles each row once.

Time is always the argument `now` in seconds of one monotonic clock. Costs are integers in cost units
(`scheduling.cost`).
"""

from dataclasses import dataclass
from typing import Protocol

from scheduling.ledger import Cause
from scheduling.priority import PriorityClass

__all__ = ["EVERYTHING", "ClassStatistics", "Qdisc", "QdiscStatistics", "Room"]


@dataclass(frozen=True, slots=True)
class Room:
    """What the engine has room for now.

    `blocked` has bit *c* set when service class *c* can't take a request in this step (its reserved head waits,
    its partition is full). A policy that may pass over a class does; a policy that may not (`fifo`) waits.
    """

    blocked: int = 0

    def without(self, priority: PriorityClass) -> "Room":
        return Room(self.blocked | 1 << priority)

    def admits(self, priority: int) -> bool:
        return not self.blocked >> priority & 1


EVERYTHING = Room()


@dataclass(frozen=True, slots=True)
class ClassStatistics:
    """One service class in a discipline: queued rows and cost, and totals since the start."""

    queued: int
    queued_cost: int
    in_flight: int
    dispatched: int
    dispatched_cost: int
    """Predicted cost at dispatch, corrected at settlement: after every settlement, exactly what was charged."""
    borrowed_cost: int
    """The part of it that ran on another class's or the parent's rate."""


@dataclass(frozen=True, slots=True)
class QdiscStatistics:
    by_class: dict[PriorityClass, ClassStatistics]
    tenants: int
    flows: int


class Qdisc(Protocol):
    """A row's way through a discipline: `enqueue` → `dequeue` → `charge`* → `settle`, or `cancel` while queued.

    `dequeue` charges the part of the row's cost that is certain (its prompt) and holds the predicted rest as
    outstanding. `charge` moves cost from outstanding to charged as it is incurred, and keeps charging past the
    prediction. `settle` releases what is still outstanding, exactly once a row.
    """

    def enqueue(self, row: int, now: float) -> None:
        """Queue a row of the index by its service class, tenant and flow. Never refuses: bounds are upstream."""
        ...

    def peek(self, now: float, room: Room = EVERYTHING) -> int | None:
        """The row that `dequeue(now, room)` would return; charges nothing."""
        ...

    def peek_strict(self, now: float, room: Room = EVERYTHING) -> int | None:
        """The row that `dequeue(now, room)` would return because its class is strict and under its limit.

        None: what goes next goes in its turn, whatever its class.
        """
        ...

    def dequeue(self, now: float, room: Room = EVERYTHING) -> int | None:
        """Take the next row and charge its prediction.

        None: nothing queued, no room for what is, or hard limits block all of it (then `next_event` says when
        to ask again).
        """
        ...

    def upcoming(self, limit: int, skip: frozenset[PriorityClass] = frozenset()) -> list[int]:
        """Up to `limit` *waiting* (not staged) rows that are likely to be dequeued soonest, likeliest first.

        For staging ahead. A guess that charges nothing: the discipline's true order is decided by `dequeue`.
        Classes in `skip` are left out (their share of the staging room is used up).
        """
        ...

    def charge(self, row: int, cost: int, now: float, cause: Cause = Cause.OUTPUT) -> None:
        """Charge a dequeued row for cost just incurred.

        Output draws on what was predicted; a preemption's extra work (`Cause.PREEMPTION`) comes on top, and is
        charged to the row that caused the preemption.
        """
        ...

    def settle(self, row: int, now: float, refund: int = 0) -> None:
        """The row has ended: release its outstanding cost. Exactly once for each dequeued row.

        `refund` is the cost of the part of its prompt that was charged at dispatch and never computed.
        """
        ...

    def requeue(self, row: int, now: float) -> None:
        """Give a dequeued row of which nothing was computed its place in its flow back, and refund its prompt."""
        ...

    def cancel(self, row: int, now: float) -> None:
        """Remove a queued row. Must be queued (an assertion)."""
        ...

    def next_event(self, now: float) -> float | None:
        """When a row that is blocked now may become eligible; None if time alone changes nothing."""
        ...

    def over_rate(self, priority: PriorityClass, now: float) -> bool:
        """Whether the class had more than the rate that is guaranteed to it: what it runs now, it borrows.

        False for all where classes have no rates."""
        ...

    def set_capacity(self, units_s: float, now: float) -> None:
        """The machine does so many cost units a second: shares of it mean that from now on."""
        ...

    def statistics(self) -> QdiscStatistics: ...

    def check_integrity(self) -> None:
        """Assert the invariants (counts, sums, links). For tests and idle moments; linear in what is queued."""
        ...

    def __len__(self) -> int:
        """Queued rows (dequeued ones are not counted)."""
        ...
