"""HTB, plain and slow: straight from the kernel's description and the table of deviations in `scheduling.htb`.

Shares nothing with the fast one but configuration: levels are numbers that are filled before they are looked at, debts
in turns are paid round by round, and whose turn it is is found by looking at everybody. Leaves are first in, first out.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.tree import ClassConfig, TreeConfig, rates


@dataclass
class Level:
    """A bucket as the kernel has it: a level, and the time it was filled last."""

    rate: float
    burst: float
    level: float
    at: float

    def fill(self, now: float) -> float:
        self.level = min(self.burst, self.level + self.rate * (now - self.at))
        self.at = now
        return self.level

    def spend(self, cost: float, now: float) -> None:
        self.level = min(self.burst, self.fill(now) - cost)

    def change(self, rate: float, burst: float, now: float) -> None:
        self.level = min(burst, self.fill(now))
        self.rate, self.burst = rate, burst


@dataclass
class LiteralTurn:
    owner: "LiteralNode"
    quantum: int
    deficit: int = 0
    round: int = 0
    place: int = 0
    active: bool = False


@dataclass
class Ring:
    """Deficit round robin: who was served has the next place in the round in which it has paid."""

    turns: list[LiteralTurn] = field(default_factory=list)
    round: int = 0
    place: int = 0
    places: int = 0

    def next_place(self) -> int:
        self.places += 1
        return self.places

    def passed(self, turn: LiteralTurn) -> bool:
        return (turn.round, turn.place) <= (self.round, self.place)

    def want(self, turn: LiteralTurn, wants: bool) -> bool:
        """Whether that is news."""
        if wants is turn.active:
            return False
        if wants and self.passed(turn):
            turn.round, turn.deficit, turn.place = self.round + 1, turn.quantum, self.next_place()
        if wants and turn not in self.turns:
            self.turns.append(turn)
        turn.active = wants
        return True

    def in_order(self) -> list[LiteralTurn]:
        return sorted((turn for turn in self.turns if turn.active), key=lambda turn: (turn.round, turn.place))

    def serve(self, turn: LiteralTurn, cost: int) -> None:
        for other in self.in_order():
            if (other.round, other.place) < (turn.round, turn.place):
                other.round, other.place = turn.round, self.next_place()
        self.round, self.place = turn.round, turn.place
        turn.deficit -= cost
        if turn.deficit <= 0:
            while turn.deficit <= 0:
                turn.deficit += turn.quantum
                turn.round += 1
            turn.place = self.next_place()

    def adjust(self, turn: LiteralTurn, cost: int) -> None:
        if not turn.active and self.passed(turn):
            if cost <= 0:
                return
            turn.round, turn.deficit, turn.place = self.round + 1, turn.quantum, self.next_place()
        before = turn.round
        turn.deficit -= cost
        while turn.deficit <= 0:
            turn.deficit += turn.quantum
            turn.round += 1
        while turn.deficit > turn.quantum and turn.round > self.round:
            turn.deficit -= turn.quantum
            turn.round -= 1
        if turn.round != before:
            turn.place = self.next_place()


class LiteralNode:
    def __init__(self, config: ClassConfig | None, parent: "LiteralNode | None", level: int) -> None:
        self._config = config
        """The root has none."""
        self.parent = parent
        self.level = level
        self.children: list[LiteralNode] = []
        self.rate = 0.0
        self.own: Level | None = None
        self.ceil: Level | None = None
        self.allowance: Level | None = None
        self.lending: Level | None = None
        self.strict: Level | None = None
        self.lendable = 1.0 if config is None else config.lendable
        self.unassigned = 0.0
        self.mode = "can send"
        self.at_ceil = False
        self.closed = False
        self.queue: deque[int] = deque()
        self.feeds: dict[int, Ring] = {}
        self.row_turns: dict[int, LiteralTurn] = {}
        self.feed_turns: dict[int, LiteralTurn] = {}

    def walk(self) -> "Iterator[LiteralNode]":
        yield self
        for child in self.children:
            yield from child.walk()

    def up(self) -> "Iterator[LiteralNode]":
        node: LiteralNode | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def config(self) -> ClassConfig:
        assert self._config is not None
        return self._config

    @property
    def priority(self) -> PriorityClass | None:
        return None if self._config is None else self._config.priority

    @property
    def is_class(self) -> bool:
        return self.priority is not None

    def backlog(self, prio: int) -> bool:
        if self.is_class:
            return bool(self.queue)
        return any(turn.active for turn in self.feeds[prio].turns)

    def barred(self) -> bool:
        return any(node.at_ceil for node in self.up())

    def busy(self) -> bool:
        return any(node.queue for node in self.walk())


LiteralGrant = tuple[LiteralNode, int, Level | None]


class LiteralHtb:
    """A `Discipline` over one queue a class."""

    def __init__(self, index: Index, config: TreeConfig, now: float) -> None:
        self.index = index
        self.config = config
        self.arrivals: dict[int, int] = {}
        self.rows = {(level, prio): Ring() for level in range(8) for prio in range(8)}
        self.root = LiteralNode(None, None, 7)
        self._build(self.root, config.classes)
        self.classes = {node.priority: node for node in self.root.walk() if node.priority is not None}
        self._set_rates(config.capacity_units_s, now)
        for node in self.root.walk():
            for level in (node.own, node.ceil, node.allowance, node.lending, node.strict):
                if level is not None and level.level >= 0:
                    level.level = level.burst * config.initial_fill

    def _build(self, parent: LiteralNode, configs: tuple[ClassConfig, ...]) -> None:
        for config in configs:
            level = 0 if config.priority is not None else parent.level - 1
            node = LiteralNode(config, parent, level)
            parent.children.append(node)
            self._build(node, config.children)
            prios = {config.prio} if node.is_class else {prio for child in node.children for prio in child.feeds}
            quantum = config.quantum or max(1, round(self.config.quantum * config.weight))
            for prio in sorted(prios):
                node.feeds[prio] = Ring()
                node.row_turns[prio] = LiteralTurn(node, quantum)
                node.feed_turns[prio] = LiteralTurn(node, quantum)
        if parent is self.root:
            for prio in {prio for child in parent.children for prio in child.feeds}:
                parent.feeds[prio] = Ring()
                parent.row_turns[prio] = LiteralTurn(parent, 1)

    # --- rates --------------------------------------------------------------------------------------------------------

    def set_capacity(self, units_s: float, now: float) -> None:
        self._catch_up(now)
        self._set_rates(units_s, now)
        for node in self.root.walk():
            self._update(node, now)

    def _set_rates(self, units_s: float, now: float) -> None:
        self.root.rate = units_s
        for parent in self.root.walk():
            if not parent.children:
                continue
            configs = tuple(child.config for child in parent.children)
            resolved = rates(configs, parent.rate)
            scale = min(1.0, parent.rate / sum(resolved)) if sum(resolved) else 1.0
            for child, rate in zip(parent.children, resolved, strict=True):
                self._set_rate(child, rate * scale, parent.rate, now)
            parent.unassigned = max(0.0, parent.rate - scale * sum(resolved))
            if any(child.lendable < 1 for child in parent.children):
                parent.lending = parent.lending or Level(0.0, 0.0, 0.0, now)
                self._relend(parent, now)

    def _set_rate(self, node: LiteralNode, rate: float, parent_rate: float, now: float) -> None:
        config = node.config
        item = self.config.largest_item
        node.rate = rate
        burst = max(rate * config.burst_s, item)
        node.own = self._level(node.own, rate, burst, now)
        if config.ceil is not None:
            ceil = config.ceil.of(parent_rate)
            node.ceil = self._level(node.ceil, ceil, max(ceil * config.burst_s, item), now)
        limit = config.borrow_limit
        if limit is not None:
            if limit or node.allowance is not None:
                node.allowance = self._level(node.allowance, rate * limit, burst * limit, now)
            else:
                node.allowance = Level(0.0, 0.0, -1.0, now)
        if config.strict_limit is not None:
            strict = config.strict_limit.of(parent_rate)
            node.strict = self._level(node.strict, strict, max(strict * config.strict_burst_s, item), now)

    def _level(self, level: Level | None, rate: float, burst: float, now: float) -> Level:
        if level is None:
            return Level(rate, burst, burst, now)
        level.change(rate, burst, now)
        return level

    def _relend(self, parent: LiteralNode, now: float) -> None:
        assert parent.lending is not None
        lent = parent.unassigned + sum(child.lendable * child.rate for child in parent.children if not child.busy())
        parent.lending.change(lent, max(self.config.largest_item, lent), now)

    # --- modes and links ----------------------------------------------------------------------------------------------

    def _mode(self, node: LiteralNode, now: float) -> str:
        if node.own is None or node.own.fill(now) >= -1e-9:
            return "can send"
        if node.allowance is None or node.allowance.fill(now) >= -1e-9:
            return "may borrow"
        return "can't send"

    def _update(self, node: LiteralNode, now: float) -> None:
        node.mode = self._mode(node, now)
        node.at_ceil = node.ceil is not None and node.ceil.fill(now) < -1e-9
        node.closed = node.lending is not None and node.lending.fill(now) < -1e-9
        self._link()

    def _link(self) -> None:
        """Everybody stands where he should; below first, for it gives those above something to send."""
        moved = True
        while moved:
            moved = False
            for node in reversed(list(self.root.walk())):
                for prio in node.feeds:
                    sends = node.backlog(prio) and not node.barred() and not node.closed
                    wants = sends and node.mode == "can send"
                    moved |= self.rows[node.level, prio].want(node.row_turns[prio], wants)
                    if node.parent is not None:
                        wants = sends and node.mode != "can't send"
                        moved |= node.parent.feeds[prio].want(node.feed_turns[prio], wants)

    def _catch_up(self, now: float) -> None:
        """What time alone has changed since the last call, level by level and in the order in which it came about."""
        for level in range(8):
            due: list[tuple[float, int, LiteralNode]] = []
            for node in self.root.walk():
                if node.level != level:
                    continue
                times = [
                    bucket.at - bucket.level / bucket.rate
                    for bucket in (node.own, node.ceil, node.allowance, node.lending)
                    if bucket is not None and bucket.level < -1e-9 and bucket.rate > 0
                ]
                if times and min(times) <= now:
                    due.append((min(times), len(due), node))
            for _, _, node in sorted(due):
                self._update(node, now)

    # --- a row's way --------------------------------------------------------------------------------------------------

    def push(self, row: int, now: float) -> None:
        self._catch_up(now)
        node = self.classes[self.index.service_of(row)]
        node.queue.append(row)
        self.arrivals[row] = len(self.arrivals)
        self._queue_changed(node, len(node.queue) == 1, now)

    def pop(self, now: float, blocked: int) -> tuple[int, int, LiteralGrant] | None:
        self._catch_up(now)
        found = self._strict(now, blocked) or self._by_turns(blocked)
        if found is None:
            return None
        node, lender, via, served = found
        row = node.queue.popleft()
        cost = self.index.predicted_cost(row)
        for ring, turn in served:
            ring.serve(turn, cost)
        if via is not None:
            via.spend(cost, now)
        self._queue_changed(node, not node.queue, now)
        self._spend(node, lender, cost, now)
        return row, cost, (node, lender, via)

    def _strict(
        self, now: float, blocked: int
    ) -> tuple[LiteralNode, int, Level | None, list[tuple[Ring, LiteralTurn]]] | None:
        for node in self.root.walk():
            if node.strict is None or not node.queue or node.priority is None or blocked >> node.priority & 1:
                continue
            lender = self._lender(node)
            if node.strict.fill(now) >= -1e-9 and lender is not None:
                assert node.own is not None
                owes_little = node.own.fill(now) >= -node.own.burst
                return node, 0 if owes_little else lender, node.strict, []
        return None

    def _lender(self, node: LiteralNode) -> int | None:
        if node.barred():
            return None
        for above in node.up():
            if above.mode == "can send":
                return above.level
            if above.mode == "can't send" or above.parent is None or above.parent.closed:
                return None
        return None

    def _by_turns(self, blocked: int) -> tuple[LiteralNode, int, Level | None, list[tuple[Ring, LiteralTurn]]] | None:
        for level in range(8):
            for prio in range(8):
                for turn in self.rows[level, prio].in_order():
                    served = [] if level == 7 else [(self.rows[level, prio], turn)]
                    found = self._below(turn.owner, prio, blocked)
                    if found is not None:
                        node, path = found
                        return node, level, None, served + path
        return None

    def _below(
        self, node: LiteralNode, prio: int, blocked: int
    ) -> tuple[LiteralNode, list[tuple[Ring, LiteralTurn]]] | None:
        if node.priority is not None:
            return None if blocked >> node.priority & 1 else (node, [])
        for turn in node.feeds[prio].in_order():
            found = self._below(turn.owner, prio, blocked)
            if found is not None:
                return found[0], [(node.feeds[prio], turn), *found[1]]
        return None

    def _queue_changed(self, node: LiteralNode, toggled: bool, now: float) -> None:
        if not toggled:
            return
        self._link()
        for above in node.up():
            if above.lending is not None:
                self._relend(above, now)
                self._update(above, now)

    def _spend(self, node: LiteralNode, lender: int, cost: int, now: float) -> None:
        for above in node.up():
            if above.own is not None and above.level >= lender:
                above.own.spend(cost, now)
                self._update(above, now)
        for above in node.up():
            if above.allowance is not None and above.level < lender:
                above.allowance.spend(cost, now)
            if above.ceil is not None:
                above.ceil.spend(cost, now)
            if above.lending is not None and above.level <= lender:
                above.lending.spend(cost, now)
            self._update(above, now)

    def correct(self, grant: LiteralGrant, cost: int, now: float) -> None:
        self._catch_up(now)
        node, lender, via = grant
        if via is not None:
            via.spend(cost, now)
        else:
            for below, above in pairwise(node.up()):
                if below.level < lender:
                    prio = node.config.prio
                    above.feeds[prio].adjust(below.feed_turns[prio], cost)
                elif below.level == lender:
                    self.rows[lender, node.config.prio].adjust(below.row_turns[node.config.prio], cost)
        self._spend(node, lender, cost, now)

    def end(self, grant: LiteralGrant, cost: int, now: float) -> None:
        if cost:
            self.correct(grant, cost, now)

    def restore(self, row: int, grant: LiteralGrant, cost: int, now: float) -> None:
        self.correct(grant, -cost, now)
        node = grant[0]
        node.queue.append(row)
        node.queue = deque(sorted(node.queue, key=self.arrivals.__getitem__))
        self._queue_changed(node, len(node.queue) == 1, now)

    def remove(self, row: int, now: float) -> None:
        self._catch_up(now)
        node = self.classes[self.index.service_of(row)]
        node.queue.remove(row)
        self._queue_changed(node, not node.queue, now)
