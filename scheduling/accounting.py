"""A queueing discipline with its books: any `Discipline` (the order) becomes a `Qdisc` here.

Knows rows, cost, the ledger and counts by class. Does not know how the order comes about.

Output cost is unknown until it is generated, so it is counted ahead: at dispatch the discipline counts prompt +
predicted output; what is generated is drawn from that; past the prediction another slice of `OVERRUN_TOKENS` is
counted; at the end the difference is given back. So the order always reflects what is likely to be used (a tenant
can't fill the machine before its first token is charged), the ledger always says exactly what was, and a step costs
the discipline nothing for most rows.
"""

from array import array
from typing import Any

from scheduling.cost import CostModel
from scheduling.discipline import Discipline
from scheduling.index import Index
from scheduling.ledger import Cause, Ledger, LedgerStatistics
from scheduling.priority import PriorityClass
from scheduling.qdisc import EVERYTHING, ClassStatistics, QdiscStatistics, Room
from scheduling.state import RequestState

__all__ = ["OVERRUN_TOKENS", "AccountedQdisc"]

OVERRUN_TOKENS = 16
"""Output tokens by which an exceeded prediction is raised at a time."""
_LOOK_FACTOR = 4
_LOOK_ROWS = 1024
"""`upcoming` looks at so many rows, plus `_LOOK_FACTOR` for each one wanted, then gives up: most were staged."""
_WAITING = int(RequestState.WAITING)


class AccountedQdisc:
    """Implements `scheduling.qdisc.Qdisc`."""

    def __init__(self, index: Index, cost: CostModel, discipline: Discipline[Any]) -> None:
        self._index = index
        self._cost = cost
        self._discipline = discipline
        self._ledger = Ledger()
        self._overrun = cost.output(OVERRUN_TOKENS)
        self._queued_cost_of: array[int] = array("Q")
        """By row: its predicted cost when it was queued (the index's may change while it waits)."""
        classes = len(PriorityClass)
        self._queued = [0] * classes
        self._queued_cost = [0] * classes
        self._in_flight = [0] * classes
        self._dispatched = [0] * classes
        self._dispatched_cost = [0] * classes

    # --- a row's way ----------------------------------------------------------------------------------------------

    def enqueue(self, row: int, now: float) -> None:
        self._count_in(row)
        self._discipline.push(row, now)

    def peek(self, now: float, room: Room = EVERYTHING) -> int | None:
        return self._discipline.pick(now, room.blocked)

    def dequeue(self, now: float, room: Room = EVERYTHING) -> int | None:
        row = self._discipline.pick(now, room.blocked)
        if row is None:
            return None
        index = self._index
        priority = self._count_out(row)
        prompt = self._cost.prompt_of(index, row)
        output = self._cost.output_of(index, row)
        entry = self._ledger.open(row, priority, index.tenant[row], prompt, output)
        entry.grant = self._discipline.take(row, prompt + output, now)
        self._in_flight[priority] += 1
        self._dispatched[priority] += 1
        self._dispatched_cost[priority] += prompt + output
        return row

    def charge(self, row: int, cost: int, now: float, cause: Cause = Cause.OUTPUT) -> None:
        entry = self._ledger.entries[row]
        self._ledger.charge(entry, cost, cause)
        if cause is Cause.OUTPUT:
            left = entry.outstanding - cost
            if left >= 0:
                entry.outstanding = left
                return
            # Past the prediction: count another slice, or all of it if that is more.
            more = max(self._overrun, -left)
            entry.outstanding = left + more
        else:
            more = cost
        entry.counted += more
        self._dispatched_cost[entry.priority] += more
        self._discipline.correct(entry.grant, more, now)

    def settle(self, row: int, now: float, refund: int = 0) -> None:
        ledger = self._ledger
        entry = ledger.settle(row, refund, self._index.tenants.name(self._index.tenant[row]))
        correction = entry.charged - entry.counted
        self._in_flight[entry.priority] -= 1
        self._dispatched_cost[entry.priority] += correction
        self._discipline.end(entry.grant, correction, now)

    def requeue(self, row: int, now: float) -> None:
        entry = self._ledger.withdraw(row)
        assert self._index.service[row] == entry.priority, f"row {row} changed its class in flight"
        self._in_flight[entry.priority] -= 1
        self._dispatched[entry.priority] -= 1
        self._dispatched_cost[entry.priority] -= entry.counted
        self._count_in(row)
        self._discipline.restore(row, entry.grant, entry.counted, now)

    def cancel(self, row: int, now: float) -> None:
        self._discipline.remove(row, now)
        self._count_out(row)

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

    def statistics(self) -> QdiscStatistics:
        return QdiscStatistics(
            by_class={
                priority: ClassStatistics(
                    queued=self._queued[priority],
                    queued_cost=self._queued_cost[priority],
                    in_flight=self._in_flight[priority],
                    dispatched=self._dispatched[priority],
                    dispatched_cost=self._dispatched_cost[priority],
                    borrowed_cost=self._discipline.borrowed_cost(priority),
                )
                for priority in PriorityClass
            },
            tenants=len(self._index.tenants),
            flows=len(self._index.flows),
        )

    def ledger(self) -> LedgerStatistics:
        """Exact costs by class and tenant."""
        return self._ledger.statistics()

    def check_integrity(self) -> None:
        assert len(self._discipline) == sum(self._queued), "the discipline lost or invented a row"
        assert len(self._ledger.entries) == sum(self._in_flight), "the ledger lost or invented a row"
        self._ledger.check_integrity()
        self._discipline.check_integrity()

    def __len__(self) -> int:
        return len(self._discipline)

    # --- counts ---------------------------------------------------------------------------------------------------

    def _count_in(self, row: int) -> None:
        if row >= len(self._queued_cost_of):
            more = max(row + 1, 2 * len(self._queued_cost_of), 1024) - len(self._queued_cost_of)
            self._queued_cost_of.frombytes(bytes(more * self._queued_cost_of.itemsize))
        priority = self._index.service[row]
        cost = self._queued_cost_of[row] = self._cost.predicted(self._index, row)
        self._queued[priority] += 1
        self._queued_cost[priority] += cost

    def _count_out(self, row: int) -> int:
        priority = self._index.service[row]
        self._queued[priority] -= 1
        self._queued_cost[priority] -= self._queued_cost_of[row]
        return priority
