"""A queueing discipline with its books: any `Discipline` (the order) becomes a `Qdisc` here.

Knows rows, costs, the ledger and counts by class. Does not know how the order comes about.

Output cost is unknown until it is generated, so it is counted ahead: at dispatch the discipline counts prompt +
predicted output; what is generated is drawn from that; past the prediction another slice of `OVERRUN_TOKENS` is
counted; at the end the difference is given back. So the order always reflects what is likely to be used (a tenant
can't fill the machine before its first token is charged), the ledger always says exactly what was, and a step costs
the discipline nothing for most rows.
"""

from array import array
from collections.abc import Callable
from typing import Any

from scheduling.columns import grown
from scheduling.discipline import Discipline
from scheduling.index import Index
from scheduling.ledger import Cause, Ledger, LedgerStatistics
from scheduling.priority import PriorityClass
from scheduling.qdisc import EVERYTHING, ClassStatistics, QdiscStatistics, Room
from scheduling.quota import Quotas
from scheduling.quota_gate import QuotaGate
from scheduling.state import RequestState
from scheduling.tree import TreeConfig
from scheduling.tree_statistics import TreeStatistics

__all__ = ["OVERRUN_TOKENS", "AccountedQdisc"]

OVERRUN_TOKENS = 16
_LOOK_FACTOR = 4
_LOOK_ROWS = 1024
"""`upcoming` looks at so many rows, plus `_LOOK_FACTOR` for each one wanted, then gives up: most were staged."""
_WAITING = int(RequestState.WAITING)
_OUTPUT = Cause.OUTPUT


class AccountedQdisc:
    """Implements `scheduling.qdisc.Qdisc`."""

    def __init__(
        self,
        index: Index,
        discipline: Discipline[Any],
        overrun_tokens: int = OVERRUN_TOKENS,
        gate: QuotaGate | None = None,
    ) -> None:
        """`overrun_tokens`: output tokens by which an exceeded prediction is raised at a time. `gate`: the discipline
        itself, where there are quotas."""
        self._gate = gate
        self._index = index
        self._service = index.service
        self._prompt_cost = index.prompt_cost
        self._output_cost = index.output_cost
        self._discipline = discipline
        self._ledger = Ledger()
        self._overrun = index.cost.output(overrun_tokens)
        self._cost_queued: array[int] = array("Q")
        """By row: its predicted cost when it was queued (the index's may change while it waits)."""
        classes = len(PriorityClass)
        # By class. A row that entered is queued, in flight (it has a ledger entry), settled or cancelled.
        self._entered = [0] * classes
        self._cancelled = [0] * classes
        self._settled = [0] * classes
        self._left = [0] * classes
        """Dequeued, and not put back."""
        self._left_cost = [0] * classes
        self._queued_cost = [0] * classes
        self._settled_cost = [0] * classes

    # --- a row's way ----------------------------------------------------------------------------------------------

    def enqueue(self, row: int, now: float) -> None:
        priority = self._service[row]
        cost = self._prompt_cost[row] + self._output_cost[row]
        try:
            self._cost_queued[row] = cost
        except IndexError:
            self._grow(row)
            self._cost_queued[row] = cost
        self._entered[priority] += 1
        self._queued_cost[priority] += cost
        self._discipline.push(row, now)

    def peek(self, now: float, room: Room = EVERYTHING) -> int | None:
        return self._discipline.pick(now, room.blocked)

    def peek_strict(self, now: float, room: Room = EVERYTHING) -> int | None:
        return self._discipline.pick_strict(now, room.blocked)

    def dequeue(self, now: float, room: Room = EVERYTHING) -> int | None:
        popped = self._discipline.pop(now, room.blocked)
        if popped is None:
            return None
        row, cost, grant = popped
        priority = self._service[row]
        self._left[priority] += 1
        self._left_cost[priority] += self._cost_queued[row]
        self._queued_cost[priority] -= self._cost_queued[row]
        self._ledger.open(row, priority, self._prompt_cost[row], cost, grant)
        return row

    def charge(self, row: int, cost: int, now: float, cause: Cause = Cause.OUTPUT) -> None:
        ledger = self._ledger
        entry = ledger.entries[row]
        if cause is _OUTPUT:
            # `Ledger.charge`, in place: each running request comes by here in each step.
            entry.output += cost
            ledger.charged += cost
            left = entry.outstanding - cost
            if left >= 0:
                entry.outstanding = left
                return
            # Past the prediction: count another slice, or all of it if that is more.
            more = max(self._overrun, -left)
            entry.outstanding = left + more
        else:
            ledger.charge(row, cost, cause)
            more = cost
        entry.counted += more
        self._discipline.correct(entry.grant, more, now)

    def settle(self, row: int, now: float, refund: int = 0) -> None:
        index = self._index
        entry = self._ledger.settle(row, refund, index.tenants.name(index.tenant[row]))
        cost = entry.charged - refund
        self._settled[entry.priority] += 1
        self._settled_cost[entry.priority] += cost
        self._discipline.end(entry.grant, cost - entry.counted, now)

    def requeue(self, row: int, now: float) -> None:
        index = self._index
        entry = self._ledger.withdraw(row, index.tenants.name(index.tenant[row]))
        unused = entry.counted - entry.preemption
        priority = entry.priority
        assert self._service[row] == priority, f"row {row} changed its class in flight"
        self._settled_cost[priority] += entry.preemption
        self._left[priority] -= 1
        self._left_cost[priority] -= self._cost_queued[row]
        cost = self._cost_queued[row] = index.predicted_cost(row)
        self._queued_cost[priority] += cost
        self._discipline.restore(row, entry.grant, unused, now)

    def cancel(self, row: int, now: float) -> None:
        self._discipline.remove(row, now)
        priority = self._service[row]
        self._cancelled[priority] += 1
        self._queued_cost[priority] -= self._cost_queued[row]

    # --- configuration --------------------------------------------------------------------------------------------

    def set_capacity(self, units_s: float, now: float) -> None:
        """The machine does so many cost units a second (`scheduling.capacity`): shares of it mean that from now on."""
        self._discipline.set_capacity(units_s, now)

    def over_quota_s(self, tenant: str, service: PriorityClass, now: float) -> float:
        """Seconds until the tenant's quota lets a request of that class go; 0 for at once, or without a quota."""
        return 0.0 if self._gate is None else self._gate.over_by_s(tenant, service, now)

    def divide_quotas(self, share: float, now: float) -> None:
        """This worker serves such a part (above 0, at most 1) of each quota."""
        if self._gate is not None:
            self._gate.divide(share, now)

    def switch(self, discipline: Discipline[Any], now: float, *, overrun_tokens: int, gate: QuotaGate | None) -> None:
        """Go on under another discipline, which is empty: nothing queued or in flight is lost, and the books go on.

        What waits is queued in the order of arrival, what is in flight is counted as if the new one had let it go.
        What the old one remembered of the past (turns, debts, allowances) is forgotten. Linear in what is queued.
        """
        index, old = self._index, self._discipline
        queued = sorted(old.rows(), key=index.arrival_s.__getitem__)
        for row in queued:
            old.remove(row, now)
        for row, entry in self._ledger.entries.items():
            old.end(entry.grant, 0, now)
            discipline.push(row, now)
            entry.grant = discipline.take(row, entry.counted, now)
        old.close()
        for row in queued:
            discipline.push(row, now)
        self._discipline, self._gate = discipline, gate
        self._overrun = index.cost.output(overrun_tokens)

    def reconfigure_quotas(
        self,
        quotas: Quotas,
        paused: frozenset[str],
        now: float,
        *,
        new_gate: Callable[[Discipline[Any]], QuotaGate],
    ) -> None:
        """Go on under these quotas, with nothing let go of the tenants `paused`. `new_gate`: one without any quota."""
        if self._gate is None:
            self._gate = self._discipline = new_gate(self._discipline)
            for entry in self._ledger.entries.values():
                entry.grant = (None, entry.grant)
        self._gate.reconfigure(quotas, paused, now)

    def reload(self, tree: TreeConfig, now: float) -> None:
        """Go on under a new class tree. Nothing queued, in flight or owed is lost. Raises `TreeError`."""
        self._discipline.reload(tree, now)

    # --- looking --------------------------------------------------------------------------------------------------

    def upcoming(self, limit: int, skip: frozenset[PriorityClass] = frozenset()) -> list[int]:
        found: list[int] = []
        if limit <= 0:
            return found
        state = self._index.state
        look = limit * _LOOK_FACTOR + _LOOK_ROWS
        for row in self._discipline.order(sum(1 << priority for priority in skip)):
            if state[row] == _WAITING:
                found.append(row)
                if len(found) == limit:
                    break
            look -= 1
            if not look:
                break
        return found

    def next_event(self, now: float) -> float | None:
        return self._discipline.next_event(now)

    def over_rate(self, priority: PriorityClass, now: float) -> bool:
        return self._discipline.over_rate(priority, now)

    def statistics(self) -> QdiscStatistics:
        """Linear in what is in flight."""
        in_flight = [0] * len(PriorityClass)
        dispatched_cost = self._settled_cost.copy()
        for entry in self._ledger.entries.values():
            in_flight[entry.priority] += 1
            dispatched_cost[entry.priority] += entry.counted
        return QdiscStatistics(
            by_class={
                priority: ClassStatistics(
                    queued=self._entered[priority]
                    - self._cancelled[priority]
                    - self._settled[priority]
                    - in_flight[priority],
                    queued_cost=self._queued_cost[priority],
                    in_flight=in_flight[priority],
                    dispatched=self._settled[priority] + in_flight[priority],
                    dispatched_cost=dispatched_cost[priority],
                    borrowed_cost=self._discipline.borrowed_cost(priority),
                )
                for priority in PriorityClass
            },
            tenants=len(self._index.tenants),
            flows=len(self._index.flows),
        )

    def reason(self, row: int) -> str:
        """Why the row was dequeued: it is in flight."""
        return self._discipline.reason(self._ledger.entries[row].grant)

    def tree(self, now: float) -> TreeStatistics | None:
        """What the class tree's buckets hold and who borrowed; None for a policy without a tree."""
        return self._discipline.tree(now)

    def queued_of(self, priority: PriorityClass) -> tuple[int, int]:
        """Requests of a class that are queued, and their predicted cost. O(1)."""
        return self._entered[priority] - self._cancelled[priority] - self._left[priority], self._queued_cost[priority]

    def left_cost(self, priority: PriorityClass) -> int:
        """Predicted cost of all that was dequeued since the start: the drain of the queue. O(1)."""
        return self._left_cost[priority]

    def ledger(self) -> LedgerStatistics:
        """Exact costs by class and tenant."""
        return self._ledger.statistics()

    def check_integrity(self) -> None:
        assert len(self._discipline) == len(self), "the discipline lost or invented a row"
        assert self._ledger.statistics().settled == sum(self._settled_cost), "classes and ledger differ"
        self._ledger.check_integrity()
        self._discipline.check_integrity()

    def __len__(self) -> int:
        return sum(self._entered) - sum(self._cancelled) - sum(self._settled) - len(self._ledger.entries)

    def _grow(self, row: int) -> None:
        column = self._cost_queued
        more = grown(len(column), row) - len(column)
        column.frombytes(bytes(more * column.itemsize))
