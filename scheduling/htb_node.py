"""The nodes of a running class tree: buckets, modes, feeds and turns of groups, priority classes and tenants.

Knows what a node is and what mode its buckets give it. Does not know who links it (`scheduling.htb_links`), charges it
or asks it (`scheduling.htb`).

Names follow the kernel's `sch_htb.c`: a class *can send* while it is under its rate, *may borrow* from its parent above
it, and *can't send* when a hard limit says so. The root is level 7, its children 6, …; tenants are level 0.
"""

from collections import OrderedDict
from enum import IntEnum
from math import inf
from typing import Any

from scheduling.discipline import Discipline
from scheduling.event_queue import EventQueue
from scheduling.priority import PriorityClass
from scheduling.rotation import Rotation, Turn
from scheduling.share_clock import ShareClock
from scheduling.token_bucket import TokenBucket
from scheduling.tree import ClassConfig

__all__ = ["CANT_SEND", "CAN_SEND", "MAY_BORROW", "ROOT_LEVEL", "ClassNode", "GroupNode", "Mode", "NodeTurn", "Tenant"]

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


class NodeTurn(Turn):
    """A node's turn in one rotation: one deficit a level."""

    __slots__ = ("owner",)

    def __init__(self, owner: Any, quantum: int) -> None:
        super().__init__(quantum)
        self.owner = owner


class Tenant:
    """A leaf of the tree: one tenant of one class. Its buckets run on its class's `ShareClock`."""

    level = 0
    __slots__ = (
        "allowance",
        "borrow_turn",
        "bucket",
        "event_at",
        "in_flight",
        "leaf",
        "mode",
        "number",
        "own_turn",
        "parent",
        "queued",
        "weight",
    )

    def __init__(self, parent: "ClassNode", number: int, weight: float, quantum: int, leaf: Discipline[Any]) -> None:
        self.parent = parent
        self.number = number
        """In the index; held for as long as the node lives."""
        self.weight = weight
        self.leaf = leaf
        self.own_turn = NodeTurn(self, quantum)
        """Among tenants that can send."""
        self.borrow_turn = NodeTurn(self, quantum)
        """Among tenants that borrow."""
        self.bucket: TokenBucket
        self.allowance: TokenBucket | None = None
        """What it may still borrow, where `borrow_limit` says so."""
        self.mode = CAN_SEND
        self.queued = 0
        self.in_flight = 0
        self.event_at: float | None = None
        """Its entry in the class's event queue, in virtual time."""

    def mode_at(self, virtual: float) -> int:
        if self.bucket.zero <= virtual:
            return CAN_SEND
        if self.allowance is None or self.allowance.zero <= virtual:
            return MAY_BORROW
        return CANT_SEND

    def better_at(self) -> float:
        """In virtual time: when its mode gets better if nothing is charged."""
        if self.mode == CANT_SEND and self.allowance is not None:
            return min(self.bucket.zero, self.allowance.zero)
        return self.bucket.zero


class GroupNode:
    """The root, a group of classes, and what a priority class has in common with them. Its buckets run on seconds."""

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
        "queued",
        "rate",
        "row_turns",
        "unassigned",
        "weight",
    )

    def __init__(self, name: str, parent: "GroupNode | None", level: int, weight: float, mask: int) -> None:
        self.name = name
        self.parent = parent
        self.level = level
        self.weight = weight
        self.mask = mask
        """The priority classes below it, as bits."""
        self.rate = 0.0
        """Resolved, cost units a second."""
        self.unassigned = 0.0
        """The part of its rate that is no child's."""
        self.lendable = 1.0
        self.children: list[GroupNode] = []
        self.bucket: TokenBucket | None = None
        """Its rate; none for the root, which is the machine and never blocks."""
        self.allowance: TokenBucket | None = None
        """What it may still borrow, where `borrow_limit` says so."""
        self.ceil: TokenBucket | None = None
        """Hard limit on all that runs below it."""
        self.at_ceil = False
        self.lending: TokenBucket | None = None
        """What its children may still borrow from it, where one of them doesn't lend all it leaves idle."""
        self.mode = CAN_SEND
        self.barred = 0
        """How many of it and its ancestors are at their ceil: none below may send."""
        self.closed = False
        """`lending` is used up: nobody borrows from it or through it."""
        self.queued = 0
        """Rows below it."""
        self.feeds: dict[int, Rotation[NodeTurn]] = {}
        """By prio: the children that have something to send and may borrow."""
        self.borrow_turns: dict[int, NodeTurn] = {}
        """By prio: its turn in its parent's feed."""
        self.row_turns: dict[int, NodeTurn] = {}
        """By prio: its turn among the nodes of its level that can send."""
        self.event_at: float | None = None
        """Its entry in its level's event queue, in seconds."""

    def give_turns(self, prio: int, quantum: int) -> None:
        """Take part at this prio."""
        if prio not in self.feeds:
            self.feeds[prio] = Rotation()
            self.borrow_turns[prio] = NodeTurn(self, quantum)
            self.row_turns[prio] = NodeTurn(self, quantum)

    def mode_at(self, now: float) -> int:
        if self.bucket is None or self.bucket.zero <= now:
            return CAN_SEND
        if self.allowance is None or self.allowance.zero <= now:
            return MAY_BORROW
        return CANT_SEND

    def buckets(self) -> list[TokenBucket]:
        return [bucket for bucket in (self.bucket, self.allowance, self.ceil, self.lending) if bucket is not None]

    def better_at(self, now: float) -> float:
        """When the first bucket that is in debt now will be solvent if nothing is charged; `inf` if none is."""
        return min((bucket.zero for bucket in self.buckets() if bucket.zero > now), default=inf)


class ClassNode(GroupNode):
    """A priority class: the parent of its tenants."""

    __slots__ = (
        "bit",
        "borrowed_cost",
        "clock",
        "config",
        "due",
        "events",
        "feed",
        "prio",
        "priority",
        "ready",
        "ready_turn",
        "resting",
        "strict",
        "tenants",
    )

    def __init__(
        self, config: ClassConfig, priority: PriorityClass, parent: GroupNode, level: int, quantum: int, now: float
    ) -> None:
        super().__init__(config.name, parent, level, config.weight, 1 << priority)
        self.config = config
        self.priority = priority
        self.bit = 1 << priority
        self.prio = config.prio
        self.give_turns(self.prio, quantum)
        self.feed = self.feeds[self.prio]
        """Tenants that have something queued and may borrow."""
        self.ready: Rotation[NodeTurn] = Rotation()
        """Tenants that have something queued and can send by their own right."""
        self.ready_turn = NodeTurn(self, quantum)
        """The class's turn among classes that have such tenants (level 0)."""
        self.clock = ShareClock(0.0, now)
        self.events: EventQueue[Tenant] = EventQueue()
        """When tenants become able to send, in virtual time."""
        self.due = inf
        """The first of them in seconds."""
        self.strict: TokenBucket | None = None
        """Its `strict_limit`."""
        self.tenants: dict[int, Tenant] = {}
        self.resting: OrderedDict[Tenant, None] = OrderedDict()
        """Tenants with nothing queued or in flight, longest first: retired once their buckets are full."""
        self.borrowed_cost = 0
