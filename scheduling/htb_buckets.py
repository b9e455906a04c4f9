"""Charging a running class tree: what a cost does to buckets, and buckets to modes, now and by time alone.

Knows nodes, buckets, lender levels and wake-ups. Does not know rows, turns or leaves (`scheduling.htb`).

The lender is the first node, from the class up, that could send when the request was dispatched. All costs of that
request, early or late, move the same buckets: rates from the lender upwards (a borrower's own rate goes on filling);
below the lender allowances, and the lending of each parent borrowed from; ceilings all the way.
"""

from collections.abc import Iterable
from math import inf

from scheduling.event_queue import EventQueue
from scheduling.htb_links import Links
from scheduling.htb_node import CAN_SEND, CANT_SEND, ClassNode, GroupNode

__all__ = ["Buckets", "hard_event"]


class Buckets:
    def __init__(self, links: Links, levels: Iterable[int], hard: bool) -> None:
        """`levels` of the tree. `hard`: some node has an allowance, a ceiling or limited lending."""
        self._links = links
        self._hard = hard
        self._events: dict[int, EventQueue[GroupNode]] = {level: EventQueue() for level in sorted(levels)}
        """By level, lowest first, in seconds."""
        self._queues = list(self._events.values())
        self.due = inf
        """Nothing changes by time alone before then."""

    # --- charging -------------------------------------------------------------------------------------------------

    def spend(self, leaf: GroupNode, lender: int, cost: float, now: float) -> None:
        """A request was dispatched, or (any sign) corrected, on the path from this leaf up."""
        for node in leaf.path:
            if node.level >= lender:
                # `TokenBucket.spend`, in place.
                bucket = node.bucket
                zero = bucket.zero
                full = now - bucket.depth
                if zero < full:
                    zero = full
                zero += cost * bucket.inverse
                if zero < full:
                    zero = full
                bucket.zero = zero
                if (zero <= now) is (node.mode != CAN_SEND) or (cost < 0 and zero > now):
                    # Its mode changes; or what it got back brings that nearer.
                    self.update(node, now)
        if self._hard:
            self._spend_hard(leaf, lender, cost, now)

    def _spend_hard(self, leaf: GroupNode, lender: int, cost: float, now: float) -> None:
        node: GroupNode | None = leaf
        while node is not None:
            touched = False
            if node.allowance is not None and node.level < lender:
                node.allowance.spend(cost, now)
                touched = True
            if node.ceil is not None:
                node.ceil.spend(cost, now)
                touched = True
            if node.lending is not None and node.level <= lender:
                node.lending.spend(cost, now)
                touched = True
            if touched:
                self.update(node, now)
            node = node.parent

    # --- modes ----------------------------------------------------------------------------------------------------

    def update(self, node: GroupNode, now: float) -> None:
        """A node's mode, bars and lending by its buckets, and when they change next."""
        mode = node.mode_at(now)
        if mode != node.mode:
            before = node.mode
            node.mode = mode
            if mode == CANT_SEND or before == CANT_SEND:
                self._links.refresh_all(node)
            else:
                self._links.credit_changed(node)
        if self._hard:
            self._update_limits(node, now)
            better_at = node.better_at(now)
        else:
            better_at = inf if mode == CAN_SEND else node.bucket.zero
        if better_at < inf and self._events[node.level].schedule(node, better_at) and better_at < self.due:
            self.due = better_at

    def _update_limits(self, node: GroupNode, now: float) -> None:
        if node.ceil is not None and node.ceil.solvent(now) is node.at_ceil:
            node.at_ceil = not node.at_ceil
            self._links.set_barred(node, 1 if node.at_ceil else -1)
        if node.lending is not None and node.lending.solvent(now) is node.closed:
            node.closed = not node.closed
            self._links.refresh_all(node)

    def fire(self, now: float) -> None:
        """Make the changes that time alone has brought, in the order of levels."""
        self.due = inf
        for queue in self._queues:
            for node in queue.due(now):
                self.update(node, now)
            at = queue.next()
            if at < self.due:
                self.due = at


def hard_event(leaves: list[ClassNode], now: float) -> float | None:
    """When the first node that a hard limit blocks now is free again, or a leaf that limits its own."""
    due = inf
    for leaf in leaves:
        if not leaf.queued:
            continue
        inside = leaf.leaf.next_event(now)
        if inside is not None:
            due = min(due, inside)
        node: GroupNode | None = leaf
        while node is not None:
            if node.at_ceil or node.closed or node.mode == CANT_SEND:
                due = min(due, node.better_at(now))
            node = node.parent
    return due if due < inf else None
