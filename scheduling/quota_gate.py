"""Quotas before any discipline: what a tenant's quota does not allow yet is held back here.

Knows tenants' quotas, what is held back, and the discipline behind. Does not know whose turn it is.

Algorithm: a request enters the discipline when its tenant's allowance owes nothing, and its predicted cost is spent on
that moment; otherwise it is held, in a queue of its tenant and class, and let in when the allowance is solvent, the
most urgent class first. The discipline therefore never holds more of a tenant than its quota allows, plus one request,
and needs to know nothing of quotas; this works for every policy. The quota on everybody is asked when a request is
dispatched, for what the discipline holds of it is its order.

Quotas may change at any time, and tenants may be paused: all of such a tenant is held back, what the discipline had of
it included. What it has of others stays there, so a quota that is new counts from the next request on.

What a request turns out to cost more or less is put right when it is known, as everywhere; so a quota may be passed by
what was not foreseen of the requests that were let in and have not ended. Why held back and not
skipped: skipping needs every policy to look past a tenant's whole backlog. Drawback: a request counts as served when
it enters the discipline, which under congestion is a while before it runs. Limits: O(log tenants) a request; a tenant
with a quota costs about 500 bytes while it owes or waits.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import chain
from typing import Any

from scheduling.discipline import Discipline
from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.quota import Allowance, Limit, Over, Quotas
from scheduling.tree import TreeConfig
from scheduling.tree_statistics import TreeStatistics

__all__ = ["GateGrant", "QuotaGate"]

_COMPACT_FROM = 64
_MAX_RESTING = 10_000
"""Tenants remembered for what they owe on their quota while nothing of theirs is queued or in flight, at most."""


class _Limited:
    """A tenant that has a quota, or is paused."""

    __slots__ = ("allowance", "held", "held_by", "inside", "number", "paused", "waiting", "wakes_at")

    def __init__(self, number: int, allowance: Allowance) -> None:
        self.number = number
        """In the index; held for as long as this lives."""
        self.allowance = allowance
        self.waiting: dict[int, Discipline[Any]] = {}
        """By class: what is held back."""
        self.held_by = [0] * len(PriorityClass)
        self.held = 0
        self.inside = 0
        """Queued in the discipline or in flight, and counted on the quota."""
        self.paused = False
        self.wakes_at: float | None = None


GateGrant = tuple[_Limited | None, Any]
"""The tenant, if its quota counts for the request, and the discipline's own grant."""


class QuotaGate:
    """Implements `scheduling.discipline.Discipline[GateGrant]` around another."""

    def __init__(
        self,
        index: Index,
        inner: Discipline[Any],
        quotas: Quotas,
        make_queue: Callable[[], Discipline[Any]],
        now: float = 0.0,
    ) -> None:
        """`make_queue`: where a tenant's held requests of one class wait, fair between its flows."""
        self._index = index
        self._service = index.service
        self._tenant_of = index.tenant
        self._inner = inner
        self._quotas = quotas
        self._make_queue = make_queue
        self._share = 1.0
        self._everybody = Allowance(quotas.everybody, 1.0, now) if quotas.everybody else None
        self._limited: dict[int, _Limited] = {}
        self._resting: OrderedDict[_Limited, None] = OrderedDict()
        self._latest_s = now
        """Of all calls that changed something."""
        self._wakes: list[tuple[float, int]] = []
        """(when, tenant); stale when that is no longer the tenant's `wakes_at`."""
        self._held: set[int] = set()
        """Rows that are held back."""
        self._paused: frozenset[str] = frozenset()
        self._spent: dict[int, int] = {}
        """By row inside the discipline and not dispatched: what it has spent of its tenant's quota."""

    # --- asking and dividing --------------------------------------------------------------------------------------

    def over_by_s(self, tenant: str, service: PriorityClass, now: float) -> float:
        """Seconds until the tenant's quota would let a request of that class in; 0 for at once."""
        quota = self._quotas.of(tenant)
        if quota is None or self._exempt(quota.over, service):
            return 0.0
        number = self._index.tenants.number(tenant)
        limited = None if number is None else self._limited.get(number)
        return 0.0 if limited is None else max(0.0, limited.allowance.solvent_at() - now)

    def divide(self, share: float, now: float) -> None:
        """This worker serves such a part (above 0, at most 1) of each quota."""
        assert 0 < share <= 1, f"{share=}"
        self._advance(now)
        self._share = share
        if self._everybody is not None:
            self._everybody.divide(share, now)
        for limited in self._limited.values():
            limited.allowance.divide(share, now)
            if limited.held:
                self._set_wake(limited)

    def reconfigure(self, quotas: Quotas, paused: frozenset[str], now: float) -> None:
        """Go on under these quotas, with nothing let go of the tenants `paused`. What is owed on a quota that stays is
        owed on."""
        self._advance(now)
        if quotas.everybody != self._quotas.everybody:
            self._everybody = Allowance(quotas.everybody, self._share, now) if quotas.everybody else None
        self._quotas, self._paused = quotas, paused
        tenants = self._index.tenants
        for name in paused:
            number = tenants.number(name)
            if number is not None and number not in self._limited:
                self._limit(number, (), now)
        for limited in list(self._limited.values()):
            name = tenants.name(limited.number)
            quota = quotas.of(name)
            limits = () if quota is None else quota.limits
            if limits != limited.allowance.limits:
                limited.allowance = Allowance(limits, self._share, now)
            limited.paused = name in paused
            limited.wakes_at = None
            if limited.paused:
                self._take_back(limited, now)
            elif limited.held:
                self._set_wake(limited)
        self._let_in(now)

    def _take_back(self, limited: _Limited, now: float) -> None:
        """Hold what the discipline has queued of a tenant."""
        tenant_of = self._tenant_of
        for row in [row for row in self._inner.rows() if tenant_of[row] == limited.number]:
            self._inner.remove(row, now)
            if (spent := self._spent.pop(row, None)) is not None:
                limited.allowance.spend(-1, -spent, now)
                limited.inside -= 1
            self._hold(limited, row, now)

    # --- a row's way ----------------------------------------------------------------------------------------------

    def push(self, row: int, now: float) -> None:
        self._advance(now)
        limited = self._limited_of(row, now)
        if limited is None:
            self._inner.push(row, now)
        elif limited.held or limited.paused or limited.allowance.solvent_at() > now:
            self._hold(limited, row, now)
        else:
            self._enter(limited, row, now)

    def pick(self, now: float, blocked: int) -> int | None:
        self._let_in(now)
        return None if self._all_wait(now) else self._inner.pick(now, blocked)

    def pick_strict(self, now: float, blocked: int) -> int | None:
        self._let_in(now)
        return None if self._all_wait(now) else self._inner.pick_strict(now, blocked)

    def pop(self, now: float, blocked: int) -> tuple[int, int, GateGrant] | None:
        self._advance(now)
        if self._all_wait(now):
            return None
        popped = self._inner.pop(now, blocked)
        if popped is None:
            return None
        row, cost, inner = popped
        limited = self._counted(row, cost, now)
        if self._everybody is not None:
            self._everybody.spend(1, cost, now)
        return row, cost, (limited, inner)

    def take(self, row: int, cost: int, now: float) -> GateGrant:
        self._advance(now)
        if row in self._held:
            limited = self._limited[self._tenant_of[row]]
            self._unhold(limited, row, now)
            self._enter(limited, row, now)
        inner = self._inner.take(row, cost, now)
        if self._everybody is not None:
            self._everybody.spend(1, cost, now)
        return self._counted(row, cost, now), inner

    def correct(self, grant: GateGrant, cost: int, now: float) -> None:
        self._advance(now)
        limited, inner = grant
        self._spend(limited, 0, cost, now)
        self._inner.correct(inner, cost, now)

    def end(self, grant: GateGrant, cost: int, now: float) -> None:
        self._advance(now)
        limited, inner = grant
        self._spend(limited, 0, cost, now)
        self._inner.end(inner, cost, now)
        if limited is not None:
            limited.inside -= 1
            self._rest(limited, now)

    def restore(self, row: int, grant: GateGrant, cost: int, now: float) -> None:
        self._advance(now)
        limited, inner = grant
        self._spend(limited, 0, -cost, now)
        if self._everybody is not None:
            self._everybody.spend(-1, 0, now)
        if limited is not None:
            predicted = self._spent[row] = self._index.predicted_cost(row)
            limited.allowance.spend(0, predicted, now)
        self._inner.restore(row, inner, cost, now)

    def remove(self, row: int, now: float) -> None:
        self._advance(now)
        spent = self._spent.pop(row, None)
        if spent is None and row not in self._held:
            self._inner.remove(row, now)  # its tenant had no quota when it came
            return
        limited = self._limited[self._tenant_of[row]]
        if spent is None:
            self._unhold(limited, row, now)
        else:
            limited.allowance.spend(-1, -spent, now)
            limited.inside -= 1
            self._inner.remove(row, now)
            if limited.held:
                self._set_wake(limited)
        self._rest(limited, now)

    # --- looking --------------------------------------------------------------------------------------------------

    def order(self, skip: int) -> Iterator[int]:
        """What is held back is not near."""
        return self._inner.order(skip)

    def rows(self) -> Iterator[int]:
        waiting = (queue.rows() for limited in self._limited.values() for queue in limited.waiting.values())
        return chain(chain.from_iterable(waiting), self._inner.rows())

    def next_event(self, now: float) -> float | None:
        times = [self._inner.next_event(now)]
        if self._wakes:
            times.append(max(now, self._wakes[0][0]))
        if self._everybody is not None and len(self._inner) and self._all_wait(now):
            times.append(self._everybody.solvent_at())
        return min((at for at in times if at is not None), default=None)

    def over_rate(self, priority: PriorityClass, now: float) -> bool:
        return self._inner.over_rate(priority, now)

    def borrowed_cost(self, priority: PriorityClass) -> int:
        return self._inner.borrowed_cost(priority)

    def reason(self, grant: GateGrant) -> str:
        return self._inner.reason(grant[1])

    def tree(self, now: float) -> TreeStatistics | None:
        return self._inner.tree(now)

    def set_capacity(self, units_s: float, now: float) -> None:
        self._inner.set_capacity(units_s, now)

    def reload(self, config: TreeConfig, now: float) -> None:
        self._inner.reload(config, now)

    def close(self) -> None:
        assert not len(self), "rows are queued"
        for limited in list(self._limited.values()):
            self._forget(limited)
        self._inner.close()

    def check_integrity(self) -> None:
        self._inner.check_integrity()
        for number, limited in self._limited.items():
            assert limited.number == number
            queued = sum(len(queue) for queue in limited.waiting.values())
            assert queued == limited.held, f"tenant {number}: {queued} held, {limited.held=}"
            asleep = not limited.held or limited.paused
            assert (limited.wakes_at is None) is asleep, f"tenant {number} would never be let in"
            assert (limited in self._resting) is (not limited.held and not limited.inside)
        assert len(self._held) == sum(limited.held for limited in self._limited.values())
        assert self._held.isdisjoint(self._spent)
        for row in self._spent:
            assert self._tenant_of[row] in self._limited, f"row {row} spent on a quota that nobody has"

    def __len__(self) -> int:
        return sum(limited.held for limited in self._limited.values()) + len(self._inner)

    # --- holding and letting in -----------------------------------------------------------------------------------

    def _exempt(self, over: Over, service: int) -> bool:
        return over is Over.DEMOTE and service >= self._quotas.demote_to

    def _limited_of(self, row: int, now: float) -> _Limited | None:
        """The tenant of a new row, if its quota counts for the row."""
        number = self._tenant_of[row]
        name = self._index.tenants.name(number)
        quota = self._quotas.of(name)
        if name not in self._paused and (quota is None or self._exempt(quota.over, self._service[row])):
            return None
        limited = self._limited.get(number)
        return self._limit(number, () if quota is None else quota.limits, now) if limited is None else limited

    def _limit(self, number: int, limits: Iterable[Limit], now: float) -> _Limited:
        limited = self._limited[number] = _Limited(number, Allowance(limits, self._share, now))
        limited.paused = self._index.tenants.name(number) in self._paused
        self._index.tenants.hold(number)
        self._resting[limited] = None
        return limited

    def _enter(self, limited: _Limited, row: int, now: float) -> None:
        cost = self._spent[row] = self._index.predicted_cost(row)
        limited.allowance.spend(1, cost, now)
        limited.inside += 1
        self._resting.pop(limited, None)
        self._inner.push(row, now)

    def _hold(self, limited: _Limited, row: int, now: float) -> None:
        priority = self._service[row]
        queue = limited.waiting.get(priority)
        if queue is None:
            queue = limited.waiting[priority] = self._make_queue()
        queue.push(row, now)
        self._held.add(row)
        limited.held += 1
        limited.held_by[priority] += 1
        self._resting.pop(limited, None)
        self._set_wake(limited)

    def _unhold(self, limited: _Limited, row: int, now: float) -> None:
        priority = self._service[row]
        limited.waiting[priority].remove(row, now)
        self._held.discard(row)
        limited.held -= 1
        limited.held_by[priority] -= 1
        if not limited.held:
            limited.wakes_at = None

    def _set_wake(self, limited: _Limited) -> None:
        if limited.paused:
            return
        at = limited.allowance.solvent_at()
        if limited.wakes_at is None or at < limited.wakes_at:
            limited.wakes_at = at
            wakes = self._wakes
            heappush(wakes, (at, limited.number))
            if len(wakes) > _COMPACT_FROM and len(wakes) > 2 * len(self._limited):
                # A tenant whose requests come and are cancelled while it waits leaves an entry each time.
                every = self._limited.values()
                wakes[:] = sorted((other.wakes_at, other.number) for other in every if other.wakes_at is not None)

    def _advance(self, now: float) -> None:
        self._let_in(now)
        self._latest_s = now

    def _let_in(self, now: float) -> None:
        """Those whose quota allows it by now, each at its own moment: in every call, and at a time that does not depend
        on when somebody looked, or the order would."""
        while self._wakes and self._wakes[0][0] <= now:
            at, number = heappop(self._wakes)
            limited = self._limited.get(number)
            if limited is None or limited.wakes_at != at:
                continue
            limited.wakes_at = None
            at = max(at, self._latest_s)
            if limited.allowance.solvent_at() <= at:
                priority = next(priority for priority, count in enumerate(limited.held_by) if count)
                queue = limited.waiting[priority]
                popped = queue.pop(at, 0)
                assert popped is not None, "it has rows"
                row, _, grant = popped
                queue.end(grant, 0, at)
                self._held.discard(row)
                limited.held -= 1
                limited.held_by[priority] -= 1
                self._enter(limited, row, at)
            if limited.held:
                self._set_wake(limited)

    def _counted(self, row: int, cost: int, now: float) -> _Limited | None:
        """A row leaves the discipline at this cost, having spent what was predicted when it entered."""
        spent = self._spent.pop(row, None)
        if spent is None:
            return None
        limited = self._limited[self._tenant_of[row]]
        limited.allowance.spend(0, cost - spent, now)
        if limited.held:
            self._set_wake(limited)
        return limited

    def _spend(self, limited: _Limited | None, requests: int, cost: int, now: float) -> None:
        if limited is not None:
            limited.allowance.spend(requests, cost, now)
            if cost < 0 and limited.held:
                self._set_wake(limited)
        if self._everybody is not None:
            self._everybody.spend(requests, cost, now)

    def _all_wait(self, now: float) -> bool:
        return self._everybody is not None and self._everybody.solvent_at() > now

    def _rest(self, limited: _Limited, now: float) -> None:
        """If it is idle now. Forgets two who owe nothing, so that their number stays bounded."""
        if limited.held or limited.inside:
            return
        resting = self._resting
        resting[limited] = None
        for _ in range(min(2, len(resting))):
            oldest, _ = resting.popitem(last=False)
            if len(resting) < _MAX_RESTING and not oldest.allowance.full(now):
                resting[oldest] = None
            else:
                self._forget(oldest)

    def _forget(self, limited: _Limited) -> None:
        self._resting.pop(limited, None)
        for queue in limited.waiting.values():
            queue.close()
        del self._limited[limited.number]
        self._index.tenants.drop(limited.number)
