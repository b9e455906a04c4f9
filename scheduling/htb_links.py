"""Who can be asked for a request: the rows by level and prio, and the feeds that hang below them.

Knows nodes, their modes and whether something is queued below them. Does not know costs or time: whoever changes a
mode, a bar or a queue tells it, and it links or unlinks.

As in the kernel: a node that can send and has something to send stands in the row of its level and prio; one that may
borrow stands in its parent's feed, which makes the parent something to send, and so on up to the root.

Unlike the kernel, a node that can send stays in its parent's feed. A feed is only asked when all rows below it are
empty (or hold blocked classes), so nobody finds it there; and going to and fro between credit and debt, which busy
classes do all the time, moves a node in one rotation only and costs it no turn in the other.
"""

from collections.abc import Iterator

from scheduling.htb_node import CAN_SEND, CANT_SEND, ROOT_LEVEL, ClassNode, GroupNode
from scheduling.rotation import Rotation, Turn

__all__ = ["PRIOS", "Links", "classes_below", "lender_of", "lender_out_of_turn", "turns_up"]

PRIOS = 8


class Links:
    def __init__(self) -> None:
        self.rows: list[Rotation[GroupNode]] = [Rotation() for _ in range((ROOT_LEVEL + 1) * PRIOS)]
        """By level × 8 + prio: nodes that can send and have something to send."""
        self.mask = 0
        """Bits of the rows in which somebody stands."""

    def refresh(self, node: GroupNode, prio: int) -> None:
        """Link or unlink a node after its backlog at this prio, its mode, its bar or its lending changed."""
        sends = node.has_backlog(prio) and not node.barred and not node.closed
        turn = node.row_turns[prio]
        if turn.active is not (sends and node.mode == CAN_SEND):
            if turn.active:
                self._leave_row(node.level * PRIOS + prio, turn)
            else:
                self._join_row(node.level * PRIOS + prio, turn)
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

    def credit_changed(self, node: GroupNode) -> None:
        """A node came into credit or out of it, and may borrow: it stands in its level's row or not."""
        in_credit = node.mode == CAN_SEND
        for prio, turn in node.row_turns.items():
            if turn.active:
                if not in_credit:
                    self._leave_row(node.level * PRIOS + prio, turn)
            elif in_credit and node.has_backlog(prio) and not node.barred and not node.closed:
                self._join_row(node.level * PRIOS + prio, turn)

    def refresh_all(self, node: GroupNode) -> None:
        """At every prio."""
        for prio in node.feeds:
            self.refresh(node, prio)

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

    def _join_row(self, number: int, turn: Turn[GroupNode]) -> None:
        row = self.rows[number]
        row.join(turn)
        if row.active == 1:
            self.mask |= 1 << number

    def _leave_row(self, number: int, turn: Turn[GroupNode]) -> None:
        row = self.rows[number]
        row.leave(turn)
        if not row.active:
            self.mask &= ~(1 << number)


def lender_of(leaf: ClassNode) -> int | None:
    """The level of the first node from the class up that can send; None if a hard limit is in the way."""
    if leaf.barred:
        return None
    node: GroupNode = leaf
    while node.mode != CAN_SEND:
        parent = node.parent
        assert parent is not None, "the root always can"
        if node.mode == CANT_SEND or parent.closed:
            return None
        node = parent
    return node.level


def lender_out_of_turn(leaf: ClassNode, now: float) -> int | None:
    """The same for a request that goes out of turn, for its class is strict or it waited too long: the class itself as
    long as it owes less than its burst. So that is part of the class's own rate, and takes nothing that others were
    promised."""
    lender = lender_of(leaf)
    return 0 if lender and leaf.bucket.zero <= now + leaf.bucket.depth else lender


def classes_below(rotation: Rotation[GroupNode], prio: int, blocked: int) -> Iterator[ClassNode]:
    """All classes below a row or feed in the order of their turns, but the blocked ones."""
    for turn in rotation.in_order():
        node = turn.owner
        if isinstance(node, ClassNode):
            if not node.mask & blocked:
                yield node
        elif node.mask & ~blocked:
            yield from classes_below(node.feeds[prio], prio, blocked)


def turns_up(
    rows: list[Rotation[GroupNode]], leaf: ClassNode, lender: int
) -> Iterator[tuple[Rotation[GroupNode], Turn[GroupNode]]]:
    """The turns from a class up to the lender's row, which may be its own. The root is alone in its row."""
    prio = leaf.prio
    node: GroupNode = leaf
    while node.level < lender:
        above = node.parent
        assert above is not None
        yield above.feeds[prio], node.borrow_turns[prio]
        node = above
    if node.parent is not None:
        yield rows[lender * PRIOS + prio], node.row_turns[prio]
