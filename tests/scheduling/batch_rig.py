"""A batch scheduler on a small index, a small pool and a plain discipline, with an engine that answers in tokens.

The discipline here is the simplest that keeps the protocol: classes in strict order, first in, first out inside. It
remembers every charge, so that tests can add them up.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kvcache.manager import KVCacheManager
from kvcache.partitions import Part
from scheduling.batch import BatchScheduler
from scheduling.cost import CostModel
from scheduling.index import Index
from scheduling.ledger import Cause
from scheduling.length import LengthStatistics
from scheduling.limits import BatchLimits
from scheduling.plan import Outcome, StepPlan
from scheduling.preemption_rules import PreemptionMode, PreemptionRules
from scheduling.priority import PriorityClass
from scheduling.qdisc import EVERYTHING, QdiscStatistics, Room
from scheduling.state import RequestState
from scheduling.step_time import LinearStepTime, StepTimeTracker
from scheduling.swap_rule import SwapRates, SwapRule

P0, P1, P2, P3 = PriorityClass


class PlainDiscipline:
    def __init__(self, index: Index, cost: CostModel) -> None:
        self.index = index
        self.cost = cost
        self.queues: dict[PriorityClass, deque[int]] = {priority: deque() for priority in PriorityClass}
        self.in_flight: set[int] = set()
        self.charged: Counter[int] = Counter()
        self.caused: Counter[int] = Counter()
        """Of what is charged, the extra work of preemptions."""
        self.settled: Counter[int] = Counter()
        self.total = 0
        """Charged less refunded, over all rows."""
        self.next_time: float | None = None
        self.order = tuple(PriorityClass)
        self.over_their_rate: set[PriorityClass] = set()

    def enqueue(self, row: int, now: float) -> None:
        self.queues[self.index.service_of(row)].append(row)

    def peek(self, now: float, room: Room = EVERYTHING) -> int | None:
        for priority in self.order:
            if self.queues[priority] and room.admits(priority):
                return self.queues[priority][0]
        return None

    def peek_strict(self, now: float, room: Room = EVERYTHING) -> int | None:
        """P0 is strict while it stands first in the order."""
        row = self.peek(now, room)
        return row if row is not None and self.index.service_of(row) is P0 and self.order[0] is P0 else None

    def dequeue(self, now: float, room: Room = EVERYTHING) -> int | None:
        row = self.peek(now, room)
        if row is not None:
            self.queues[self.index.service_of(row)].popleft()
            self.in_flight.add(row)
            self.charged[row] = self.cost.prompt_of(self.index, row)
            self.total += self.charged[row]
        return row

    def upcoming(self, limit: int, skip: frozenset[PriorityClass] = frozenset()) -> list[int]:
        rows = [
            row
            for priority, queue in self.queues.items()
            if priority not in skip
            for row in queue
            if self.index.state[row] == RequestState.WAITING
        ]
        return rows[:limit]

    def charge(self, row: int, cost: int, now: float, cause: Cause = Cause.OUTPUT) -> None:
        assert row in self.in_flight, f"row {row} is charged and was not dequeued"
        self.charged[row] += cost
        self.total += cost
        if cause is Cause.PREEMPTION:
            self.caused[row] += cost

    def settle(self, row: int, now: float, refund: int = 0) -> None:
        self.in_flight.remove(row)
        self.settled[row] += 1
        self.charged[row] -= refund
        self.total -= refund

    def requeue(self, row: int, now: float) -> None:
        self.in_flight.remove(row)
        self.queues[self.index.service_of(row)].appendleft(row)

    def cancel(self, row: int, now: float) -> None:
        self.queues[self.index.service_of(row)].remove(row)

    def over_rate(self, priority: PriorityClass, now: float) -> bool:
        return priority in self.over_their_rate

    def set_capacity(self, units_s: float, now: float) -> None:
        pass

    def next_event(self, now: float) -> float | None:
        return self.next_time

    def statistics(self) -> QdiscStatistics:
        return QdiscStatistics({}, 0, 0)

    def check_integrity(self) -> None:
        pass

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))


class LongestAnswer:
    """Predicts what it is told to; otherwise the limit."""

    def __init__(self) -> None:
        self.output_tokens: int | None = None

    def predict(self, priority: PriorityClass, tenant: str, max_tokens: int) -> int:
        return max_tokens if self.output_tokens is None else min(self.output_tokens, max_tokens)

    def observe(self, priority: PriorityClass, tenant: str, predicted: int, actual: int) -> None:
        pass

    def statistics(self) -> LengthStatistics:
        raise AssertionError("not asked for")


FLAT = LinearStepTime(fixed_s=0.01, per_prefill_token_s=0.001, per_decode_sequence_s=0.001, per_context_token_s=0.0)


class Rig:
    """A scheduler and everything under it. Rows end after their `answers`, whatever limit they gave."""

    def __init__(
        self,
        *,
        blocks: int = 64,
        block_size: int = 4,
        strict: Iterable[PriorityClass] = (P0,),
        step_time: LinearStepTime = FLAT,
        qdisc: Callable[[Index, CostModel], Any] = PlainDiscipline,
        parts: Mapping[int, Part] | None = None,
        preemption: PreemptionRules | None = None,
        swap_places: int = 0,
        swap_rates: SwapRates | None = None,
        theta: float = 1.0,
        **limits: Any,
    ) -> None:
        rules = preemption or PreemptionRules()
        defaults: dict[str, Any] = {"context_tokens": 100, "max_sequences": 4, "step_tokens": 32, "staged_rows": 16}
        self.limits = BatchLimits(**(defaults | limits))
        self.index = Index(capacity=4096, initial_rows=16)
        self.cost = CostModel()
        self.qdisc: Any = qdisc(self.index, self.cost)
        """A `Qdisc`; tests look into their own."""
        self.kv = KVCacheManager(
            blocks,
            block_size,
            parts=parts,
            lend=rules.mode.evicts_for_newcomers,
            firm=rules.mode is PreemptionMode.NONE,
            swap_places=swap_places,
        )
        self.lengths = LongestAnswer()
        self.tracker = StepTimeTracker(step_time)
        self.scheduler = BatchScheduler(
            qdisc=self.qdisc,
            index=self.index,
            kv=self.kv,
            limits=self.limits,
            step_time=self.tracker,
            cost=self.cost,
            lengths=self.lengths,
            strict_classes=frozenset(strict),
            preemption=rules,
            swap_rule=SwapRule(swap_rates, theta) if swap_rates is not None else None,
        )
        self.now = 0.0
        self.answers: dict[int, int] = {}
        self.produced: Counter[int] = Counter()

    def add(
        self,
        priority: PriorityClass = P2,
        *,
        estimate: int = 8,
        output: int = 4,
        deadline_s: float = float("inf"),
        ttft_deadline_s: float = float("inf"),
        tenant: str = "t",
    ) -> int:
        row = self.index.add(
            origin=priority,
            tenant=tenant,
            flow="f",
            prompt_tokens=estimate,
            output_tokens=output,
            arrival_s=self.now,
            hard_deadline_s=deadline_s,
            ttft_deadline_s=ttft_deadline_s,
        )
        self.scheduler.enqueue(row, self.now)
        return row

    def stage(
        self,
        row: int,
        prompt: int,
        answer: int = 4,
        max_output: int | None = None,
        names: Sequence[int] = (),
    ) -> None:
        """The staging thread comes back with a row that was handed out."""
        self.answers[row] = answer
        self.scheduler.staged(row, prompt, answer if max_output is None else max_output, self.now, names)

    def add_staged(
        self,
        priority: PriorityClass = P2,
        prompt: int = 8,
        answer: int = 4,
        max_output: int | None = None,
        *,
        names: Sequence[int] = (),
        tenant: str = "t",
        ttft_deadline_s: float = float("inf"),
    ) -> int:
        output = answer if max_output is None else max_output
        row = self.add(priority, estimate=prompt, output=output, tenant=tenant, ttft_deadline_s=ttft_deadline_s)
        assert row in self.scheduler.to_stage(self.now), "the staging window is full"
        self.stage(row, prompt, answer, max_output, names)
        return row

    def schedule(self, may_dispatch: bool = True) -> StepPlan | None:
        plan = self.scheduler.schedule(self.now, may_dispatch)
        self.scheduler.check_integrity()
        return plan

    def settle(self, plan: StepPlan, measured_s: float | None = None) -> list[int]:
        """Run a plan; the rows that ended."""
        outcomes = []
        for chunk in plan.chunks:
            if chunk.samples:
                tokens = min(1, self.answers[chunk.row])
                self.produced[chunk.row] += tokens
                last = self.produced[chunk.row] >= self.answers[chunk.row]
                outcomes.append(Outcome(chunk.row, RequestState.FINISHED if last else None, tokens))
        measured_s = plan.predicted_s if measured_s is None else measured_s
        self.now += measured_s
        self.scheduler.settle(plan, outcomes, measured_s, self.now)
        self.scheduler.check_integrity()
        return [outcome.row for outcome in outcomes if outcome.ended is not None]

    def step(self, may_dispatch: bool = True) -> StepPlan:
        plan = self.schedule(may_dispatch)
        assert plan is not None, "nothing to run"
        self.settle(plan)
        return plan

    def drain(self, steps: int = 1000) -> list[StepPlan]:
        """Step until nothing runs."""
        plans: list[StepPlan] = []
        for _ in range(steps):
            plan = self.schedule()
            if plan is None:
                return plans
            self.settle(plan)
            plans.append(plan)
        raise AssertionError(f"still running after {steps} steps")

    def state(self, row: int) -> RequestState:
        return self.index.state_of(row)

    def forget(self, row: int) -> None:
        self.index.release(row)
        self.answers.pop(row, None)
        self.produced.pop(row, None)
