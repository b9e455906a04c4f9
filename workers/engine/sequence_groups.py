"""Requests of several sequences (`n` choices, several prompts): which rows of the engine belong together.

Each sequence is a row like any other: it waits, is charged, runs and is preempted by itself, and finds the blocks of a
prompt that another one computed in the prefix cache. So the scheduler knows nothing of groups. They are put into the
queue one behind the other, so that one request's choices run next to each other; and they end together: one reply when
the last has ended, or one error when the first fails.

Knows rows and which request's they are. Does not know states, tokens or replies. Owned by the engine thread.

Bounded: `MORE_ROWS` rows beyond one a request. A group that finds no room joins row by row as others end, behind what
came meanwhile. One request always has a row until all of its sequences have ended, so that whatever is ordered of it
meanwhile finds it.
"""

from collections import deque
from dataclasses import dataclass, field

from scheduling.priority import PriorityClass
from topics.assignment import PartitionEpoch
from workers.intake.request import Arrival

__all__ = ["MORE_ROWS", "SequenceGroup", "SequenceGroups"]

MORE_ROWS = 16_384
"""Rows that are not a request's first."""


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """One request's rows."""

    arrival: Arrival
    service: PriorityClass
    prompt_tokens: int
    """Of one sequence, as estimated."""
    sequences: int
    """In all."""
    max_tokens: int | None
    """Of each one's output, as far as it is known. 0: they have none."""
    rows: dict[int, int] = field(default_factory=dict)
    """Row → sequence, of those that have not ended."""
    joined: int = 0
    """Sequences that were given a row so far."""
    lost: bool = False
    """It failed or its partition is gone: no more of its sequences are started."""

    @property
    def short(self) -> bool:
        """Some of its sequences have no row yet."""
        return self.joined < self.sequences and not self.lost


class SequenceGroups:
    def __init__(self) -> None:
        self._of: dict[int, SequenceGroup] = {}
        self._short: deque[SequenceGroup] = deque()
        """Groups that found no room for all their rows."""
        self._bare: deque[SequenceGroup] = deque()
        """Of these, those that have no row at all."""
        self._more_rows = 0

    def join(self, group: SequenceGroup, row: int) -> None:
        """The next sequence of the group has this row."""
        group.rows[row] = group.joined
        self._more_rows += group.joined > 0
        group.joined += 1
        self._of[row] = group

    def leave(self, row: int) -> None:
        """The row has ended. Rows without a group may leave too."""
        group = self._of.pop(row, None)
        if group is not None:
            self._more_rows -= group.rows.pop(row) > 0
            if not group.rows and group.short:
                self._bare.append(group)

    def of(self, row: int) -> SequenceGroup | None:
        """None: its request has no other sequence."""
        return self._of.get(row)

    def sequence(self, row: int) -> int:
        """Which of its request's sequences the row is."""
        group = self._of.get(row)
        return 0 if group is None else group.rows[row]

    def siblings(self, row: int) -> list[int]:
        """The other rows of its request."""
        group = self._of.get(row)
        return [] if group is None else [other for other in group.rows if other != row]

    # --- those that found no room ---------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Another row may join a group."""
        return self._more_rows < MORE_ROWS

    def wait(self, group: SequenceGroup) -> None:
        """It joins when there is room."""
        self._short.append(group)

    def wait_first(self, group: SequenceGroup) -> None:
        """The same, before all others: its rows shall stand together."""
        self._short.appendleft(group)

    def next_short(self) -> SequenceGroup | None:
        """A group that waits for room, where there is some; one without a row needs none."""
        while self._bare:
            group = self._bare.popleft()
            if group.short and not group.rows:
                self._short.remove(group)
                return group
        while self._short and self.has_room:
            group = self._short.popleft()
            if group.short:
                return group
        return None

    def revoke(self, assignment: PartitionEpoch) -> None:
        """The partition is gone: nothing more of its requests is started."""
        for group in self._short:
            if group.arrival.assignment == assignment:
                group.lost = True
