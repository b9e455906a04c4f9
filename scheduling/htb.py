"""Hierarchical token bucket: classes get their rates, and share what is idle by weight.

Knows rows, predicted costs, the class tree and time as an argument. Does not know what is really charged
(`scheduling.accounting`), nor what is inside a class: its leaf orders its requests (`scheduling.tenants`, over
`scheduling.sfq` by default; any discipline may be one).

Algorithm: each node of the tree (root, groups, priority classes) has a token bucket. A node in credit *can send*; one
in debt *may borrow* from the first ancestor in credit, unless a hard limit forbids it. Among nodes that can send the
lowest level goes first (guarantees before borrowing), then the lowest prio, and equals take turns by deficit round
robin. Time moves nodes from debt to credit through queues of wake-ups.

Source: Devera's HTB, the kernel's `net/sched/sch_htb.c`; link sharing is Floyd & Van Jacobson, "Link-sharing and
Resource Management Models for Packet Networks", 1995. Why: guarantees, borrowing, limits and hierarchy in one
mechanism that operators know, with no trade-off weights; each decision has a reason that can be named.

Deviations from the kernel (design page, section 4; from 12 on found while building):

==  ================================================================================================================
 1  Buckets hold what is *available*: prediction counts at dispatch, corrections follow. No debt floor, no horizon.
 2  Deficits move by predicted cost and by corrections; turns in debt are skipped by arithmetic, not by a loop.
 3  `strict_limit`: a class goes before everybody while under it, and is an ordinary class above it. What goes first is
    part of the class's own rate, even in debt (up to a burst): its guarantee is the larger of the two, not the sum.
 4  The root never blocks: rates are soft, so the machine is never idle while something is queued that violates
    only rates. `ceil`, `lendable`, `borrow_limit` are hard.
 5  A parent's lending fills with unassigned rate + Σ lendable × idle rate; each borrow debits it and the borrower's
    allowance.
 6  Tenants appear from a template and share what their class gets by weight among those that want it, by turns and not
    by buckets (`scheduling.tenants` says why); debt outlives retirement.
 7  SFQ leaves with an exact map of flows, debts that outlive an emptied flow, and an order inside a flow.
 9  `max_wait_s`: a class's oldest row goes right after strict, within `promote_share` of the capacity, and as part of
    the class's own rate, like what is strict.
11  Buckets start half full: what they held before a restart is unknown.
12  Turns are hierarchical: at each node its children take turns, by its children's quanta; a class's share doesn't
    grow with the number of what is below it. A node has one deficit for its own rate, and one for all it borrows.
13  A ceil holds for everybody below it, also for those who are under their own rate.
14  A node in credit stays in its parent's feed (`scheduling.htb_links`).
==  ================================================================================================================

(8, the prefix look, is the leaf's; 10, the ledger, `scheduling.accounting`'s.)

Drawbacks: a dozen parameters; it shapes by predicted cost, so shares are right over seconds, not per request. Limits:
8 levels; O(log classes + log tenants + log flows) a decision.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from scheduling.ages import Ages
from scheduling.htb_buckets import Buckets, hard_event
from scheduling.htb_build import MakeLeaf, build_tree, fill_buckets, nodes_of, set_lending, set_rates
from scheduling.htb_links import PRIOS, Links, classes_below, lender_of, lender_out_of_turn, turns_up
from scheduling.htb_node import CAN_SEND, CANT_SEND, ClassNode, GroupNode
from scheduling.htb_reload import Debts, check_reload, rebuild_tree, restore_turns, turn_debts
from scheduling.htb_statistics import lender_name, tree_statistics
from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.tenants import Tenants
from scheduling.token_bucket import TokenBucket
from scheduling.tree import TreeConfig
from scheduling.tree_statistics import TreeStatistics

__all__ = ["Htb", "HtbGrant"]

HtbGrant = tuple[ClassNode, int, TokenBucket | None, Any]
"""Class, level of the lender, the bucket that let it go out of turn (strict limit, promotion), the leaf's own grant."""


class Htb:
    """Implements `scheduling.discipline.Discipline[HtbGrant]`."""

    def __init__(self, index: Index, config: TreeConfig, make_leaf: MakeLeaf, now: float = 0.0) -> None:
        """`now`: the start, on the clock of all later calls."""
        self._index = index
        self._config = config
        self._make_leaf = make_leaf
        self._service = index.service
        self._ages = Ages(index)
        self._promotion = TokenBucket(0.0, 0.0, 0.0, now)
        """What overdue rows may still take out of turn."""
        self._adopt(build_tree(config, make_leaf, now), now)
        fill_buckets(self._root, config.initial_fill, now)
        # What `_find` and `_search` found, beside the class.
        self._lender = 0
        self._via: TokenBucket | None = None
        self._overdue: int | None = None
        """The row, where it is not the leaf's choice."""
        self._searched = False

    def _adopt(self, root: GroupNode, now: float, debts: Debts | None = None) -> None:
        """A tree, new or rebuilt, with what is queued in its leaves."""
        config = self._config
        self._root = root
        self._links = Links()
        restore_turns(debts or {}, root, self._links)
        self._lends = any(child.lendable < 1 for child in config.walk())
        limited = self._lends or any(child.ceil or child.borrow_limit is not None for child in config.walk())
        self._buckets = Buckets(self._links, {node.level for node in nodes_of(root)}, hard=limited)
        self._leaves = [node for node in nodes_of(root) if isinstance(node, ClassNode)]
        self._class_of: dict[int, ClassNode] = {}
        for node in self._leaves:
            self._class_of[node.priority] = node
            self._ages.limit(node.priority, config.of(node.priority).max_wait_s, node.leaf.rows())
        for group in reversed(list(nodes_of(root))):
            if group.children:
                group.queued = int(any(child.queued for child in group.children))
        self._ageing = [node for node in self._leaves if config.of(node.priority).max_wait_s is not None]
        self._set_rates(config.capacity_units_s if root.rate <= 0 else root.rate, now)
        self._strict = [(node, node.strict) for node in self._leaves if node.strict is not None]

    # --- a row's way ----------------------------------------------------------------------------------------------

    def push(self, row: int, now: float) -> None:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        try:
            node = self._class_of[self._service[row]]
        except KeyError:
            label = PriorityClass(self._service[row]).label
            raise AssertionError(f"no class of the tree serves {label}") from None
        node.leaf.push(row, now)
        if self._ageing:
            self._ages.add(node.priority, row)
        node.queued += 1
        if node.queued == 1:
            self._backlog_changed(node, now)

    def pick(self, now: float, blocked: int) -> int | None:
        node = self._find(now, blocked)
        row = None if node is None else self._row_of(node, now)
        if row is None and node is not None:
            node = self._search(now, blocked)
            row = None if node is None else self._row_of(node, now)
        return row

    def pick_strict(self, now: float, blocked: int) -> int | None:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        for node, strict in self._strict:
            if node.queued and not node.mask & blocked and strict.zero <= now and lender_of(node) is not None:
                row: int | None = node.leaf.pick(now, 0)
                if row is not None:
                    return row
        return None

    def pop(self, now: float, blocked: int) -> tuple[int, int, HtbGrant] | None:
        node = self._find(now, blocked)
        if node is None:
            return None
        popped = node.leaf.pop(now, 0) if self._overdue is None else self._pop_overdue(node, now)
        if popped is None:
            node = self._search(now, blocked)
            if node is None:
                return None
            popped = node.leaf.pop(now, 0) if self._overdue is None else self._pop_overdue(node, now)
            assert popped is not None, "it had a row a moment ago"
        row, cost, leaf_grant = popped
        lender, via = self._lender, self._via
        if via is not None:
            via.spend(cost, now)
        elif lender or self._searched:
            for rotation, turn in turns_up(self._links.rows, node, lender):
                rotation.serve_past(turn, cost)
        else:
            self._links.rows[node.prio].serve(node.row_turn, cost)
        if self._ageing:
            self._ages.remove(node.priority, row)
        node.queued -= 1
        if not node.queued:
            self._backlog_changed(node, now)
        self._buckets.spend(node, lender, cost, now)
        if lender:
            node.borrowed[lender] += cost
        return row, cost, (node, lender, via, leaf_grant)

    def take(self, row: int, cost: int, now: float) -> HtbGrant:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        node = self._class_of[self._service[row]]
        allowed = lender_of(node)
        lender = self._root.level if allowed is None else allowed
        leaf_grant = node.leaf.take(row, cost, now)
        self._adjust(node, lender, None, cost)
        self._ages.remove(node.priority, row)
        node.queued -= 1
        if not node.queued:
            self._backlog_changed(node, now)
        self._spend(node, lender, None, cost, now)
        return node, lender, None, leaf_grant

    def correct(self, grant: HtbGrant, cost: int, now: float) -> None:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        node, lender, via, leaf_grant = grant
        self._adjust(node, lender, via, cost)
        self._spend(node, lender, via, cost, now)
        node.leaf.correct(leaf_grant, cost, now)

    def end(self, grant: HtbGrant, cost: int, now: float) -> None:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        node, lender, via, leaf_grant = grant
        if cost:
            self._adjust(node, lender, via, cost)
            self._spend(node, lender, via, cost, now)
        node.leaf.end(leaf_grant, cost, now)

    def restore(self, row: int, grant: HtbGrant, cost: int, now: float) -> None:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        node, lender, via, leaf_grant = grant
        self._adjust(node, lender, via, -cost)
        self._spend(node, lender, via, -cost, now)
        node.leaf.restore(row, leaf_grant, cost, now)
        self._ages.restore(node.priority, row)
        node.queued += 1
        if node.queued == 1:
            self._backlog_changed(node, now)

    def remove(self, row: int, now: float) -> None:
        if now >= self._buckets.due:
            self._buckets.fire(now)
        node = self._class_of[self._service[row]]
        node.leaf.remove(row, now)
        self._ages.remove(node.priority, row)
        node.queued -= 1
        if not node.queued:
            self._backlog_changed(node, now)

    # --- looking --------------------------------------------------------------------------------------------------

    def order(self, skip: int) -> Iterator[int]:
        """Strict classes first, then classes by quantum."""
        for node, _ in self._strict:
            if not node.mask & skip:
                yield from node.leaf.order(0)
        streams = [
            (node.row_turn.quantum, node.leaf.order(0))
            for node in self._leaves
            if node.strict is None and not node.mask & skip
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

    def rows(self) -> Iterator[int]:
        return chain.from_iterable(node.leaf.rows() for node in self._leaves)

    def next_event(self, now: float) -> float | None:
        at = hard_event(self._leaves, now)
        return None if at is None else max(at, now)

    def over_rate(self, priority: PriorityClass, now: float) -> bool:
        node = self._class_of.get(priority)
        return node is not None and not node.bucket.solvent(now)

    def borrowed_cost(self, priority: PriorityClass) -> int:
        node = self._class_of.get(priority)
        return 0 if node is None else sum(node.borrowed)

    def reason(self, grant: HtbGrant) -> str:
        node, lender, via, _ = grant
        if via is not None:
            return "promoted, for it waited too long" if via is self._promotion else "strict"
        return f"borrowed from {lender_name(node, lender)}" if lender else "own rate"

    def tree(self, now: float) -> TreeStatistics:
        return tree_statistics(self._root, now)

    def set_capacity(self, units_s: float, now: float) -> None:
        """The machine does so many cost units a second: shares mean that from now on. What is saved or owed stays."""
        if now >= self._buckets.due:
            self._buckets.fire(now)
        self._set_rates(units_s, now)

    def reload(self, config: TreeConfig, now: float) -> None:
        """Go on under a new tree, with all that is queued, in flight, saved and owed. Raises `TreeError`."""
        check_reload(self._root, config)
        if now >= self._buckets.due:
            self._buckets.fire(now)
        debts = turn_debts(self._root, self._links)
        self._config = config
        self._adopt(rebuild_tree(self._root, config, self._make_leaf, now), now, debts)
        for node in self._leaves:
            if isinstance(node.leaf, Tenants):
                tenants = config.of(node.priority).tenants
                node.leaf.reconfigure(tenants)

    def _set_rates(self, units_s: float, now: float) -> None:
        config = self._config
        set_rates(self._root, config, units_s, now)
        promoted = config.promote_share * units_s
        self._promotion.configure(promoted, config.largest_item if promoted else 0.0, now)
        for node in nodes_of(self._root):
            self._links.refresh_all(node)
            self._buckets.update(node, now)

    def close(self) -> None:
        assert not len(self), "rows are queued"
        for node in self._leaves:
            node.leaf.close()

    def check_integrity(self) -> None:
        self._links.check_integrity()
        self._ages.check_integrity()
        for node in nodes_of(self._root):
            for prio, feed in node.feeds.items():
                feed.check_integrity()
                sends = node.has_backlog(prio) and not node.barred and not node.closed
                assert node.row_turns[prio].active is (sends and node.mode == CAN_SEND), f"{node.name} stands wrong"
                if node.parent is not None:
                    assert node.borrow_turns[prio].active is (sends and node.mode != CANT_SEND), f"{node.name}"
            assert node.barred == int(node.at_ceil) + (node.parent.barred if node.parent is not None else 0)
            if self._lends and node.children:
                assert bool(node.queued) is any(child.queued for child in node.children), f"{node.name} idle or not?"
        for leaf in self._leaves:
            assert len(leaf.leaf) == leaf.queued, f"class {leaf.name}: {len(leaf.leaf)=}, {leaf.queued=}"
            leaf.leaf.check_integrity()

    def __len__(self) -> int:
        return sum(node.queued for node in self._leaves)

    # --- whose turn -----------------------------------------------------------------------------------------------

    def _find(self, now: float, blocked: int) -> ClassNode | None:
        """Whose turn it is, if its leaf lets a row go. Sets what stands at the end of `__init__`."""
        buckets = self._buckets
        if now >= buckets.due:
            buckets.fire(now)
        if blocked:
            return self._search(now, blocked)
        self._searched = False
        self._overdue = None
        for node, strict in self._strict:
            if node.queued and strict.zero <= now:
                lender = 0 if node.mode == CAN_SEND and not node.barred else lender_out_of_turn(node, now)
                if lender is not None:
                    self._lender = lender
                    self._via = strict
                    return node
        if self._ageing:
            overdue = self._find_overdue(now, blocked)
            if overdue is not None:
                return overdue
        self._via = None
        mask = self._links.mask
        if not mask:
            return None
        number = (mask & -mask).bit_length() - 1
        self._lender = number // PRIOS
        turn = self._links.rows[number].front()
        assert turn is not None
        above = turn.owner
        prio = number % PRIOS
        while above.level:
            turn = above.feeds[prio].front()
            assert turn is not None
            above = turn.owner
        assert isinstance(above, ClassNode)
        return above

    def _find_overdue(self, now: float, blocked: int) -> ClassNode | None:
        """The class of a row that has waited too long, while promotion has something left. Sets `_overdue` too."""
        if not self._promotion.solvent(now):
            return None
        for node in self._ageing:
            if not node.queued or node.mask & blocked:
                continue
            row = self._ages.overdue(node.priority, now)
            lender = None if row is None else lender_out_of_turn(node, now)
            if lender is not None:
                self._lender = lender
                self._via = self._promotion
                self._overdue = row
                return node
        return None

    def _search(self, now: float, blocked: int) -> ClassNode | None:
        """As `_find`, where turns are passed over: classes are blocked, or leaves let nothing go."""
        self._searched = True
        self._overdue = None
        for node, strict in self._strict:
            if node.queued and not node.mask & blocked and strict.zero <= now:
                lender = lender_out_of_turn(node, now)
                if lender is not None and node.leaf.pick(now, 0) is not None:
                    self._lender = lender
                    self._via = strict
                    return node
        if self._ageing:
            overdue = self._find_overdue(now, blocked)
            if overdue is not None:
                return overdue
        self._via = None
        mask = self._links.mask
        while mask:
            number = (mask & -mask).bit_length() - 1
            self._lender = number // PRIOS
            for node in classes_below(self._links.rows[number], number % PRIOS, blocked):
                if node.leaf.pick(now, 0) is not None:
                    return node
            mask &= mask - 1
        return None

    def _row_of(self, node: ClassNode, now: float) -> int | None:
        """The row that would be popped."""
        return node.leaf.pick(now, 0) if self._overdue is None else self._overdue

    def _pop_overdue(self, node: ClassNode, now: float) -> tuple[int, int, Any]:
        """Out of its class's order."""
        row = self._overdue
        assert row is not None
        cost = self._index.predicted_cost(row)
        return row, cost, node.leaf.take(row, cost, now)

    # --- turns and buckets ----------------------------------------------------------------------------------------

    def _adjust(self, node: ClassNode, lender: int, via: TokenBucket | None, cost: int) -> None:
        """The turns that were served then cost more or less. Who went out of turn took none."""
        if via is not None or node.heir is not None:
            return
        for rotation, turn in turns_up(self._links.rows, node, lender):
            rotation.adjust(turn, cost)

    def _spend(self, node: ClassNode, lender: int, via: TokenBucket | None, cost: int, now: float) -> None:
        self._buckets.spend(node if node.heir is None else node.heir, lender, cost, now)
        if via is not None:
            via.spend(cost, now)
        if lender:
            node.borrowed[lender] += cost

    def _backlog_changed(self, node: ClassNode, now: float) -> None:
        """A class became idle or busy, and with it perhaps groups: what their parents may lend changes too."""
        self._links.refresh(node, node.prio)
        if not self._lends:
            return
        child: GroupNode = node
        while child.parent is not None:
            parent = child.parent
            if parent.lending is not None:
                set_lending(parent, self._config.largest_item, now)
                self._buckets.update(parent, now)
            busy = int(any(below.queued for below in parent.children))
            if busy == parent.queued:
                break
            parent.queued = busy
            child = parent
