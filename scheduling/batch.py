"""The batch scheduler: from waiting rows to the plan of the next step, and back from a step to the books.

Knows rows, token counts, blocks by number, and the queueing discipline. Does not know token ids, tensors, Kafka or the
clock: `now` is an argument, in seconds of one monotonic clock.

A turn of the engine is `enqueue`, `staged`, `cancel` as messages come, then `expire` → `to_stage` → `schedule` → the
forward → `settle`. A plan is settled or dropped: the next `schedule` plans its chunks again, onto the same KV.
`schedule` claims rows that are not staged yet, so `to_stage` may have something new after it: ask before sleeping.

Who owns what: this class alone moves a row from state to state and changes a running sequence. Blocks are the KV
manager's, order and charges the discipline's. It tells of every end (`expire`, `take_impossible`, or the caller's own
`settle`, `cancel`, `fail`), and the caller then releases the row. A dequeued row is settled with the discipline
exactly once, whatever ends it.

Work a turn is over what runs, and over the few fronts of the classes; never over what waits.
"""

from collections.abc import Sequence

from kvcache.manager import KVCacheManager
from kvcache.swap_plan import Direction
from scheduling.admission import Admission
from scheduling.batch_statistics import BatchStatistics
from scheduling.capacity import CapacityMeter
from scheduling.claims import Claims
from scheduling.cost import CostModel
from scheduling.decode_growth import DecodeGrowth
from scheduling.endings import Endings
from scheduling.index import Index
from scheduling.ledger import Cause
from scheduling.length import LengthPredictor
from scheduling.limits import BatchLimits, LimitsError
from scheduling.plan import Outcome, StepPlan
from scheduling.preemption import Preemption
from scheduling.preemption_rules import PreemptionMode, PreemptionRules
from scheduling.priority import PriorityClass
from scheduling.qdisc import Qdisc
from scheduling.running import RunningSequence, RunningSet
from scheduling.staging_window import StagingWindow
from scheduling.state import RequestState
from scheduling.step_cap import StepCap
from scheduling.step_order import StepBudget, StepLoad, order_step
from scheduling.step_time import StepTimeTracker
from scheduling.suspension import Suspensions
from scheduling.swap_rule import SwapRule

__all__ = ["BatchScheduler"]


class BatchScheduler:
    """Raises `LimitsError` if the pool can't hold one longest request."""

    def __init__(
        self,
        *,
        qdisc: Qdisc,
        index: Index,
        kv: KVCacheManager,
        limits: BatchLimits,
        step_time: StepTimeTracker,
        cost: CostModel,
        lengths: LengthPredictor,
        strict_classes: frozenset[PriorityClass],
        capacity: CapacityMeter | None = None,
        preemption: PreemptionRules | None = None,
        swap_rule: SwapRule | None = None,
    ) -> None:
        """`capacity`: learns what the machine does, and tells the discipline. None: it was told for good.
        `swap_rule`: prices swapping; None where nothing can be swapped.
        """
        rules = PreemptionRules() if preemption is None else preemption
        if kv.capacity_tokens < limits.context_tokens:
            raise LimitsError(
                f"the KV pool holds {kv.num_blocks} blocks × {kv.block_size} tokens = {kv.capacity_tokens} tokens, "
                f"less than one longest request (context_tokens = {limits.context_tokens}): give it "
                f"{kv.blocks_for(limits.context_tokens)} blocks or lower the context"
            )
        self._qdisc = qdisc
        self._index = index
        self._kv = kv
        self._limits = limits
        self._step_time = step_time
        self._step_cap = StepCap(limits.step_max_s, rules.slos, index, step_time)
        self._cost = cost
        self._lengths = lengths
        self._capacity = capacity
        self._running = RunningSet()
        self._claims = Claims(limits.backfill_limit)
        self._window = StagingWindow(index, qdisc, limits, strict_classes)
        self._endings = Endings(
            qdisc=qdisc,
            index=index,
            kv=kv,
            cost=cost,
            running=self._running,
            claims=self._claims,
            window=self._window,
            expiries_a_call=limits.expiries_a_call,
        )
        never_evicts = rules.mode is PreemptionMode.NONE
        slots = {priority: limits.slot_part(priority) for priority in PriorityClass}
        self._preemption = Preemption(rules, qdisc, index, kv, self._running, slots)
        self._suspensions = Suspensions(
            mode=rules.mode,
            preemption=self._preemption,
            swap_rule=swap_rule,
            qdisc=qdisc,
            index=index,
            kv=kv,
            running=self._running,
            claims=self._claims,
            cost=cost,
            step_time=step_time,
        )
        self._growth = DecodeGrowth(kv, self._running, self._preemption, self._suspensions, never_evicts=never_evicts)
        self._admission = Admission(
            qdisc=qdisc,
            index=index,
            kv=kv,
            limits=limits,
            running=self._running,
            claims=self._claims,
            window=self._window,
            cost=cost,
            strict_classes=strict_classes,
            preemption=self._preemption,
            suspensions=self._suspensions,
            longest_promised=never_evicts,
        )
        self._plan: StepPlan | None = None
        """The plan that may be settled."""
        self._load = StepLoad(0, 0, 0)
        """Its load."""
        self._may_dispatch = True
        self._steps = self._prefill_tokens = self._decode_tokens = 0
        self._recomputed_tokens = 0

    # --- requests come --------------------------------------------------------------------------------------------

    def enqueue(self, row: int, now: float) -> None:
        """A new row of the index, in state WAITING."""
        assert self._index.state_of(row) is RequestState.WAITING, f"row {row} is {self._index.state_of(row).name}"
        self._endings.watch_deadline(row)
        self._qdisc.enqueue(row, now)

    def to_stage(self, now: float) -> list[int]:
        """Rows to hand to the staging thread now, claimed ones first; each is handed out once."""
        return self._window.to_stage(self._claims.claimed())

    def staged(
        self, row: int, prompt_tokens: int, max_output_tokens: int, now: float, block_names: Sequence[int] = ()
    ) -> None:
        """The row's tokens are made: from here on its true prompt counts, and its output is predicted anew.

        `block_names`: of the content of its whole blocks (`kvcache.block_hash`), a list to which the caller adds as
        tokens are sampled; none where nothing is to be found in the prefix cache. What is found there now costs
        nothing; the admission looks again.

        `max_output_tokens` of 0: it ends when its prompt is computed, and nothing is sampled.

        A request that fits into no step and no pool is FAILED at once and named by `take_impossible`.
        """
        index = self._index
        assert prompt_tokens > 0 <= max_output_tokens, f"{row=}, {prompt_tokens=}, {max_output_tokens=}"
        if prompt_tokens + min(1, max_output_tokens) > self._limits.context_tokens:
            self._endings.impossible(row, now)
            return
        max_output_tokens = min(max_output_tokens, self._limits.context_tokens - prompt_tokens)
        self._window.staged(row, max_output_tokens, block_names)
        output_tokens = self._predicted_output(row, max_output_tokens)
        charged = self._cost.prompt_of(index, row)
        cached_tokens = self._kv.cached_prefix(block_names, prompt_tokens)
        index.set_tokens(row, prompt_tokens=prompt_tokens, output_tokens=output_tokens, cached_tokens=cached_tokens)
        if index.state[row] == RequestState.WAITING:
            index.move(row, RequestState.STAGED)
        else:
            # Claimed: the discipline charged the estimate when it picked the row.
            self._qdisc.charge(row, self._cost.prompt_of(index, row) - charged, now, Cause.PROMPT)

    def _predicted_output(self, row: int, max_output_tokens: int) -> int:
        index = self._index
        if max_output_tokens == 0:
            return 0
        tokens = self._lengths.predict(index.origin_of(row), index.tenant_name(row), max_output_tokens)
        # The limit itself is what a predictor without samples says, and it may be all that the context leaves.
        return min(tokens, index.output_tokens[row]) if tokens == max_output_tokens else tokens

    def staging_failed(self, row: int, now: float) -> None:
        """The staging thread refused the row: it is FAILED, and the caller answers it."""
        assert self._window.is_handed_out(row), f"row {row} was not handed out to be staged"
        self._end(row, RequestState.FAILED, now)

    def awaits_tokens(self, now: float) -> bool:
        """Whether the next step would run without an urgent request only because its tokens are not made yet."""
        return len(self._running) > 0 and self._admission.strict_without_tokens(now)

    # --- live configuration ---------------------------------------------------------------------------------------

    def set_strict(self, classes: frozenset[PriorityClass]) -> None:
        """These classes are strict from now on; what was admitted as strict stays so."""
        self._admission.set_strict(classes)
        self._window.set_strict(classes)
        self._kv.set_following(classes)

    def set_paused(self, classes: frozenset[PriorityClass]) -> None:
        """Nothing of these service classes starts until further notice; what was admitted goes on."""
        self._admission.set_paused(classes)

    # --- a step ---------------------------------------------------------------------------------------------------

    def schedule(self, now: float, may_dispatch: bool = True) -> StepPlan | None:
        """The next step; None if there is nothing to run now.

        Without `may_dispatch` (the outbox is full, the worker drains) nothing new starts; what was admitted goes on,
        preempted sequences included.
        """
        self._may_dispatch = may_dispatch
        self._kv.tick(now)
        evicted = self._growth.grow(now)
        cap_s = self._step_cap.seconds(self._running, now)
        budget = StepBudget(self._running, self._limits, self._step_time, cap_s)
        admitted = self._admission.admit(budget, now, may_dispatch=may_dispatch, strict_only=evicted)
        chunks, load = order_step(self._running, self._limits, self._step_time, cap_s)
        evictions, swaps = self._suspensions.take()
        if not chunks:
            assert not evictions, f"{evictions} for nobody"
            self._plan = None
            return None
        predicted_s = self._step_time.predict(load.prefill_tokens, load.decode_sequences, load.context_tokens)
        self._load = load
        self._plan = StepPlan(chunks, admitted, evictions, swaps, predicted_s)
        return self._plan

    def take_chosen(self) -> list[int]:
        """Rows whose turn came since the last call and that have their tokens and found no slot, blocks or step. Each
        once."""
        return self._admission.take_chosen()

    def settle(self, plan: StepPlan, outcomes: Sequence[Outcome], measured_s: float, now: float) -> None:
        """The plan has run in `measured_s` seconds. One outcome for each chunk that `samples`."""
        assert plan is self._plan, "only the latest plan can be settled, once, and not after one of its rows ended"
        self._plan = None
        left = {outcome.row: outcome for outcome in outcomes}
        cost = self._cost
        units = sampled = 0
        for chunk in plan.chunks:
            sequence = self._running[chunk.row]
            end = chunk.start + chunk.tokens
            if not chunk.decode:
                units += cost.prompt(end) - cost.prompt(chunk.start)
            self._recomputed_tokens += max(0, min(end, sequence.protected_until) - chunk.start)
            assert not chunk.samples or chunk.row in left, f"row {chunk.row} sampled a token and has no outcome"
            outcome = left.pop(chunk.row) if chunk.samples else None
            sequence.computed_tokens = end if outcome is None else end + max(0, outcome.tokens - 1)
            self._kv.computed(chunk.row, sequence.computed_tokens)
            if outcome is None:
                continue
            sequence.first_token_s = now if sequence.first_token_s is None else sequence.first_token_s
            for _ in range(outcome.tokens):
                sequence.output_tokens += 1
                token_cost = cost.next_output(sequence.output_tokens)
                units += token_cost
                self._qdisc.charge(chunk.row, token_cost, now)
            sampled += outcome.tokens if chunk.decode else 0
            if outcome.ended is not None:
                self._end(chunk.row, outcome.ended, now)
                continue
            assert sequence.output_tokens < sequence.max_output_tokens, f"{sequence} goes on past its limit"
            if not sequence.decoding:
                sequence.decoding = True
                self._index.move(chunk.row, RequestState.DECODE)
        assert not left, f"rows {list(left)} have an outcome and sampled nothing"
        load = self._load
        rows = load.decode_sequences + sum(outcome.guessed for outcome in outcomes)
        self._step_time.observe(load.prefill_tokens, rows, load.context_tokens, measured_s)
        self._running.count_sat_out({chunk.row for chunk in plan.chunks})
        self._measure_capacity(units, measured_s, now)
        self._steps += 1
        self._prefill_tokens += load.prefill_tokens
        self._decode_tokens += sampled

    def copied(self, direction: Direction, blocks: int, seconds: float) -> None:
        """One of a plan's `swaps` was done, and took so long."""
        self._suspensions.copied(direction, blocks, seconds)

    def prefill_s(self, tokens: int) -> float:
        """What so many prompt tokens add to steps that run anyway, as it is known now."""
        return self._suspensions.prefill_s(tokens)

    def _measure_capacity(self, units: int, measured_s: float, now: float) -> None:
        """Of steps that had all the work they could take; others say what was asked for, not what was possible."""
        if self._capacity is None or not len(self._qdisc):
            return
        slots_full = len(self._running) >= self._limits.max_sequences - self._limits.strict_slots
        if not (slots_full or self._claims.short_of_room):
            return
        changed = self._capacity.observe(units, measured_s)
        if changed is not None:
            self._qdisc.set_capacity(changed, now)

    # --- requests end ---------------------------------------------------------------------------------------------

    def cancel(self, row: int, now: float) -> None:
        """End a request that has not ended, wherever it is. The caller releases the row."""
        self._end(row, RequestState.CANCELLED, now)

    def fail(self, row: int, now: float) -> None:
        """The same, for a fault: state FAILED."""
        self._end(row, RequestState.FAILED, now)

    def expire(self, now: float) -> list[int]:
        """End waiting requests whose hard deadline has passed: state EXPIRED; the caller answers and releases them.

        At most `limits.expiries_a_call` of them; the rest in the next call, for which `next_event` is due at once.
        """
        return self._endings.expire(now)

    def take_impossible(self) -> list[int]:
        """Rows that can never run, since the last call: FAILED; the caller answers and releases them."""
        return self._endings.take_impossible()

    def _end(self, row: int, state: RequestState, now: float) -> None:
        if self._endings.end(row, state, now):
            # A plan that names the row is void.
            self._plan = None

    # --- reading --------------------------------------------------------------------------------------------------

    def running_of(self, priority: PriorityClass) -> int:
        """How many of a service class hold a slot."""
        return self._running.count(priority)

    def running(self, row: int) -> RunningSequence:
        """An admitted row that is not suspended: to be read, until the next call."""
        return self._running[row]

    def slack_s(self, row: int, output_tokens: int, now: float) -> float:
        """Of an admitted row: how long it still has to keep its class's objective; infinite without one."""
        return self._preemption.slack_s(row, output_tokens, now)

    @property
    def has_work(self) -> bool:
        """Whether any request that was enqueued has not ended."""
        return len(self._qdisc) + len(self._running) > 0 or bool(self._claims.waiting(with_claimed=True))

    def next_event(self, now: float) -> float | None:
        """When `schedule` or `expire` may have something that they don't have now, if no message comes before."""
        due = self._endings.next_deadline()
        # Without leave to dispatch nothing that the discipline lets go can start.
        eligible = self._qdisc.next_event(now) if self._may_dispatch else None
        return min((time for time in (due, eligible) if time is not None), default=None)

    def statistics(self) -> BatchStatistics:
        suspensions = self._suspensions.statistics()
        return BatchStatistics(
            queued=len(self._qdisc),
            claimed=len(self._claims.claimed()),
            staging=self._window.handed_out,
            staged=self._window.staged_rows,
            running=len(self._running),
            preempted=self._claims.preempted_count,
            steps=self._steps,
            prefill_tokens=self._prefill_tokens,
            decode_tokens=self._decode_tokens,
            admitted=self._admission.first_admissions,
            readmitted=self._admission.readmissions,
            backfills=self._claims.backfills,
            preemptions=suspensions.preemptions,
            lost_tokens=suspensions.lost_tokens,
            recomputed_tokens=self._recomputed_tokens,
            suspensions=suspensions,
            shortened_steps=self._step_cap.shrunk,
            expired=self._endings.expired,
            impossible=self._endings.impossible_ever,
            step_time=self._step_time.statistics(),
        )

    def check_integrity(self) -> None:
        """Assert that states, slots, blocks and the discipline tell one story. Linear in everything."""
        index = self._index
        self._running.check_integrity()
        self._claims.check_integrity()
        self._window.check_integrity()
        self._kv.check_integrity()
        self._qdisc.check_integrity()
        assert len(self._running) <= self._limits.max_sequences, f"{len(self._running)} sequences run"
        assert self._kv.statistics().tables == len(self._running), "blocks are held by somebody who doesn't run"
        for sequence in self._running:
            expected = RequestState.DECODE if sequence.decoding else RequestState.PREFILL
            assert index.state_of(sequence.row) is expected, f"{sequence} is {index.state_of(sequence.row).name}"
            assert self._kv.holds(sequence.row), f"{sequence} runs without blocks"
        for head in self._claims.claimed():
            assert index.state_of(head) is RequestState.CLAIMED, f"head {head} is {index.state_of(head).name}"
        by_state = {state: sum(index.count(priority, state) for priority in PriorityClass) for state in RequestState}
        assert by_state[RequestState.CLAIMED] == len(self._claims.claimed()), "a claimed row is lost"
        assert by_state[RequestState.WAITING] + by_state[RequestState.STAGED] == len(self._qdisc), (
            f"{by_state}, but {len(self._qdisc)} are queued"
        )
        admitted = by_state[RequestState.PREFILL] + by_state[RequestState.DECODE]
        assert admitted == len(self._running) + self._claims.preempted_count, f"{by_state} don't add up"
