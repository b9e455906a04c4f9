"""A class's tenants: they share what the class gets, by weight; a leaf of each one's own orders its requests.

Knows tenants, their weights and predicted costs. Does not know other classes, rates or time.

Algorithm: tenants that have something queued take turns by deficit round robin (`scheduling.rotation`) with a quantum
by weight. What a request turns out to cost more or less moves its tenant's turn.

Source: Shreedhar & Varghese, as in `scheduling.rotation`; the weights and the template are those of tc's classes. Why
turns, and not a token bucket a tenant as for classes: a tenant is to have its part of whatever its class gets, its own
rate or borrowed, at any moment. Buckets would guarantee a part of the class's *rate* only, make rates depend on who is
active, let a class of many tenants, each with a burst, overrun its own rate, and cost twice the time. With turns, two
tenants that both want service never differ by more than quantum + largest item, whatever the class gets; and one that
asks for less than its part waits for a turn of each other at most.

Drawbacks: no credit for having been idle. Limits: O(log tenants) a decision; about 1,000 bytes a tenant with its leaf.

Debt outlives idleness: a tenant is forgotten only when it owes nothing, or when more than `_MAX_RESTING` are idle.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from math import inf
from typing import Any

from scheduling.discipline import Discipline
from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.rotation import Rotation, Turn, interleave
from scheduling.tree import LeafConfig, TenantsConfig, TreeConfig
from scheduling.tree_statistics import TreeStatistics

__all__ = ["Tenant", "TenantGrant", "Tenants"]

_MAX_RESTING = 10_000
"""Idle tenants remembered for their debts, at most; the one idle longest starts afresh."""


class Tenant:
    """One tenant's queue and standing."""

    __slots__ = ("in_flight", "leaf", "number", "queued", "turn")

    def __init__(self, number: int, quantum: int, leaf: Discipline[Any]) -> None:
        self.number = number
        """In the index; held for as long as this lives."""
        self.leaf = leaf
        self.turn: Turn[Tenant] = Turn(self, quantum)
        self.queued = 0
        self.in_flight = 0


TenantGrant = tuple[Tenant, Any]
"""Tenant, and its leaf's own grant."""


class Tenants:
    """Implements `scheduling.discipline.Discipline[TenantGrant]`."""

    def __init__(self, index: Index, config: TenantsConfig, make_leaf: Callable[[LeafConfig], Discipline[Any]]) -> None:
        """`make_leaf`: a new tenant's queue."""
        self._index = index
        self._tenant_of = index.tenant
        self._config = config
        self._make_leaf = make_leaf
        self._tenants: dict[int, Tenant] = {}
        self._rotation: Rotation[Tenant] = Rotation()
        self._resting: OrderedDict[Tenant, None] = OrderedDict()
        """Tenants with nothing queued or in flight, longest first."""

    # --- a row's way ----------------------------------------------------------------------------------------------

    def push(self, row: int, now: float) -> None:
        number = self._tenant_of[row]
        try:
            tenant = self._tenants[number]
        except KeyError:
            tenant = self._admit(number)
        tenant.leaf.push(row, now)
        tenant.queued += 1
        if tenant.queued == 1:
            self._wake(tenant)

    def pick(self, now: float, blocked: int) -> int | None:
        for turn in self._rotation.in_order():
            row: int | None = turn.owner.leaf.pick(now, 0)
            if row is not None:
                return row
        return None

    def pick_strict(self, now: float, blocked: int) -> int | None:
        return None

    def pop(self, now: float, blocked: int) -> tuple[int, int, TenantGrant] | None:
        rotation = self._rotation
        turn = rotation.front()
        if turn is None:
            return None
        tenant = turn.owner
        popped = tenant.leaf.pop(now, 0)
        if popped is None:
            return self._pop_past(now)
        row, cost, leaf_grant = popped
        tenant.in_flight += 1
        tenant.queued -= 1
        if tenant.queued:
            rotation.serve(turn, cost)
        else:
            rotation.serve_last(turn, cost)
        return row, cost, (tenant, leaf_grant)

    def take(self, row: int, cost: int, now: float) -> TenantGrant:
        tenant = self._tenants[self._tenant_of[row]]
        leaf_grant = tenant.leaf.take(row, cost, now)
        self._rotation.adjust(tenant.turn, cost)
        tenant.in_flight += 1
        tenant.queued -= 1
        if not tenant.queued:
            self._rotation.leave(tenant.turn)
        return tenant, leaf_grant

    def correct(self, grant: TenantGrant, cost: int, now: float) -> None:
        tenant, leaf_grant = grant
        self._rotation.adjust(tenant.turn, cost)
        tenant.leaf.correct(leaf_grant, cost, now)

    def end(self, grant: TenantGrant, cost: int, now: float) -> None:
        tenant, leaf_grant = grant
        if cost:
            self._rotation.adjust(tenant.turn, cost)
        tenant.leaf.end(leaf_grant, cost, now)
        tenant.in_flight -= 1
        if not tenant.in_flight and not tenant.queued:
            self._rest(tenant)

    def restore(self, row: int, grant: TenantGrant, cost: int, now: float) -> None:
        tenant, leaf_grant = grant
        self._rotation.adjust(tenant.turn, -cost)
        tenant.leaf.restore(row, leaf_grant, cost, now)
        tenant.in_flight -= 1
        tenant.queued += 1
        if tenant.queued == 1:
            self._wake(tenant)

    def remove(self, row: int, now: float) -> None:
        tenant = self._tenants[self._tenant_of[row]]
        tenant.leaf.remove(row, now)
        tenant.queued -= 1
        if not tenant.queued:
            self._rotation.leave(tenant.turn)
            if not tenant.in_flight:
                self._rest(tenant)

    # --- looking --------------------------------------------------------------------------------------------------

    def order(self, skip: int) -> Iterator[int]:
        return interleave(self._rotation, lambda tenant: tenant.leaf.order(0), self._index.predicted_cost)

    def rows(self) -> Iterator[int]:
        return chain.from_iterable(tenant.leaf.rows() for tenant in self._tenants.values())

    def next_event(self, now: float) -> float | None:
        """What the leaves say: tenants themselves are never blocked."""
        due = inf
        for turn in self._rotation.in_order():
            inside = turn.owner.leaf.next_event(now)
            if inside is not None:
                due = min(due, inside)
        return due if due < inf else None

    def over_rate(self, priority: PriorityClass, now: float) -> bool:
        return False

    def borrowed_cost(self, priority: PriorityClass) -> int:
        return 0

    def reason(self, grant: object) -> str:
        return "turn"

    def tree(self, now: float) -> TreeStatistics | None:
        return None

    def set_capacity(self, units_s: float, now: float) -> None:
        """Tenants share whatever there is."""

    def reload(self, config: TreeConfig, now: float) -> None:
        """The class has its configuration from its tree (`reconfigure`)."""

    def reconfigure(self, config: TenantsConfig) -> None:
        """New weights and quanta; what is owed stays. A leaf keeps its own order until it is gone."""
        self._config = config
        for tenant in self._tenants.values():
            tenant.turn.quantum = self._quantum(tenant.number)

    def close(self) -> None:
        assert not len(self), "rows are queued"
        for tenant in list(self._tenants.values()):
            assert not tenant.in_flight, f"tenant {tenant.number} has rows in flight"
            self._forget(tenant)

    def check_integrity(self) -> None:
        self._rotation.check_integrity()
        for number, tenant in self._tenants.items():
            assert tenant.number == number
            assert len(tenant.leaf) == tenant.queued, f"tenant {number}: {len(tenant.leaf)=}, {tenant.queued=}"
            assert tenant.turn.active is (tenant.queued > 0), f"tenant {number}: {tenant.turn.active=}"
            assert (tenant in self._resting) is (not tenant.queued and not tenant.in_flight)
            tenant.leaf.check_integrity()
        assert self._rotation.active == sum(tenant.turn.active for tenant in self._tenants.values())

    def __len__(self) -> int:
        return sum(tenant.queued for tenant in self._tenants.values())

    def __iter__(self) -> Iterator[Tenant]:
        """Tenants that have rows or are remembered."""
        return iter(self._tenants.values())

    # --- tenants --------------------------------------------------------------------------------------------------

    def _pop_past(self, now: float) -> tuple[int, int, TenantGrant] | None:
        """As `pop`, where the leaf whose turn it is lets nothing go."""
        for turn in self._rotation.in_order():
            tenant = turn.owner
            popped = tenant.leaf.pop(now, 0)
            if popped is None:
                continue
            row, cost, leaf_grant = popped
            self._rotation.serve_past(turn, cost)
            tenant.in_flight += 1
            tenant.queued -= 1
            if not tenant.queued:
                self._rotation.leave(turn)
            return row, cost, (tenant, leaf_grant)
        return None

    def _quantum(self, number: int) -> int:
        weight = self._config.weight_of(self._index.tenants.name(number))
        return max(1, round(self._config.quantum * weight))

    def _admit(self, number: int) -> Tenant:
        tenant = self._tenants[number] = Tenant(number, self._quantum(number), self._make_leaf(self._config.leaf))
        # The number must mean this tenant for as long as its debt is remembered.
        self._index.tenants.hold(number)
        return tenant

    def _wake(self, tenant: Tenant) -> None:
        """Its first row is queued."""
        self._rotation.join(tenant.turn)
        self._resting.pop(tenant, None)

    def _rest(self, tenant: Tenant) -> None:
        """It has nothing queued or in flight. Forgets two that owe nothing, so that their number stays bounded."""
        resting = self._resting
        resting[tenant] = None
        for _ in range(min(2, len(resting))):
            oldest, _ = resting.popitem(last=False)
            if len(resting) < _MAX_RESTING and self._rotation.debt(oldest.turn):
                resting[oldest] = None
            else:
                self._forget(oldest)

    def _forget(self, tenant: Tenant) -> None:
        self._resting.pop(tenant, None)
        tenant.leaf.close()
        del self._tenants[tenant.number]
        self._index.tenants.drop(tenant.number)
