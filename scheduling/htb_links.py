"""Who can be asked for a request: the rows by level and prio, and the feeds that hang below them.

Knows nodes, their modes and what is queued below them. Does not know costs or time: whoever changes a mode, a bar or a
queue tells it, and it links or unlinks.

As in the kernel: a node that can send and has something to send stands in the row of its level and prio; one that may
borrow stands in its parent's feed, which makes the parent something to send, and so on up to the root.

Unlike the kernel, tenants that can send stand in a rotation of their class, and the class in the row of level 0: a
class's share doesn't grow with the number of its tenants, and a class that has no room is passed over at once. And a
node that can send stays in its parent's feed: a feed is only asked when all rows below it are empty, so nobody finds it
there, and going to and fro between credit and debt, which busy tenants do all the time, moves it in one rotation only.
"""

from scheduling.htb_node import CAN_SEND, CANT_SEND, ROOT_LEVEL, ClassNode, GroupNode, NodeTurn, Tenant
from scheduling.rotation import Rotation

__all__ = ["Links"]

_PRIOS = 8


class Links:
    def __init__(self) -> None:
        self.rows: list[Rotation[NodeTurn]] = [Rotation() for _ in range((ROOT_LEVEL + 1) * _PRIOS)]
        """By level × 8 + prio: nodes that can send and have something to send."""
        self.mask = 0
        """Bits of the rows in which somebody stands."""

    # --- tenants --------------------------------------------------------------------------------------------------

    def enter(self, tenant: Tenant) -> None:
        """It has something queued (again)."""
        node = tenant.parent
        if tenant.mode == CANT_SEND:
            return
        feed = node.feed
        feed.join(tenant.borrow_turn)
        if feed.active == 1:
            self.refresh(node, node.prio)
        if tenant.mode == CAN_SEND:
            self.be_ready(tenant)

    def exit(self, tenant: Tenant) -> None:
        """It has nothing queued any more."""
        if tenant.borrow_turn.active:
            self.leave_feed(tenant)
        if tenant.own_turn.active:
            self.be_unready(tenant)

    def set_tenant_mode(self, tenant: Tenant, mode: int) -> None:
        before = tenant.mode
        tenant.mode = mode
        if not tenant.queued:
            return
        if before == CANT_SEND:
            self.enter(tenant)
        elif mode == CANT_SEND:
            self.exit(tenant)
        elif mode == CAN_SEND:
            self.be_ready(tenant)
        else:
            self.be_unready(tenant)

    def be_ready(self, tenant: Tenant) -> None:
        """It can send, and has something to send."""
        node = tenant.parent
        ready = node.ready
        ready.join(tenant.own_turn)
        if ready.active == 1:
            self.refresh_ready(node)

    def be_unready(self, tenant: Tenant) -> None:
        node = tenant.parent
        ready = node.ready
        ready.leave(tenant.own_turn)
        if not ready.active:
            self.refresh_ready(node)

    def leave_feed(self, tenant: Tenant) -> None:
        node = tenant.parent
        feed = node.feed
        feed.leave(tenant.borrow_turn)
        if not feed.active:
            self.refresh(node, node.prio)

    # --- classes and groups ---------------------------------------------------------------------------------------

    def refresh_ready(self, node: ClassNode) -> None:
        """Link or unlink a class in the row of level 0."""
        wanted = node.ready.active > 0 and not node.barred
        if wanted is node.ready_turn.active:
            return
        if wanted:
            self._join_row(node.prio, node.ready_turn)
        else:
            self._leave_row(node.prio, node.ready_turn)

    def refresh(self, node: GroupNode, prio: int) -> None:
        """Link or unlink a node after its feed at this prio, its mode, its bar or its lending changed."""
        sends = node.feeds[prio].active > 0 and not node.barred and not node.closed
        turn = node.row_turns[prio]
        if turn.active is not (sends and node.mode == CAN_SEND):
            if turn.active:
                self._leave_row(node.level * _PRIOS + prio, turn)
            else:
                self._join_row(node.level * _PRIOS + prio, turn)
        parent = node.parent
        if parent is None:
            return
        turn = node.borrow_turns[prio]
        if turn.active is not (sends and node.mode != CANT_SEND):
            feed = parent.feeds[prio]
            if turn.active:
                feed.leave(turn)
                changed = not feed.active
            else:
                feed.join(turn)
                changed = feed.active == 1
            if changed:
                self.refresh(parent, prio)

    def refresh_all(self, node: GroupNode) -> None:
        """At every prio, and at level 0."""
        for prio in node.feeds:
            self.refresh(node, prio)
        if isinstance(node, ClassNode):
            self.refresh_ready(node)

    def set_barred(self, node: GroupNode, more: int) -> None:
        """A node reached its ceil (+1) or has room again (−1): so for all below it."""
        node.barred += more
        self.refresh_all(node)
        for child in node.children:
            self.set_barred(child, more)

    def check_integrity(self) -> None:
        for number, row in enumerate(self.rows):
            row.check_integrity()
            assert bool(self.mask >> number & 1) is (row.active > 0), f"row {number}: mask and turns differ"

    def _join_row(self, number: int, turn: NodeTurn) -> None:
        row = self.rows[number]
        row.join(turn)
        if row.active == 1:
            self.mask |= 1 << number

    def _leave_row(self, number: int, turn: NodeTurn) -> None:
        row = self.rows[number]
        row.leave(turn)
        if not row.active:
            self.mask &= ~(1 << number)
