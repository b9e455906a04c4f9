"""The nodes of a running class tree: buckets, modes, feeds and turns of the root, of groups and of priority classes.

Knows what a node is and what mode its buckets give it. Does not know who links it (`scheduling.htb_links`), charges it
(`scheduling.htb_buckets`) or asks it (`scheduling.htb`), nor what is in a class's leaf.

Names follow the kernel's `sch_htb.c`: a node *can send* while it is under its rate, *may borrow* from its parent above
it, and *can't send* when a hard limit says so. The root is level 7, groups are levels 6 … 1, priority classes are the
leaves, level 0.
"""

from enum import IntEnum
from math import inf
from typing import Any

from scheduling.discipline import Discipline
from scheduling.priority import PriorityClass
from scheduling.rotation import Rotation, Turn
from scheduling.token_bucket import TokenBucket

__all__ = ["CANT_SEND", "CAN_SEND", "MAY_BORROW", "ROOT_LEVEL", "ClassNode", "GroupNode", "Mode"]

ROOT_LEVEL = 7


class Mode(IntEnum):
    """What a node's buckets allow."""

    CANT_SEND = 0
    """Above its rate, and a hard limit forbids to borrow."""
    MAY_BORROW = 1
    """Above its rate: it waits in its parent's feed for an ancestor that can send."""
    CAN_SEND = 2
    """Under its rate: it sends by its own right."""


# Plain integers: an enum's members are looked up and compared at ten times the price, and this is the inner loop.
CANT_SEND, MAY_BORROW, CAN_SEND = int(Mode.CANT_SEND), int(Mode.MAY_BORROW), int(Mode.CAN_SEND)


class GroupNode:
    """The root, a group of classes, and what a priority class has in common with them."""

    __slots__ = (
        "allowance",
        "at_ceil",
        "barred",
        "borrow_turns",
        "bucket",
        "ceil",
        "children",
        "closed",
        "event_at",
        "feeds",
        "lendable",
        "lending",
        "level",
        "mask",
        "mode",
        "name",
        "parent",
        "path",
        "queued",
        "rate",
        "row_turns",
        "unassigned",
    )

    def __init__(self) -> None:
        self.rate = 0.0
        """Resolved, cost units a second."""
        self.unassigned = 0.0
        """The part of its rate that is no child's."""
        self.lendable = 1.0
        """The part of its rate that it lends when it is idle."""
        self.bucket = TokenBucket(0.0, 0.0, 0.0, 0.0)
        """Its rate. The root's is never charged: it is the machine, and never blocks."""
        self.allowance: TokenBucket | None = None
        """What it may still borrow, where `borrow_limit` says so."""
        self.ceil: TokenBucket | None = None
        """Hard limit on all that runs below it."""
        self.lending: TokenBucket | None = None
        """What its children may still borrow from it, where one of them doesn't lend all it leaves idle."""
        self.queued = 0
        """Of a class: its rows. Of a group, where a parent limits its lending: whether it has any."""

    def place(self, name: str, parent: "GroupNode | None", level: int, mask: int) -> None:
        """Stand here in a new tree, linked to nobody. Buckets stay as they are."""
        self.name = name
        self.parent = parent
        self.level = level
        self.mask = mask
        """The priority classes below it, as bits."""
        self.path: tuple[GroupNode, ...] = () if parent is None else (self, *parent.path)
        """It and its ancestors, but the root: those that a cost is charged to."""
        self.children: list[GroupNode] = []
        self.mode = CAN_SEND
        self.at_ceil = False
        """Its `ceil` is used up."""
        self.barred = 0
        """How many of it and its ancestors are at their ceil: none below may send."""
        self.closed = False
        """`lending` is used up: nobody borrows from it or through it."""
        self.feeds: dict[int, Rotation[GroupNode]] = {}
        """By prio: the children that have something to send and may borrow."""
        self.borrow_turns: dict[int, Turn[GroupNode]] = {}
        """By prio: its turn in its parent's feed."""
        self.row_turns: dict[int, Turn[GroupNode]] = {}
        """By prio: its turn among the nodes of its level that can send."""
        self.event_at: float | None = None
        """Its entry in its level's event queue, in seconds."""

    def give_turns(self, prio: int, quantum: int) -> None:
        """Take part at this prio."""
        if prio not in self.feeds:
            self.feeds[prio] = Rotation()
            self.borrow_turns[prio] = Turn(self, quantum)
            self.row_turns[prio] = Turn(self, quantum)

    def has_backlog(self, prio: int) -> bool:
        """Somebody below has something to send."""
        return self.feeds[prio].active > 0

    def mode_at(self, now: float) -> int:
        if self.bucket.zero <= now:
            return CAN_SEND
        if self.allowance is None or self.allowance.zero <= now:
            return MAY_BORROW
        return CANT_SEND

    def buckets(self) -> list[TokenBucket]:
        limits = (self.allowance, self.ceil, self.lending)
        return [self.bucket, *(bucket for bucket in limits if bucket is not None)]

    def better_at(self, now: float) -> float:
        """When the first bucket that is in debt now will be solvent if nothing is charged; `inf` if none is."""
        return min((bucket.zero for bucket in self.buckets() if bucket.zero > now), default=inf)


class ClassNode(GroupNode):
    """A priority class: a leaf of the tree. What is queued in it is its discipline's matter."""

    __slots__ = (
        "borrowed",
        "heir",
        "leaf",
        "prio",
        "priority",
        "row_turn",
        "strict",
    )

    def __init__(self, priority: PriorityClass, leaf: Discipline[Any]) -> None:
        super().__init__()
        self.priority = priority
        self.leaf = leaf
        self.strict: TokenBucket | None = None
        """Its `strict_limit`."""
        self.borrowed = [0] * (ROOT_LEVEL + 1)
        """What ran on others' rates, corrections included, by the level of the lender."""
        self.heir: GroupNode | None = None
        """Of a class that a reload took away: who is charged for what it still has in flight."""

    def give_turns(self, prio: int, quantum: int) -> None:
        super().give_turns(prio, quantum)
        self.prio = prio
        self.row_turn = self.row_turns[prio]

    def has_backlog(self, prio: int) -> bool:
        return self.queued > 0
