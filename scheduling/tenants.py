"""A class's tenants: they share its rate by weight, and each one's requests are ordered by a leaf of its own.

Knows tenants, their weights and buckets, and the class's rate. Does not know other classes: whether the class's turn is
its own right or borrowed is `scheduling.htb`'s matter, and the tenants' affair is the same either way.

Algorithm: each tenant has a token bucket that fills at rate × weight ÷ Σ weights of active tenants. Tenants in credit
go first; among them, and else among those in debt (who run on what the others leave), equals take turns by deficit
round robin with a quantum by weight. A tenant is active while it has something queued or in flight.

Source: the leaves and their borrowing in the kernel's `sch_htb.c`, one level down: a class lends to its tenants. Why
buckets and not turns alone: who used less than its share lately is served at once, before those who used more.

Deviations from the kernel: tenants appear from a template; rates change with who is active, by a virtual clock and not
by a walk over all; a tenant's right holds within its class's, so a class with ten thousand tenants in credit has no
more than its own rate before it borrows.

Debt: buckets and turns outlive idleness. A tenant is forgotten only when that changes nothing (its bucket is full and
its turns have come round), or when more than `_MAX_RESTING` are idle.

Drawbacks: a bucket's burst must cover what arrives between two dispatches, or rates are lost and only turns remain.
Limits: O(log tenants) a decision; about 1,500 bytes a tenant with its leaf.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from math import inf
from typing import Any

from scheduling.discipline import Discipline
from scheduling.event_queue import EventQueue
from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.rotation import Rotation, Turn, interleave
from scheduling.share_clock import ShareClock
from scheduling.token_bucket import TokenBucket
from scheduling.tree import LeafConfig, TenantsConfig, TreeConfig

__all__ = ["Tenant", "TenantGrant", "Tenants"]

_MAX_RESTING = 10_000
"""Idle tenants remembered for their buckets, at most; the one idle longest starts afresh."""
_EARLY = 1e-3
"""Virtual time by which a wake-up may come early: the rounding of the clock."""


class Tenant:
    """One tenant."""

    __slots__ = (
        "allowance",
        "bucket",
        "debt_turn",
        "event_at",
        "in_credit",
        "in_flight",
        "leaf",
        "number",
        "own_turn",
        "queued",
    )

    def __init__(self, number: int, quantum: int, bucket: TokenBucket, leaf: Discipline[Any]) -> None:
        self.number = number
        """In the index; held for as long as this lives."""
        self.bucket = bucket
        """On the class's virtual clock, where its rate is its weight."""
        self.allowance: TokenBucket | None = None
        """What it may still run on others' shares, where `borrow_limit` says so."""
        self.leaf = leaf
        self.own_turn: Turn[Tenant] = Turn(self, quantum)
        """Among those in credit."""
        self.debt_turn: Turn[Tenant] = Turn(self, quantum)
        """Among those that may run on others' shares."""
        self.in_credit = True
        self.queued = 0
        self.in_flight = 0
        self.event_at: float | None = None
        """Its entry in the event queue, in virtual time."""

    def may_borrow(self, virtual: float) -> bool:
        return self.allowance is None or self.allowance.zero <= virtual


TenantGrant = tuple[Tenant, bool, Any]
"""Tenant, whether it ran on its own share, and the leaf's own grant."""


class Tenants:
    """Implements `scheduling.discipline.Discipline[TenantGrant]`."""

    def __init__(
        self,
        index: Index,
        config: TenantsConfig,
        make_leaf: Callable[[LeafConfig], Discipline[Any]],
        *,
        burst: int,
        initial_fill: float,
        now: float,
    ) -> None:
        """`burst`: of the least weight, where the template names none. `make_leaf`: a new tenant's queue."""
        self._index = index
        self._tenant_of = index.tenant
        self._make_leaf = make_leaf
        self._fill = initial_fill
        self._set_config(config, burst)
        self._clock = ShareClock(0.0, now)
        self._tenants: dict[int, Tenant] = {}
        self._ready: Rotation[Tenant] = Rotation()
        """Tenants in credit that have something queued."""
        self._feed: Rotation[Tenant] = Rotation()
        """Tenants that have something queued and may borrow; those in credit too, but then nobody looks here."""
        self._events: EventQueue[Tenant] = EventQueue()
        """When tenants come out of debt, in virtual time."""
        self._due = inf
        """The first of them in seconds, or earlier."""
        self._resting: OrderedDict[Tenant, None] = OrderedDict()
        """Tenants with nothing queued or in flight, longest first."""

    def _set_config(self, config: TenantsConfig, burst: int) -> None:
        self._config = config
        least = min((config.weight, *config.weights.values()))
        self._burst = (burst if config.burst is None else config.burst) / least
        """Of weight 1. By weight, or a heavy tenant would lose what it can't save while a light one saves it all."""

    def reconfigure(self, config: TenantsConfig, burst: int, now: float) -> None:
        """New weights, quanta and limits; what is saved or owed stays. A leaf keeps its own order until it is gone."""
        if now >= self._due:
            self._fire(now)
        self._set_config(config, burst)
        virtual = self._clock.read(now)
        for tenant in self._tenants.values():
            busy = tenant.queued > 0 or tenant.in_flight > 0
            if busy:
                self._clock.leave(tenant.bucket.rate, now)
            weight = config.weight_of(self._index.tenants.name(tenant.number))
            tenant.bucket.configure(weight, self._burst * weight, virtual)
            tenant.allowance = self._allowance(weight, virtual, tenant.allowance)
            for turn in (tenant.own_turn, tenant.debt_turn):
                turn.quantum = max(1, round(config.quantum * weight))
            if busy:
                self._clock.join(tenant.bucket.rate, now)
            self._update(tenant, virtual)
        self._due = self._clock.when(self._events.next())

    def _allowance(self, weight: float, virtual: float, before: TokenBucket | None = None) -> TokenBucket | None:
        limit = self._config.borrow_limit
        if limit is None:
            return None
        rate, burst = weight * limit, self._burst * weight * limit
        if before is None:
            # A bucket that owes nothing may be overdrawn by an item; with a limit of nought not even that.
            return TokenBucket(rate, burst, burst if limit else -1.0, virtual)
        before.configure(rate, burst, virtual)
        return before

    def set_rate(self, units_s: float, now: float) -> None:
        """What the tenants share, from now on."""
        if now >= self._due:
            self._fire(now)
        self._clock.set_rate(units_s, now)
        self._due = self._clock.when(self._events.next())

    # --- a row's way ----------------------------------------------------------------------------------------------

    def push(self, row: int, now: float) -> None:
        if now >= self._due:
            self._fire(now)
        number = self._tenant_of[row]
        try:
            tenant = self._tenants[number]
        except KeyError:
            tenant = self._admit(number, now)
        tenant.leaf.push(row, now)
        tenant.queued += 1
        if tenant.queued == 1:
            if not tenant.in_flight:
                self._activate(tenant, now)
            self._enter(tenant, now)

    def pick(self, now: float, blocked: int) -> int | None:
        if now >= self._due:
            self._fire(now)
        for tenant in self._in_order():
            row: int | None = tenant.leaf.pick(now, 0)
            if row is not None:
                return row
        return None

    def pop(self, now: float, blocked: int) -> tuple[int, int, TenantGrant] | None:
        if now >= self._due:
            self._fire(now)
        turn = self._ready.front()
        own = turn is not None
        if turn is None:
            turn = self._feed.front()
            if turn is None:
                return None
        tenant = turn.owner
        popped = tenant.leaf.pop(now, 0)
        if popped is None:
            return self._pop_past(now)
        row, cost, leaf_grant = popped
        tenant.queued -= 1
        tenant.in_flight += 1
        if own:
            self._spend_own(tenant, cost, now)
        else:
            self._feed.serve(turn, cost)
            if tenant.allowance is not None:
                self._spend_allowance(tenant, cost, now)
        if not tenant.queued and tenant.debt_turn.active:
            self._feed.leave(tenant.debt_turn)
        return row, cost, (tenant, own, leaf_grant)

    def take(self, row: int, cost: int, now: float) -> TenantGrant:
        if now >= self._due:
            self._fire(now)
        tenant = self._tenants[self._tenant_of[row]]
        own = tenant.in_credit
        leaf_grant = tenant.leaf.take(row, cost, now)
        tenant.queued -= 1
        tenant.in_flight += 1
        self._charge(tenant, own, cost, now)
        if not tenant.queued:
            self._exit(tenant)
        return tenant, own, leaf_grant

    def correct(self, grant: TenantGrant, cost: int, now: float) -> None:
        if now >= self._due:
            self._fire(now)
        tenant, own, leaf_grant = grant
        self._charge(tenant, own, cost, now)
        tenant.leaf.correct(leaf_grant, cost, now)

    def end(self, grant: TenantGrant, cost: int, now: float) -> None:
        if now >= self._due:
            self._fire(now)
        tenant, own, leaf_grant = grant
        if cost:
            self._charge(tenant, own, cost, now)
        tenant.leaf.end(leaf_grant, cost, now)
        tenant.in_flight -= 1
        if not tenant.in_flight and not tenant.queued:
            self._deactivate(tenant, now)

    def restore(self, row: int, grant: TenantGrant, cost: int, now: float) -> None:
        if now >= self._due:
            self._fire(now)
        tenant, own, leaf_grant = grant
        self._charge(tenant, own, -cost, now)
        tenant.leaf.restore(row, leaf_grant, cost, now)
        tenant.in_flight -= 1
        tenant.queued += 1
        if tenant.queued == 1:
            self._enter(tenant, now)

    def remove(self, row: int, now: float) -> None:
        if now >= self._due:
            self._fire(now)
        tenant = self._tenants[self._tenant_of[row]]
        tenant.leaf.remove(row, now)
        tenant.queued -= 1
        if not tenant.queued:
            self._exit(tenant)
            if not tenant.in_flight:
                self._deactivate(tenant, now)

    # --- looking --------------------------------------------------------------------------------------------------

    def order(self, skip: int) -> Iterator[int]:
        """Tenants in credit first; in each part by their turns."""
        cost_of = self._index.predicted_cost
        yield from interleave(self._ready, lambda tenant: tenant.leaf.order(0), cost_of)
        yield from interleave(self._feed, _rows_in_debt, cost_of)

    def rows(self) -> Iterator[int]:
        return chain.from_iterable(tenant.leaf.rows() for tenant in self._tenants.values())

    def next_event(self, now: float) -> float | None:
        """When a tenant that may not borrow comes out of debt, or may again; or what a leaf says."""
        due = inf
        for tenant in self._tenants.values():
            if not tenant.queued:
                continue
            inside = tenant.leaf.next_event(now)
            if inside is not None:
                due = min(due, inside)
            if not tenant.debt_turn.active:
                assert tenant.allowance is not None
                due = min(due, self._clock.when(min(tenant.bucket.zero, tenant.allowance.zero)))
        return max(due, now) if due < inf else None

    def borrowed_cost(self, priority: PriorityClass) -> int:
        """Tenants borrow within their class; that is not counted here."""
        return 0

    def set_capacity(self, units_s: float, now: float) -> None:
        """The class has its rate from its tree (`set_rate`)."""

    def reload(self, config: TreeConfig, now: float) -> None:
        """The class has its configuration from its tree (`reconfigure`)."""

    def close(self) -> None:
        assert not len(self), "rows are queued"
        for tenant in list(self._tenants.values()):
            assert not tenant.in_flight, f"tenant {tenant.number} has rows in flight"
            self._forget(tenant)

    def check_integrity(self) -> None:
        self._ready.check_integrity()
        self._feed.check_integrity()
        busy = 0
        for number, tenant in self._tenants.items():
            assert tenant.number == number
            assert len(tenant.leaf) == tenant.queued, f"tenant {number}: {len(tenant.leaf)=}, {tenant.queued=}"
            assert (tenant in self._resting) is (not tenant.queued and not tenant.in_flight)
            assert tenant.own_turn.active is (tenant.queued > 0 and tenant.in_credit), (
                f"tenant {number} {tenant.own_turn.active=}"
            )
            if tenant.in_credit or tenant.allowance is None:
                assert tenant.debt_turn.active is (tenant.queued > 0), f"tenant {number} {tenant.debt_turn.active=}"
            assert tenant.in_credit or tenant.event_at is not None, f"tenant {number} would never be in credit again"
            busy += tenant.queued > 0 or tenant.in_flight > 0
            tenant.leaf.check_integrity()
        assert self._ready.active == sum(tenant.own_turn.active for tenant in self._tenants.values())
        assert self._feed.active == sum(tenant.debt_turn.active for tenant in self._tenants.values())
        assert self._clock.active == busy, f"{busy} tenants are busy, {self._clock.active} share the rate"

    def __len__(self) -> int:
        return sum(tenant.queued for tenant in self._tenants.values())

    def __iter__(self) -> Iterator[Tenant]:
        """Tenants that have rows or are remembered."""
        return iter(self._tenants.values())

    # --- turns and buckets ----------------------------------------------------------------------------------------

    def _in_order(self) -> Iterator[Tenant]:
        """By their turns: those in credit, then those in debt."""
        for turn in self._ready.in_order():
            yield turn.owner
        for turn in self._feed.in_order():
            if not turn.owner.in_credit:
                yield turn.owner

    def _pop_past(self, now: float) -> tuple[int, int, TenantGrant] | None:
        """As `pop`, where the leaf whose turn it is lets nothing go."""
        for tenant in self._in_order():
            popped = tenant.leaf.pop(now, 0)
            if popped is None:
                continue
            row, cost, leaf_grant = popped
            own = tenant.in_credit
            tenant.queued -= 1
            tenant.in_flight += 1
            if own:
                self._ready.serve_past(tenant.own_turn, cost)
                self._charge_bucket(tenant, cost, now)
            else:
                self._feed.serve_past(tenant.debt_turn, cost)
                if tenant.allowance is not None:
                    self._spend_allowance(tenant, cost, now)
            if not tenant.queued:
                self._exit(tenant)
            return row, cost, (tenant, own, leaf_grant)
        return None

    def _spend_own(self, tenant: Tenant, cost: int, now: float) -> None:
        """A tenant in credit was served, and it was its turn."""
        virtual = self._clock.read(now)
        if tenant.bucket.spend(cost, virtual):
            if tenant.queued:
                self._ready.serve(tenant.own_turn, cost)
            else:
                self._ready.serve_last(tenant.own_turn, cost)
            return
        self._ready.serve_last(tenant.own_turn, cost)
        tenant.in_credit = False
        if not tenant.may_borrow(virtual) and tenant.debt_turn.active:
            self._feed.leave(tenant.debt_turn)
        self._wake_later(tenant, virtual)

    def _charge(self, tenant: Tenant, own: bool, cost: int, now: float) -> None:
        """Its turns and buckets move, but nobody's turn is over."""
        if own:
            self._ready.adjust(tenant.own_turn, cost)
            self._charge_bucket(tenant, cost, now)
        else:
            self._feed.adjust(tenant.debt_turn, cost)
            if tenant.allowance is not None:
                self._spend_allowance(tenant, cost, now)

    def _charge_bucket(self, tenant: Tenant, cost: int, now: float) -> None:
        virtual = self._clock.read(now)
        if tenant.bucket.spend(cost, virtual) is not tenant.in_credit:
            self._update(tenant, virtual)

    def _spend_allowance(self, tenant: Tenant, cost: int, now: float) -> None:
        assert tenant.allowance is not None
        virtual = self._clock.read(now)
        tenant.allowance.spend(cost, virtual)
        self._update(tenant, virtual)

    def _update(self, tenant: Tenant, virtual: float) -> None:
        """Where it stands by its buckets, and when that gets better."""
        in_credit = tenant.bucket.zero <= virtual
        tenant.in_credit = in_credit
        if tenant.queued:
            if tenant.own_turn.active is not in_credit:
                if in_credit:
                    self._ready.join(tenant.own_turn)
                else:
                    self._ready.leave(tenant.own_turn)
            in_feed = in_credit or tenant.may_borrow(virtual)
            if tenant.debt_turn.active is not in_feed:
                if in_feed:
                    self._feed.join(tenant.debt_turn)
                else:
                    self._feed.leave(tenant.debt_turn)
        if not in_credit:
            self._wake_later(tenant, virtual)

    def _wake_later(self, tenant: Tenant, virtual: float) -> None:
        """Look at it again when it is out of debt, or may borrow again."""
        better_at = tenant.bucket.zero
        if tenant.allowance is not None and virtual < tenant.allowance.zero < better_at:
            better_at = tenant.allowance.zero
        if self._events.schedule(tenant, better_at):
            at = self._clock.when(better_at)
            if at < self._due:
                self._due = at

    def _fire(self, now: float) -> None:
        """Tenants whose debt time has paid."""
        virtual = self._clock.read(now) + _EARLY
        for tenant in self._events.due(virtual):
            self._update(tenant, virtual)
        self._due = self._clock.when(self._events.next())

    # --- tenants --------------------------------------------------------------------------------------------------

    def _enter(self, tenant: Tenant, now: float) -> None:
        """Its first row is queued."""
        if tenant.in_credit:
            self._ready.join(tenant.own_turn)
            self._feed.join(tenant.debt_turn)
        elif tenant.may_borrow(self._clock.read(now)):
            self._feed.join(tenant.debt_turn)

    def _exit(self, tenant: Tenant) -> None:
        """Its last row has gone."""
        if tenant.own_turn.active:
            self._ready.leave(tenant.own_turn)
        if tenant.debt_turn.active:
            self._feed.leave(tenant.debt_turn)

    def _admit(self, number: int, now: float) -> Tenant:
        """A tenant from the template, as if it had been idle since the start."""
        config = self._config
        weight = config.weight_of(self._index.tenants.name(number))
        burst = self._burst * weight
        virtual = self._clock.read(now)
        bucket = TokenBucket(weight, burst, burst * self._fill, 0.0)
        tenant = Tenant(number, max(1, round(config.quantum * weight)), bucket, self._make_leaf(config.leaf))
        tenant.allowance = self._allowance(weight, virtual)
        # The number must mean this tenant for as long as its debt is remembered.
        self._index.tenants.hold(number)
        self._tenants[number] = tenant
        return tenant

    def _activate(self, tenant: Tenant, now: float) -> None:
        """It has a share from now on, and the others have less."""
        self._resting.pop(tenant, None)
        self._clock.join(tenant.bucket.rate, now)

    def _deactivate(self, tenant: Tenant, now: float) -> None:
        """The others have more: their wake-ups are nearer. Forgets two that owe nothing: their number stays bounded."""
        clock = self._clock
        clock.leave(tenant.bucket.rate, now)
        self._due = clock.when(self._events.next())
        resting = self._resting
        resting[tenant] = None
        for _ in range(min(2, len(resting))):
            oldest, _ = resting.popitem(last=False)
            if len(resting) < _MAX_RESTING and self._owes(oldest):
                resting[oldest] = None
            else:
                self._forget(oldest)

    def _owes(self, tenant: Tenant) -> bool:
        """Forgetting it would change something."""
        virtual = self._clock.value
        return not (
            tenant.bucket.full(virtual)
            and (tenant.allowance is None or tenant.allowance.full(virtual))
            and not self._ready.debt(tenant.own_turn)
            and not self._feed.debt(tenant.debt_turn)
        )

    def _forget(self, tenant: Tenant) -> None:
        self._resting.pop(tenant, None)
        self._events.cancel(tenant)
        tenant.leaf.close()
        del self._tenants[tenant.number]
        self._index.tenants.drop(tenant.number)


def _rows_in_debt(tenant: Tenant) -> Iterable[int]:
    """Of tenants that are only in the feed."""
    return () if tenant.in_credit else tenant.leaf.order(0)
