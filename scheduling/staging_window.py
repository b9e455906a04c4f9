"""Which waiting requests are tokenised ahead, and how many at most.

Knows rows that are with the staging thread or came back from it and don't run yet. Does not know tokens or threads:
the engine hands rows over and tells what came of them.

Two kinds of rows are handed out. *Claimed* ones, which the discipline has picked already: at once, whatever the
quotas say (there are at most as many a class as slots are free). And what the discipline guesses to pick next
(`upcoming`), within the total, a quota for each class, and a part that is set aside for P0 and strict classes. A
guess may be wrong: then a row waits tokenised, and holds its place in the quota, while others pass it.
"""

from collections.abc import Iterable, Sequence

from scheduling.index import Index
from scheduling.limits import BatchLimits
from scheduling.priority import PriorityClass
from scheduling.qdisc import Qdisc
from scheduling.state import RequestState

__all__ = ["StagingWindow"]


class StagingWindow:
    def __init__(
        self, index: Index, qdisc: Qdisc, limits: BatchLimits, strict_classes: frozenset[PriorityClass]
    ) -> None:
        self._index = index
        self._qdisc = qdisc
        self._limits = limits
        self._urgent = strict_classes | {PriorityClass.P0}
        self._handed_out: set[int] = set()
        self._output_limits: dict[int, int] = {}
        """Staged rows and the most output tokens of each."""
        self._block_names: dict[int, Sequence[int]] = {}
        """Of the same rows."""
        self._class_of: dict[int, PriorityClass] = {}
        self._held = [0] * len(PriorityClass)
        """Rows handed out or staged, by class."""

    def set_strict(self, classes: frozenset[PriorityClass]) -> None:
        self._urgent = classes | {PriorityClass.P0}

    def to_stage(self, claimed: Iterable[int]) -> list[int]:
        """Rows to hand to the staging thread now, most urgent first; each is handed out once."""
        rows = [row for row in claimed if row not in self._class_of]
        for row in rows:
            self._hand_out(row)
        if len(self._qdisc) == 0:
            return rows
        # A class may fill its quota on the way: ask again without it. Each round closes a class or is the last.
        for _ in PriorityClass:
            # A class of which nobody waits counts as full: a discipline would look for it behind all the others.
            full = frozenset(
                priority
                for priority in PriorityClass
                if self._places(priority) <= 0 or self._index.count(priority, RequestState.WAITING) == 0
            )
            if len(full) == len(PriorityClass):
                break
            free = self._limits.staged_rows - sum(self._held)
            # Rows with the staging thread are still WAITING, so the discipline may name them again.
            upcoming = self._qdisc.upcoming(free + len(self._handed_out), full)
            fresh = [row for row in upcoming if row not in self._class_of]
            taken = [row for row in fresh if self._hand_out_if_room(row)]
            rows += taken
            if len(taken) == len(fresh):
                break
        return rows

    def staged(self, row: int, max_output_tokens: int, block_names: Sequence[int]) -> None:
        """The staging thread is done with the row."""
        assert row in self._handed_out, f"row {row} was not handed out to be staged"
        self._handed_out.remove(row)
        self._output_limits[row] = max_output_tokens
        self._block_names[row] = block_names

    def is_staged(self, row: int) -> bool:
        return row in self._output_limits

    def is_handed_out(self, row: int) -> bool:
        return row in self._handed_out

    def output_limit(self, row: int) -> int:
        return self._output_limits[row]

    def block_names(self, row: int) -> Sequence[int]:
        return self._block_names[row]

    def leave(self, row: int) -> None:
        """The row was admitted or has ended. Rows that were never handed out may leave too."""
        priority = self._class_of.pop(row, None)
        if priority is not None:
            self._held[priority] -= 1
            self._handed_out.discard(row)
            self._output_limits.pop(row, None)
            self._block_names.pop(row, None)

    @property
    def handed_out(self) -> int:
        """Rows with the staging thread."""
        return len(self._handed_out)

    @property
    def staged_rows(self) -> int:
        return len(self._output_limits)

    def held(self, priority: PriorityClass) -> int:
        """Rows of a class that are with the staging thread or came back from it."""
        return self._held[priority]

    def _places(self, priority: PriorityClass) -> int:
        """How many more rows of this class may be handed out."""
        free = self._limits.staged_rows - sum(self._held)
        if priority not in self._urgent:
            urgent = sum(self._held[other] for other in self._urgent)
            free -= max(0, self._limits.set_aside - urgent)
        return min(free, self._limits.staging_quota(priority) - self._held[priority])

    def _hand_out_if_room(self, row: int) -> bool:
        if self._places(self._index.service_of(row)) <= 0:
            return False
        self._hand_out(row)
        return True

    def _hand_out(self, row: int) -> None:
        priority = self._index.service_of(row)
        self._class_of[row] = priority
        self._held[priority] += 1
        self._handed_out.add(row)

    def check_integrity(self) -> None:
        held = [0] * len(PriorityClass)
        for priority in self._class_of.values():
            held[priority] += 1
        assert held == self._held, f"{self._held} rows held by class, counted {held}"
        assert self._handed_out.isdisjoint(self._output_limits), "a row is with the staging thread and staged"
        assert self._class_of.keys() == self._handed_out | self._output_limits.keys(), "rows held and not accounted"
