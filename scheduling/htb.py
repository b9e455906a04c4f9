"""Hierarchical token bucket: classes and tenants get their rates, and share what is idle by weight.

Knows rows, predicted costs, the class tree and time as an argument. Does not know what is really charged
(`scheduling.accounting`), and nothing below a tenant: its leaf orders its requests (`scheduling.sfq` by default).

Algorithm: Each node of the tree (root, groups, priority classes, tenants) has a token bucket. A node in credit *can
send*; one in debt *may borrow* from the first ancestor in credit, unless a hard limit forbids it. Among nodes that can
send the lowest level goes first (guarantees before borrowing), then the lowest prio, and equals take turns by deficit
round robin. Time moves nodes from debt to credit through queues of wake-ups.

Source: Devera's HTB, the kernel's `net/sched/sch_htb.c`; link sharing is Floyd & Van Jacobson, "Link-sharing and
Resource Management Models for Packet Networks", 1995. Why: guarantees, borrowing, limits and hierarchy in one
mechanism that operators know, with no trade-off weights; each decision has a reason that can be named.

Deviations from the kernel (design page, section 4), mirrored in the tests' literal reference:

==  ================================================================================================================
 1  Buckets hold what is *available*: prediction counts at dispatch, corrections follow. No debt floor, no horizon.
 2  Deficits move by predicted cost and by corrections; turns in debt are skipped by arithmetic, not by a loop.
 3  `strict_limit`: a class goes before everybody while under it, and is an ordinary class above it.
 4  The root never blocks: rates are soft, so the machine is never idle while something is queued that violates
    only rates. `ceil`, `lendable`, `borrow_limit` are hard.
 5  A parent's lending fills with unassigned rate + Σ lendable × idle rate; each borrow debits it and the borrower's
    allowance.
 6  Tenants appear from a template and share their class's rate by weight among the active; debt outlives retirement.
 7  SFQ leaves with an exact map of flows, debts that outlive an emptied flow, and an order inside a flow.
 9  `max_wait`: a class's oldest row goes right after strict, within `promote_share` of the capacity.
11  Buckets start half full: what they held before a restart is unknown.
12  Turns are hierarchical: classes take turns, and tenants within a class; a class's share doesn't grow with its
    tenants. A node has one deficit for its own rate, and one for all it borrows.
13  A ceil holds for everybody below it, also for those who are under their own rate.
==  ================================================================================================================

(8, the prefix look, and 10, the ledger, are not the tree's.)

Drawbacks: a dozen parameters; it shapes by predicted cost, so shares are right over seconds, not per request. Limits: 8
levels; O(log tenants + log flows) a decision.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from scheduling.discipline import Discipline
from scheduling.htb_buckets import Buckets
from scheduling.htb_build import build_tree, set_lending, set_rates
from scheduling.htb_links import Links
from scheduling.htb_node import CAN_SEND, CANT_SEND, MAY_BORROW, ROOT_LEVEL, ClassNode, GroupNode, NodeTurn, Tenant
from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.rotation import Rotation, interleave
from scheduling.token_bucket import TokenBucket
from scheduling.tree import TreeConfig

__all__ = ["Grant", "Htb"]

_MAX_RESTING = 10_000
"""Idle tenants of a class remembered for their buckets, at most; the one idle longest starts afresh."""

Grant = tuple[Tenant, int, bool, Any]
"""Tenant, level of the lender, dispatched as strict, the leaf's own grant."""


class Htb:
    """Implements `scheduling.discipline.Discipline[Grant]`."""

    def __init__(
        self,
        index: Index,
        config: TreeConfig,
        make_leaf: Callable[[ClassNode], Discipline[Any]],
        now: float = 0.0,
    ) -> None:
        """`now`: the start, on the clock of all later calls. `make_leaf`: a new tenant's queue."""
        self._index = index
        self._config = config
        self._make_leaf = make_leaf
        self._service = index.service
        self._tenant_of = index.tenant
        self._links = Links()
        self._buckets = Buckets(self._links)
        self._root = build_tree(config, now)
        self._class_of: list[ClassNode | None] = [None] * len(PriorityClass)
        for node in _classes(self._root):
            self._class_of[node.priority] = node
            self._buckets.classes.append(node)
        self._strict = [node for node in self._buckets.classes if node.strict is not None]
        self._lends = any(child.lendable < 1 for child in config.walk())
        self._buckets.hard = self._lends or any(
            node.ceil is not None or node.borrow_limit is not None or node.tenants.borrow_limit is not None
            for node in config.walk()
        )
        # What `_find` found, beside the tenant.
        self._lender = 0
        self._as_strict = False
        self._searched = False

    # --- a row's way ----------------------------------------------------------------------------------------------

    def push(self, row: int, now: float) -> None:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        node = self._class_of[self._service[row]]
        assert node is not None, f"no class of the tree serves {PriorityClass(self._service[row]).label}"
        tenant = node.tenants.get(self._tenant_of[row])
        if tenant is None:
            tenant = self._admit(node, self._tenant_of[row], now)
        if not tenant.queued and not tenant.in_flight:
            self._activate(tenant, now)
        tenant.leaf.push(row, now)
        self._count_in(tenant, now)

    def pick(self, now: float, blocked: int) -> int | None:
        tenant = self._find(now, blocked)
        row: int | None = None if tenant is None else tenant.leaf.pick(now, 0)
        if row is None and tenant is not None:
            tenant = self._search(now, blocked)
            row = None if tenant is None else tenant.leaf.pick(now, 0)
        return row

    def pop(self, now: float, blocked: int) -> tuple[int, int, Grant] | None:
        tenant = self._find(now, blocked)
        if tenant is None:
            return None
        popped = tenant.leaf.pop(now, 0)
        if popped is None:
            tenant = self._search(now, blocked)
            if tenant is None:
                return None
            popped = tenant.leaf.pop(now, 0)
            assert popped is not None, "it had a row a moment ago"
        row, cost, leaf_grant = popped
        lender, strict = self._lender, self._as_strict
        node = tenant.parent
        tenant.in_flight += 1
        tenant.queued -= 1
        node.queued -= 1
        if lender == 0 and not self._searched:
            self._send_own(tenant, strict, cost, now)
        else:
            self._send(tenant, lender, strict, cost, now)
        if strict:
            assert node.strict is not None
            node.strict.spend(cost, now)
        if lender > node.level:
            node.borrowed_cost += cost
        if self._lends and not node.queued:
            self._lend_again(node, now)
        return row, cost, (tenant, lender, strict, leaf_grant)

    def take(self, row: int, cost: int, now: float) -> Grant:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        node = self._class_of[self._service[row]]
        assert node is not None
        tenant = node.tenants[self._tenant_of[row]]
        allowed = _lender(tenant)
        lender = ROOT_LEVEL if allowed is None else allowed
        leaf_grant = tenant.leaf.take(row, cost, now)
        self._adjust_turns(tenant, lender, False, cost)
        tenant.in_flight += 1
        self._count_out(tenant, now)
        self._spend(tenant, lender, False, cost, now)
        return tenant, lender, False, leaf_grant

    def correct(self, grant: Grant, cost: int, now: float) -> None:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        tenant, lender, strict, leaf_grant = grant
        self._adjust_turns(tenant, lender, strict, cost)
        self._spend(tenant, lender, strict, cost, now)
        tenant.leaf.correct(leaf_grant, cost, now)

    def end(self, grant: Grant, cost: int, now: float) -> None:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        tenant, lender, strict, leaf_grant = grant
        if cost:
            self._adjust_turns(tenant, lender, strict, cost)
            self._spend(tenant, lender, strict, cost, now)
        tenant.leaf.end(leaf_grant, cost, now)
        tenant.in_flight -= 1
        if not tenant.in_flight and not tenant.queued:
            self._deactivate(tenant, now)

    def restore(self, row: int, grant: Grant, cost: int, now: float) -> None:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        tenant, lender, strict, leaf_grant = grant
        self._adjust_turns(tenant, lender, strict, -cost)
        self._spend(tenant, lender, strict, -cost, now)
        tenant.leaf.restore(row, leaf_grant, cost, now)
        tenant.in_flight -= 1
        self._count_in(tenant, now)

    def remove(self, row: int, now: float) -> None:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        node = self._class_of[self._service[row]]
        assert node is not None
        tenant = node.tenants[self._tenant_of[row]]
        tenant.leaf.remove(row, now)
        self._count_out(tenant, now)
        if not tenant.in_flight and not tenant.queued:
            self._deactivate(tenant, now)

    # --- looking --------------------------------------------------------------------------------------------------

    def order(self, skip: int) -> Iterator[int]:
        """Strict classes first, then classes by quantum; in each, tenants by their turns, those in credit first."""
        strict = [node for node in self._strict if not node.bit & skip]
        for node in strict:
            yield from self._order_in(node)
        streams = [
            (node.ready_turn.quantum, self._order_in(node))
            for node in self._buckets.classes
            if node.strict is None and not node.bit & skip
        ]
        spent = [0.0] * len(streams)
        while streams:
            number = spent.index(min(spent))
            quantum, rows = streams[number]
            row = next(rows, None)
            if row is None:
                del streams[number], spent[number]
                continue
            yield row
            spent[number] += self._index.predicted_cost(row) / quantum

    def _order_in(self, node: ClassNode) -> Iterator[int]:
        cost_of = self._index.predicted_cost
        yield from interleave(node.ready, lambda turn: turn.owner.leaf.order(0), cost_of)
        yield from interleave(node.feed, _rows_in_debt, cost_of)

    def next_event(self, now: float) -> float | None:
        if not self._buckets.hard or not len(self):
            return None
        at = self._buckets.hard_event(now)
        return None if at is None else max(at, now)

    def borrowed_cost(self, priority: PriorityClass) -> int:
        node = self._class_of[priority]
        return 0 if node is None else node.borrowed_cost

    def set_capacity(self, units_s: float, now: float) -> None:
        """The machine does so many cost units a second: shares mean that from now on. Levels and debts stay."""
        if now >= self._buckets.due:
            self._buckets.fire(now)
        set_rates(self._root, self._config, units_s, now)
        for group in _nodes(self._root):
            self._buckets.update(group, now)
        for node in self._buckets.classes:
            self._buckets.clock_changed(node)

    def close(self) -> None:
        assert not len(self), "rows are queued"
        for node in self._buckets.classes:
            for tenant in list(node.tenants.values()):
                self._retire(tenant)

    def __len__(self) -> int:
        return sum(node.queued for node in self._buckets.classes)

    # --- picking --------------------------------------------------------------------------------------------------

    def _find(self, now: float, blocked: int) -> Tenant | None:
        """Whose turn it is, if its leaf lets a row go. Sets `_lender`, `_as_strict`, `_searched`."""
        buckets = self._buckets
        if now >= buckets.due:
            buckets.fire(now)
        if blocked:
            return self._search(now, blocked)
        self._searched = False
        for node in self._strict:
            strict = node.strict
            if node.queued and strict is not None and strict.zero <= now and not node.barred:
                turn = node.ready.front()
                if turn is None:
                    return self._search(now, blocked)
                self._lender = 0
                self._as_strict = True
                tenant: Tenant = turn.owner
                return tenant
        self._as_strict = False
        mask = self._links.mask
        if not mask:
            return None
        number = (mask & -mask).bit_length() - 1
        self._lender = number >> 3
        turn = self._links.rows[number].front()
        assert turn is not None
        node = turn.owner
        if number < 8:
            turn = node.ready.front()
            assert turn is not None
            own: Tenant = turn.owner
            return own
        prio = number & 7
        while node.level:
            turn = node.feeds[prio].front()
            assert turn is not None
            node = turn.owner
        borrower: Tenant = node
        return borrower

    def _search(self, now: float, blocked: int) -> Tenant | None:
        """As `_find`, where turns are passed over: classes are blocked, or leaves let nothing go."""
        self._searched = True
        self._as_strict = True
        for node in self._strict:
            strict = node.strict
            if node.queued and strict is not None and strict.zero <= now and not node.barred | node.bit & blocked:
                for tenant in chain(_owners(node.ready), _owners(node.feed)):
                    lender = _lender(tenant)
                    if lender is not None and tenant.leaf.pick(now, 0) is not None:
                        self._lender = lender
                        return tenant
        self._as_strict = False
        mask = self._links.mask
        while mask:
            number = (mask & -mask).bit_length() - 1
            self._lender = number >> 3
            for tenant in _tenants(self._links.rows[number], number, blocked):
                if tenant.leaf.pick(now, 0) is not None:
                    return tenant
            mask &= mask - 1
        return None

    # --- turns and buckets ----------------------------------------------------------------------------------------

    def _send_own(self, tenant: Tenant, strict: bool, cost: int, now: float) -> None:
        """A tenant in credit has sent, and it was its turn. `_send` in one go, for this is what happens most."""
        node = tenant.parent
        links = self._links
        if not strict:
            links.rows[node.prio].serve(node.ready_turn, cost)
        virtual = node.clock.read(now)
        ready = node.ready
        if tenant.bucket.spend(cost, virtual):
            if tenant.queued:
                ready.serve(tenant.own_turn, cost)
            else:
                ready.serve_last(tenant.own_turn, cost)
                links.exit(tenant)
        else:
            ready.serve_last(tenant.own_turn, cost)
            if not tenant.queued:
                links.exit(tenant)
            tenant.mode = tenant.mode_at(virtual)
            if tenant.mode == CANT_SEND:
                links.exit(tenant)
            self._buckets.wake_tenant(tenant)
        if not ready.active:
            links.refresh_ready(node)
        self._buckets.spend_above(tenant, 0, cost, now)

    def _send(self, tenant: Tenant, lender: int, strict: bool, cost: int, now: float) -> None:
        """A tenant has sent: the turns on the way down to it are served, the buckets on the way up are charged."""
        parent = tenant.parent
        if lender == 0:
            parent.ready.serve_past(tenant.own_turn, cost)
            if not strict:
                self._links.rows[parent.prio].serve_past(parent.ready_turn, cost)
        else:
            parent.feed.serve_past(tenant.borrow_turn, cost)
            if not strict:
                for rotation, turn in _turns(self._links.rows, parent, lender):
                    rotation.serve_past(turn, cost)
        if not tenant.queued:
            self._links.exit(tenant)
        self._buckets.spend(tenant, lender, cost, now)

    def _adjust_turns(self, tenant: Tenant, lender: int, strict: bool, cost: int) -> None:
        """The turns that were served then cost more or less. A strict dispatch took no turn between classes."""
        parent = tenant.parent
        if lender == 0:
            parent.ready.adjust(tenant.own_turn, cost)
            if not strict:
                self._links.rows[parent.prio].adjust(parent.ready_turn, cost)
            return
        parent.feed.adjust(tenant.borrow_turn, cost)
        if not strict:
            for rotation, turn in _turns(self._links.rows, parent, lender):
                rotation.adjust(turn, cost)

    def _spend(self, tenant: Tenant, lender: int, strict: bool, cost: int, now: float) -> None:
        node = tenant.parent
        self._buckets.spend(tenant, lender, cost, now)
        if strict:
            assert node.strict is not None
            node.strict.spend(cost, now)
        if lender > node.level:
            node.borrowed_cost += cost

    # --- counts ---------------------------------------------------------------------------------------------------

    def _count_in(self, tenant: Tenant, now: float) -> None:
        node = tenant.parent
        node.queued += 1
        tenant.queued += 1
        if tenant.queued == 1:
            self._links.enter(tenant)
            if node.queued == 1 and self._lends:
                self._lend_again(node, now)

    def _count_out(self, tenant: Tenant, now: float) -> None:
        node = tenant.parent
        node.queued -= 1
        tenant.queued -= 1
        if not tenant.queued:
            self._links.exit(tenant)
            if not node.queued and self._lends:
                self._lend_again(node, now)

    def _lend_again(self, node: ClassNode, now: float) -> None:
        """A class became idle or busy, and with it perhaps groups: what their parents may lend changes."""
        child: GroupNode = node
        while child.parent is not None:
            parent = child.parent
            if parent.lending is not None:
                set_lending(parent, self._config.largest_item, now)
                self._buckets.update(parent, now)
            busy = sum(below.queued for below in parent.children)
            if bool(busy) is bool(parent.queued):
                break
            parent.queued = busy
            child = parent

    # --- tenants --------------------------------------------------------------------------------------------------

    def _admit(self, node: ClassNode, number: int, now: float) -> Tenant:
        """A tenant from the class's template, as if it had been idle since the start."""
        template = node.config.tenants
        weight = template.weight_of(self._index.tenants.name(number))
        tenant = Tenant(node, number, weight, max(1, round(template.quantum * weight)), self._make_leaf(node))
        burst = float(self._config.largest_item if template.burst is None else template.burst)
        tenant.bucket = TokenBucket(weight, burst, burst * self._config.initial_fill, 0.0)
        virtual = node.clock.read(now)
        tenant.mode = tenant.mode_at(virtual)
        if template.borrow_limit is not None:
            limit = template.borrow_limit
            tenant.allowance = TokenBucket(weight * limit, burst * limit, burst * limit, virtual)
        # The number must mean this tenant for as long as its debt is remembered.
        self._index.tenants.hold(number)
        node.tenants[number] = tenant
        return tenant

    def _activate(self, tenant: Tenant, now: float) -> None:
        """It has something queued or in flight from now on, and so a share of its class's rate."""
        node = tenant.parent
        node.resting.pop(tenant, None)
        node.clock.join(tenant.weight, now)

    def _deactivate(self, tenant: Tenant, now: float) -> None:
        node = tenant.parent
        node.clock.leave(tenant.weight, now)
        self._buckets.clock_changed(node)
        node.resting[tenant] = None
        virtual = node.clock.read(now)
        for _ in range(min(2, len(node.resting))):
            oldest, _ = node.resting.popitem(last=False)
            if len(node.resting) < _MAX_RESTING and _owes(oldest, virtual):
                node.resting[oldest] = None
            else:
                self._retire(oldest)

    def _retire(self, tenant: Tenant) -> None:
        node = tenant.parent
        node.resting.pop(tenant, None)
        node.events.cancel(tenant)
        tenant.leaf.close()
        del node.tenants[tenant.number]
        self._index.tenants.drop(tenant.number)

    # --- integrity ------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        for node in self._buckets.classes:
            for rotation in (node.ready, node.feed):
                rotation.check_integrity()
            ready = feed = 0
            for number, tenant in node.tenants.items():
                assert tenant.number == number
                assert len(tenant.leaf) == tenant.queued, f"tenant {number}: {len(tenant.leaf)=}, {tenant.queued=}"
                assert (tenant in node.resting) is (not tenant.queued and not tenant.in_flight)
                assert tenant.own_turn.active is (tenant.queued > 0 and tenant.mode == CAN_SEND)
                ready += tenant.own_turn.active
                assert tenant.borrow_turn.active is (tenant.queued > 0 and tenant.mode != CANT_SEND)
                feed += tenant.borrow_turn.active
                tenant.leaf.check_integrity()
            assert (node.ready.active, node.feed.active) == (ready, feed), f"class {node.name}: turns don't add up"
            assert node.queued == sum(tenant.queued for tenant in node.tenants.values())
            busy = sum(1 for tenant in node.tenants.values() if tenant.queued or tenant.in_flight)
            assert node.clock.active == busy, f"class {node.name}: {busy} tenants busy, {node.clock.active} share"
        self._links.check_integrity()


def _owes(tenant: Tenant, virtual: float) -> bool:
    """Forgetting it would change something: its buckets aren't full, or a turn of its hasn't come round."""
    if not tenant.bucket.full(virtual) or (tenant.allowance is not None and not tenant.allowance.full(virtual)):
        return True
    node = tenant.parent
    return not (node.ready.passed(tenant.own_turn) and node.feed.passed(tenant.borrow_turn))


def _lender(tenant: Tenant) -> int | None:
    """The level of the first node from the tenant up that can send; None if a hard limit is in the way."""
    if tenant.mode != MAY_BORROW:
        return 0 if tenant.mode == CAN_SEND else None
    node: GroupNode = tenant.parent
    while node.mode != CAN_SEND:
        parent = node.parent
        assert parent is not None, "the root always can"
        if node.mode == CANT_SEND or parent.closed:
            return None
        node = parent
    return node.level


def _tenants(rotation: Rotation[NodeTurn], number: int, blocked: int) -> Iterator[Tenant]:
    """All tenants below a row in the order of their turns, but those of blocked classes."""
    for turn in rotation.in_order():
        node = turn.owner
        if not node.level:
            yield node
        elif node.mask & ~blocked:
            below = node.ready if number < 8 else node.feeds[number & 7]
            yield from _tenants(below, number, blocked)


def _turns(
    rows: list[Rotation[NodeTurn]], node: GroupNode, lender: int
) -> Iterator[tuple[Rotation[NodeTurn], NodeTurn]]:
    """The turns between classes and groups, from a class up to the lender's row. The root is alone in its row."""
    assert isinstance(node, ClassNode)
    prio = node.prio
    while node.level < lender:
        above = node.parent
        assert above is not None
        yield above.feeds[prio], node.borrow_turns[prio]
        node = above
    if node.parent is not None:
        yield rows[lender * 8 + prio], node.row_turns[prio]


def _rows_in_debt(turn: NodeTurn) -> Iterable[int]:
    """Of tenants that are only in the feed."""
    return () if turn.owner.mode == CAN_SEND else turn.owner.leaf.order(0)


def _owners(rotation: Rotation[NodeTurn]) -> Iterator[Tenant]:
    return (turn.owner for turn in rotation.in_order())


def _nodes(node: GroupNode) -> Iterator[GroupNode]:
    """Parents first."""
    yield node
    for child in node.children:
        yield from _nodes(child)


def _classes(root: GroupNode) -> Iterator[ClassNode]:
    return (node for node in _nodes(root) if isinstance(node, ClassNode))
