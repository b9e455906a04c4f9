"""Stochastic fairness queueing: a tenant's flows take turns.

Knows rows, flows and predicted costs. Does not know tenants, classes, rates or time beyond the half-life of debts.

Algorithm: each flow has a queue; flows take turns by deficit round robin (`scheduling.rotation`), one quantum a
round, overdrawing by one request at most. A correction of a request's cost moves its flow's deficit, so a flow pays
for what it used, not for what was predicted. Among the flows that are due in the same round, a bounded look prefers the
one whose next request finds most of its prompt in the prefix cache (deficit longest prefix match: Cao et al.,
"Locality-aware Fair Scheduling in LLM Serving", 2025): that costs fairness nothing, for all of them are served before
the next round begins.

Source: McKenney, "Stochastic Fairness Queueing", INFOCOM 1990; the kernel's `sch_sfq.c`. Why: one user's, session's or
job's ten thousand requests must not stand before another's first; nobody configures flows.

Deviations from the kernel's: an exact map of flows instead of 1,024 hashed slots (thousands of flows are cheaper in a
dictionary than collisions are to explain); beyond `exact_flows`, flows share hashed queues, salted anew every
`perturb_s`, and a perturbation keeps order and debt; nothing is dropped (bounds are upstream); a flow's debt outlives
its emptying, with a half-life, or one huge request at a time would escape fairness.

Drawbacks: fairness is per flow, so who opens more flows gets more; tenants, not flows, are the unit that pays. Flows
that share a hashed queue share its turn. Limits: O(log flows) a decision; a flow costs about 300 bytes while it has
requests or owes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from scheduling.index import Index
from scheduling.keyed_rows import KeyedRows
from scheduling.priority import PriorityClass
from scheduling.rotation import Rotation, Turn, interleave
from scheduling.row_list import NO_ROW, RowLinks
from scheduling.tree import FlowOrder, LeafConfig, TreeConfig
from scheduling.tree_statistics import TreeStatistics

__all__ = ["Flow", "FlowRows", "Sfq"]

_FORGOTTEN_AFTER = 16
"""Half-lives after which a debt is nothing."""
_DECAYS_FROM = 1 / 16
"""Half-lives below which a debt is taken as it is."""
_MASK = 2**64 - 1
_URGENT = 2**32
"""More than any prompt has tokens."""
_MAX_RESTING = 65_536
"""Empty flows remembered for their debt, at most; the oldest is forgiven."""


class Flow:
    """One flow's queue; it is the `Grant` of its requests."""

    __slots__ = ("count", "emptied_at", "hashed", "head", "heap", "in_flight", "number", "resting", "tail", "turn")

    def __init__(self, number: int, quantum: int) -> None:
        self.turn: Turn[Flow] = Turn(self, quantum)
        self.number = number
        """In the index."""
        self.head = NO_ROW
        self.tail = NO_ROW
        self.count = 0
        self.in_flight = 0
        self.emptied_at = 0.0
        self.hashed = False
        """Several flows share it; `number` is the slot's then."""
        self.resting = False
        """It is in the list of flows that may be forgotten."""
        self.heap: list[tuple[float, int, int]]
        """Only where rows are ordered by a key."""


class FlowRows:
    """The order of rows within flows, shared by all leaves that order them alike."""

    __slots__ = ("keyed", "linked")

    def __init__(self, index: Index, order: FlowOrder) -> None:
        self.linked = RowLinks() if order is FlowOrder.FIFO else None
        self.keyed: KeyedRows | None = None
        if order is FlowOrder.EDF:
            self.keyed = KeyedRows(lambda row: index.ttft_deadline_s[row])
        elif order is FlowOrder.SJF:
            self.keyed = KeyedRows(lambda row: float(index.predicted_cost(row)))

    @property
    def queues(self) -> RowLinks | KeyedRows:
        queues = self.linked or self.keyed
        assert queues is not None
        return queues


class HashedQueues:
    """Queues that flows share by a salted hash; the salt is a sequence, so that a run can be repeated."""

    def __init__(self, config: LeafConfig, new_flow: Callable[[int], Flow], now: float) -> None:
        self._config = config
        self._new_flow = new_flow
        self._slots: dict[int, Flow] = {}
        self._salt = 1
        self.perturb_at = now + config.perturb_s

    def queue_of(self, number: int) -> Flow:
        mixed = (number + self._salt) * 0x9E3779B97F4A7C15 & _MASK
        slot = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 % _MASK % self._config.hashed_queues
        flow = self._slots.get(slot)
        if flow is None:
            flow = self._slots[slot] = self._new_flow(slot)
            flow.hashed = True
        return flow

    def queues(self) -> Iterable[Flow]:
        return self._slots.values()

    def holds_rows(self) -> bool:
        return any(flow.count for flow in self._slots.values())

    def perturb(self, now: float) -> None:
        """Another salt, and empty queues. Those of before live on as the grants of what is in flight."""
        self._salt = self._salt * 6364136223846793005 + 1442695040888963407 & _MASK
        self._slots = {}
        self.perturb_at = now + self._config.perturb_s


class Sfq:
    """Implements `scheduling.discipline.Discipline[Flow]`."""

    __slots__ = (
        "_config",
        "_flow_of",
        "_flows",
        "_hashed",
        "_index",
        "_output_cost",
        "_prompt_cost",
        "_resting",
        "_rotation",
        "_rows",
    )

    def __init__(self, index: Index, config: LeafConfig, rows: FlowRows) -> None:
        self._index = index
        self._config = config
        self._flow_of = index.flow
        self._prompt_cost = index.prompt_cost
        self._output_cost = index.output_cost
        self._rows = rows.queues
        self._rotation: Rotation[Flow] = Rotation()
        self._flows: dict[int, Flow] = {}
        self._hashed: HashedQueues | None = None
        """Made when there are more than `exact_flows`."""
        self._resting: deque[Flow] | None = None
        """Empty flows, longest empty first; made when the first one is, for most leaves are small."""

    def push(self, row: int, now: float) -> None:
        number = self._flow_of[row]
        try:
            flow = self._flows[number]
        except KeyError:
            flow = self._admit(number, now)
        self._rows.append(flow, row)
        if flow.count == 1:
            self._wake(flow, now)

    def pick(self, now: float, blocked: int) -> int | None:
        turn = self._rotation.front()
        if turn is not None and self._index.cached_rows and self._config.prefix_look > 1:
            turn = self._best_cached(now)
        return None if turn is None else turn.owner.head

    def pick_strict(self, now: float, blocked: int) -> int | None:
        return None

    def pop(self, now: float, blocked: int) -> tuple[int, int, Flow] | None:
        rotation = self._rotation
        turn = rotation.front()
        if turn is None:
            return None
        if self._index.cached_rows and self._config.prefix_look > 1:
            turn = self._best_cached(now)
            assert turn is not None, "somebody is the front"
            rotation.bring_forward(turn)
        flow = turn.owner
        row = flow.head
        cost = self._prompt_cost[row] + self._output_cost[row]
        self._rows.pop(flow)
        flow.in_flight += 1
        if flow.count:
            rotation.serve(turn, cost)
        else:
            rotation.serve_last(turn, cost)
            flow.emptied_at = now
        return row, cost, flow

    def _best_cached(self, now: float) -> Turn[Flow] | None:
        """Of the flows due now, the one with the longest prefix hit; where some are urgent, of those."""
        cached, deadline_s = self._index.cached_tokens, self._index.ttft_deadline_s
        urgent_s = now + self._config.urgent_slack_s

        def score(flow: Flow) -> float:
            urgent = deadline_s[flow.head] < urgent_s
            return cached[flow.head] + (_URGENT if urgent else 0)

        return self._rotation.best_of_round(self._config.prefix_look, score)

    def take(self, row: int, cost: int, now: float) -> Flow:
        flow = self._queue_of(self._flow_of[row])
        self._rotation.adjust(flow.turn, cost)
        self._rows.remove(flow, row)
        flow.in_flight += 1
        if not flow.count:
            self._rotation.leave(flow.turn)
            flow.emptied_at = now
        return flow

    def correct(self, grant: Flow, cost: int, now: float) -> None:
        self._rotation.adjust(grant.turn, cost)

    def end(self, grant: Flow, cost: int, now: float) -> None:
        if cost:
            self._rotation.adjust(grant.turn, cost)
        grant.in_flight -= 1
        if not grant.count and not grant.in_flight:
            self._rest(grant, now)

    def restore(self, row: int, grant: Flow, cost: int, now: float) -> None:
        self._rotation.adjust(grant.turn, -cost)
        grant.in_flight -= 1
        # A perturbation may have given its flow another queue meanwhile.
        flow = self._queue_of(self._flow_of[row]) if grant.hashed else grant
        self._rows.restore(flow, row)
        if flow.count == 1:
            self._wake(flow, now)

    def remove(self, row: int, now: float) -> None:
        flow = self._queue_of(self._flow_of[row])
        self._rows.remove(flow, row)
        if not flow.count:
            self._rotation.leave(flow.turn)
            flow.emptied_at = now
            if not flow.in_flight:
                self._rest(flow, now)

    def order(self, skip: int) -> Iterator[int]:
        return interleave(self._rotation, self._rows.rows, self._index.predicted_cost)

    def rows(self) -> Iterator[int]:
        return chain.from_iterable(self._rows.rows(flow) for flow in self._queues())

    def next_event(self, now: float) -> float | None:
        return None

    def set_capacity(self, units_s: float, now: float) -> None:
        """No rate is a share of anything."""

    def reload(self, config: TreeConfig, now: float) -> None:
        """There is no tree."""

    def close(self) -> None:
        assert not len(self), "rows are queued"
        self._hashed = None
        for flow in list(self._flows.values()):
            assert not flow.in_flight, f"flow {flow.number} has rows in flight"
            self._forget(flow)
        self._resting = None

    def over_rate(self, priority: PriorityClass, now: float) -> bool:
        return False

    def borrowed_cost(self, priority: PriorityClass) -> int:
        return 0

    def reason(self, grant: object) -> str:
        return "turn"

    def tree(self, now: float) -> TreeStatistics | None:
        return None

    def check_integrity(self) -> None:
        self._rotation.check_integrity()
        for flow in self._queues():
            number = flow.number
            assert flow.turn.active is (flow.count > 0), f"flow {number} has {flow.count} rows, {flow.turn.active=}"
            self._rows.check_integrity(flow)
            for row in self._rows.rows(flow):
                assert self._queue_of(self._flow_of[row]) is flow, f"row {row} is in the queue of flow {number}"
        for number, flow in self._flows.items():
            assert flow.number == number
            assert flow.count or flow.in_flight or flow.resting, f"flow {number} would never be forgotten"

    def __len__(self) -> int:
        """Linear in the flows: who holds a leaf counts its rows anyway."""
        return sum(flow.count for flow in self._queues())

    # --- flows ----------------------------------------------------------------------------------------------------

    def _queues(self) -> Iterator[Flow]:
        return chain(self._flows.values(), self._hashed.queues() if self._hashed is not None else ())

    def _queue_of(self, number: int) -> Flow:
        """The queue in which a flow's rows are, or belong."""
        flow = self._flows.get(number)
        if flow is None:
            assert self._hashed is not None, f"flow {number} has no queue"
            return self._hashed.queue_of(number)
        return flow

    def _admit(self, number: int, now: float) -> Flow:
        """A queue for a flow that has none of its own: a new one, or beyond `exact_flows` a hashed one.

        While hashed queues hold rows nobody gets a queue of his own: a flow has rows in one queue only.
        """
        if len(self._flows) >= self._config.exact_flows or (self._hashed is not None and self._hashed.holds_rows()):
            if self._hashed is None:
                self._hashed = HashedQueues(self._config, self._new_flow, now)
            if now >= self._hashed.perturb_at:
                self._perturb(now)
            return self._hashed.queue_of(number)
        flow = self._flows[number] = self._new_flow(number)
        # The number must mean this flow for as long as its debt is remembered.
        self._index.flows.hold(number)
        return flow

    def _new_flow(self, number: int) -> Flow:
        flow = Flow(number, self._config.quantum)
        if self._config.order is not FlowOrder.FIFO:
            flow.heap = []
        return flow

    def _perturb(self, now: float) -> None:
        """Hash anew. Rows keep their order, and a new queue owes as much as the worst of those its rows come from."""
        assert self._hashed is not None
        rotation, rows = self._rotation, self._rows
        moving: list[tuple[int, int, int]] = []
        for flow in self._hashed.queues():
            debt = rotation.debt(flow.turn)
            queued = list(rows.rows(flow))
            moving.extend((rows.number[row], row, debt) for row in queued)
            for row in queued:
                rows.remove(flow, row)
            if queued:
                rotation.leave(flow.turn)
        self._hashed.perturb(now)
        moving.sort()
        owes: dict[Flow, int] = {}
        for _, row, debt in moving:
            flow = self._hashed.queue_of(self._flow_of[row])
            rows.relist(flow, row)
            owes[flow] = max(debt, owes.get(flow, 0))
        for flow, debt in owes.items():
            rotation.adjust(flow.turn, debt)
            rotation.join(flow.turn)

    def _wake(self, flow: Flow, now: float) -> None:
        """A flow has its first row (again)."""
        half_lives = (now - flow.emptied_at) / self._config.debt_half_life_s
        if half_lives > _DECAYS_FROM and not self._rotation.passed(flow.turn):
            self._rotation.forgive(flow.turn, 0.5**half_lives)
        self._rotation.join(flow.turn)

    def _rest(self, flow: Flow, now: float) -> None:
        """A flow has nothing queued and nothing in flight. Forgets two that owe nothing: their number stays bounded."""
        if flow.hashed:
            return
        if self._resting is None:
            self._resting = deque()
        resting = self._resting
        if not flow.resting:
            flow.resting = True
            resting.append(flow)
        for _ in range(min(2, len(resting))):
            oldest = resting.popleft()
            if oldest.count or oldest.in_flight:
                oldest.resting = False
                continue
            age = (now - oldest.emptied_at) / self._config.debt_half_life_s
            owes = self._rotation.debt(oldest.turn) > 0 and age < _FORGOTTEN_AFTER
            if owes and len(resting) < _MAX_RESTING:
                resting.append(oldest)
            else:
                self._forget(oldest)

    def _forget(self, flow: Flow) -> None:
        del self._flows[flow.number]
        self._index.flows.drop(flow.number)
