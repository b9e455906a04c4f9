"""Charging a running class tree: what a cost does to buckets, and buckets to modes, now and by time alone.

Knows nodes, buckets, lender levels and wake-ups. Does not know rows, turns or leaves (`scheduling.htb`).

The lender is the first node, from the tenant up, that could send when the request was dispatched. All costs of that
request, early or late, move the same buckets: rates from the lender upwards (a borrower's own rate goes on filling);
below the lender allowances, and the lending of each parent borrowed from; ceilings all the way.
"""

from math import inf

from scheduling.event_queue import EventQueue
from scheduling.htb_links import Links
from scheduling.htb_node import CAN_SEND, CANT_SEND, ROOT_LEVEL, ClassNode, GroupNode, Tenant

__all__ = ["Buckets"]

_EARLY = 1e-3
"""Virtual time by which a tenant's wake-up may fire early: the rounding of its clock."""


class Buckets:
    def __init__(self, links: Links) -> None:
        self._links = links
        self._events: list[EventQueue[GroupNode]] = [EventQueue() for _ in range(ROOT_LEVEL + 1)]
        """By level, in seconds."""
        self._groups_due = inf
        """The first of them."""
        self.classes: list[ClassNode] = []
        """Set by whoever builds the tree."""
        self.hard = False
        """Some node has an allowance, a ceiling or limited lending."""
        self.due = inf
        """Nothing changes by time alone before then."""

    # --- charging -------------------------------------------------------------------------------------------------

    def spend(self, tenant: Tenant, lender: int, cost: float, now: float) -> None:
        """A request was dispatched, or (any sign) corrected, on this path."""
        if lender == 0:
            virtual = tenant.parent.clock.read(now)
            if tenant.bucket.spend(cost, virtual) is (tenant.mode != CAN_SEND):
                self.update_tenant(tenant, virtual)
        self.spend_above(tenant, lender, cost, now)

    def spend_above(self, tenant: Tenant, lender: int, cost: float, now: float) -> None:
        """The part of `spend` that is not the tenant's own rate."""
        node: GroupNode = tenant.parent
        bucket = node.bucket
        while bucket is not None:
            if node.level >= lender:
                # `TokenBucket.spend`, in place.
                zero, full = bucket.zero, now - bucket.depth
                zero = (zero if zero > full else full) + cost * bucket.inverse
                bucket.zero = zero if zero > full else full
                if (zero <= now) is (node.mode != CAN_SEND):
                    self.update(node, now)
            above = node.parent
            assert above is not None, "only the root has no bucket"
            node = above
            bucket = node.bucket
        if self.hard:
            self._spend_hard(tenant, lender, cost, now)

    def _spend_hard(self, tenant: Tenant, lender: int, cost: float, now: float) -> None:
        if tenant.allowance is not None and lender > 0:
            virtual = tenant.parent.clock.read(now)
            tenant.allowance.spend(cost, virtual)
            self.update_tenant(tenant, virtual)
        node: GroupNode | None = tenant.parent
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

    def update_tenant(self, tenant: Tenant, virtual: float) -> None:
        """A tenant's mode by its buckets, and when that changes next."""
        mode = tenant.mode_at(virtual)
        if mode != tenant.mode:
            self._links.set_tenant_mode(tenant, mode)
        if mode != CAN_SEND:
            self.wake_tenant(tenant)

    def wake_tenant(self, tenant: Tenant) -> None:
        """Look at it again when its mode gets better."""
        node = tenant.parent
        better_at = tenant.better_at()
        if node.events.schedule(tenant, better_at):
            at = node.clock.when(better_at)
            if at < node.due:
                node.due = at
                if at < self.due:
                    self.due = at

    def update(self, node: GroupNode, now: float) -> None:
        """A node's mode, bars and lending by its buckets, and when they change next."""
        mode = node.mode_at(now)
        if mode != node.mode:
            node.mode = mode
            for prio in node.feeds:
                self._links.refresh(node, prio)
        if node.ceil is not None and node.ceil.solvent(now) is node.at_ceil:
            node.at_ceil = not node.at_ceil
            self._links.set_barred(node, 1 if node.at_ceil else -1)
        if node.lending is not None and node.lending.solvent(now) is node.closed:
            node.closed = not node.closed
            self._links.refresh_all(node)
        better_at = node.better_at(now)
        if better_at < inf and self._events[node.level].schedule(node, better_at):
            self._groups_due = min(self._groups_due, better_at)
            self.due = min(self.due, better_at)

    def clock_changed(self, node: ClassNode) -> None:
        """The class's virtual time runs faster now, or its first wake-up is another."""
        node.due = node.clock.when(node.events.next())
        if node.due < self.due:
            self.due = node.due

    def fire(self, now: float) -> None:
        """Make the changes that time alone has brought, in the order of levels."""
        due = inf
        for node in self.classes:
            if node.due <= now:
                virtual = node.clock.read(now) + _EARLY
                for tenant in node.events.due(virtual):
                    self.update_tenant(tenant, virtual)
                node.due = node.clock.when(node.events.next())
            if node.due < due:
                due = node.due
        if self._groups_due <= now:
            self._groups_due = inf
            for queue in self._events:
                for group in queue.due(now):
                    self.update(group, now)
                self._groups_due = min(self._groups_due, queue.next())
        self.due = min(due, self._groups_due)

    def hard_event(self, now: float) -> float | None:
        """When the first node that a hard limit blocks now is free again."""
        due = inf
        for leaf in self.classes:
            node: GroupNode | None = leaf
            while node is not None:
                if node.at_ceil or node.closed or node.mode == CANT_SEND:
                    due = min(due, node.better_at(now))
                node = node.parent
            for tenant in leaf.tenants.values() if leaf.config.tenants.borrow_limit is not None else ():
                if tenant.mode == CANT_SEND and tenant.queued:
                    due = min(due, leaf.clock.when(tenant.better_at()))
        return due if due < inf else None
