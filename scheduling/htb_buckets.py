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
from scheduling.token_bucket import EPSILON

__all__ = ["Buckets"]

_EARLY = EPSILON / 16
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
        parent = tenant.parent
        if lender == 0:
            virtual = parent.clock.read(now)
            level = tenant.bucket.spend(cost, virtual)
            if (level >= -EPSILON) is (tenant.mode != CAN_SEND):
                self.update_tenant(tenant)
        node: GroupNode = parent
        while True:
            above = node.parent
            if above is None:
                break
            if node.level >= lender:
                bucket = node.bucket
                assert bucket is not None
                if (bucket.spend(cost, now) >= -EPSILON) is (node.mode != CAN_SEND):
                    self.update(node, now)
            node = above
        if self.hard:
            self._spend_hard(tenant, lender, cost, now)

    def _spend_hard(self, tenant: Tenant, lender: int, cost: float, now: float) -> None:
        if tenant.allowance is not None and lender > 0:
            tenant.allowance.spend(cost, tenant.parent.clock.read(now))
            self.update_tenant(tenant)
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

    def update_tenant(self, tenant: Tenant) -> None:
        """After its buckets were read: its mode, and when that changes next."""
        mode = tenant.mode_now()
        if mode != tenant.mode:
            self._links.set_tenant_mode(tenant, mode)
        if mode != CAN_SEND:
            node = tenant.parent
            due = tenant.event_due()
            if due < inf and node.events.schedule(tenant, due):
                at = node.clock.when(due)
                if at < node.due:
                    node.due = at
                    if at < self.due:
                        self.due = at

    def update(self, node: GroupNode, now: float) -> None:
        """A node's mode, bars and lending by its buckets, and when they change next."""
        node.read(now)
        mode = node.mode_now()
        if mode != node.mode:
            node.mode = mode
            for prio in node.feeds:
                self._links.refresh(node, prio)
        if node.ceil is not None:
            at_ceil = node.ceil.level < -EPSILON
            if at_ceil is not node.at_ceil:
                node.at_ceil = at_ceil
                self._links.set_barred(node, 1 if at_ceil else -1)
        if node.lending is not None:
            closed = node.lending.level < -EPSILON
            if closed is not node.closed:
                node.closed = closed
                self._links.refresh_all(node)
        due = node.event_due()
        if due < inf and self._events[node.level].schedule(node, due):
            self._groups_due = min(self._groups_due, due)
            self.due = min(self.due, due)

    def clock_changed(self, node: ClassNode) -> None:
        """The class's virtual time runs faster now, or its first wake-up is another."""
        first = node.events.next()
        node.due = inf if first is None else node.clock.when(first)
        if node.due < self.due:
            self.due = node.due

    def fire(self, now: float) -> None:
        """Make the changes that time alone has brought, in the order of levels."""
        due = inf
        for node in self.classes:
            if node.due <= now:
                virtual = node.clock.read(now)
                for tenant in node.events.due(virtual + _EARLY):
                    tenant.bucket.read(virtual)
                    if tenant.allowance is not None:
                        tenant.allowance.read(virtual)
                    self.update_tenant(tenant)
                self.clock_changed(node)
            if node.due < due:
                due = node.due
        if self._groups_due <= now:
            self._groups_due = inf
            for queue in self._events:
                for group in queue.due(now):
                    self.update(group, now)
                at = queue.next()
                if at is not None and at < self._groups_due:
                    self._groups_due = at
        self.due = min(due, self._groups_due)

    def hard_event(self) -> float | None:
        """When the first node that a hard limit blocks now is free again."""
        due = inf
        for leaf in self.classes:
            node: GroupNode | None = leaf
            while node is not None:
                if node.at_ceil or node.closed or node.mode == CANT_SEND:
                    due = min(due, node.event_due())
                node = node.parent
            for tenant in leaf.tenants.values() if leaf.config.tenants.borrow_limit is not None else ():
                if tenant.mode == CANT_SEND and tenant.queued:
                    due = min(due, leaf.clock.when(tenant.event_due()))
        return due if due < inf else None
