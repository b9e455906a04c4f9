"""The order inside a queueing discipline, without the books: what a policy's algorithm itself promises.

Knows rows, predicted costs and corrections. Does not know what was really charged to whom: `scheduling.accounting`
keeps that, the same way for every policy, and makes a `Qdisc` of a `Discipline`. A leaf of the class tree is a
`Discipline` too, so any policy may order a tenant's requests.

A `Grant` is what a discipline wants to be reminded of when the cost of a row it let go turns out different: a flow,
a path through the tree. Nobody else looks into it.
"""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from scheduling.priority import PriorityClass
from scheduling.tree import TreeConfig
from scheduling.tree_statistics import TreeStatistics

__all__ = ["Discipline", "Grant"]

Grant = TypeVar("Grant")


class Discipline(Protocol[Grant]):
    """`blocked` and `skip` are sets of service classes as bits, as in `qdisc.Room`."""

    def push(self, row: int, now: float) -> None:
        """Queue a row."""
        ...

    def pick(self, now: float, blocked: int) -> int | None:
        """The row that goes next. Changes nothing that a later decision could depend on."""
        ...

    def pick_strict(self, now: float, blocked: int) -> int | None:
        """The row that goes before everybody, because its class is strict and under its limit; None if there is none.

        If there is one, it is what `pick` gives."""
        ...

    def pop(self, now: float, blocked: int) -> tuple[int, int, Grant] | None:
        """Let the row that goes next go, and count its predicted cost: row, cost and grant."""
        ...

    def take(self, row: int, cost: int, now: float) -> Grant:
        """Let a queued row go out of turn, and count its predicted cost as if it had been its turn."""
        ...

    def correct(self, grant: Grant, cost: int, now: float) -> None:
        """A row in flight costs so much more (or, negative, less) than was counted."""
        ...

    def end(self, grant: Grant, cost: int, now: float) -> None:
        """As `correct`, for the last time: the row has ended."""
        ...

    def restore(self, row: int, grant: Grant, cost: int, now: float) -> None:
        """The row is queued again, in the place it had, and `cost` of what was counted for it was not used."""
        ...

    def remove(self, row: int, now: float) -> None:
        """A queued row leaves without being served."""
        ...

    def order(self, skip: int) -> Iterator[int]:
        """Queued rows in the likely order of their going, lazily. A guess; must not be used across a change."""
        ...

    def rows(self) -> Iterator[int]:
        """All queued rows, in no particular order."""
        ...

    def next_event(self, now: float) -> float | None:
        """When a row that hard limits block now may become eligible; None if time alone changes nothing."""
        ...

    def over_rate(self, priority: PriorityClass, now: float) -> bool:
        """Whether the class had more than the rate that is guaranteed to it: what it runs now, it borrows.

        False for all where classes have no rates."""
        ...

    def borrowed_cost(self, priority: PriorityClass) -> int:
        """Cost that a class ran on others' rates, corrections included."""
        ...

    def reason(self, grant: Grant) -> str:
        """Why this row was let go, in a few words for an operator's trace."""
        ...

    def tree(self, now: float) -> TreeStatistics | None:
        """What its buckets hold and who borrowed; None where there is no class tree."""
        ...

    def set_capacity(self, units_s: float, now: float) -> None:
        """The machine does so many cost units a second; it matters where rates are shares of that."""
        ...

    def reload(self, config: TreeConfig, now: float) -> None:
        """Go on under a new class tree, with all that is queued, in flight and owed; it matters where there is one.

        Raises `TreeError` if the new tree has no place for what is queued.
        """
        ...

    def close(self) -> None:
        """Nothing is queued or in flight, and nothing will come: let go of what is remembered of the past."""
        ...

    def check_integrity(self) -> None: ...

    def __len__(self) -> int:
        """Queued rows."""
        ...
