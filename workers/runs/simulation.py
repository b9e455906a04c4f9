"""A worker on virtual time: scheduler, discipline and KV accounting of production, a step-time model for the model.

Knows a stream of requests and how long a step takes. Does not know text, tokens' values, Kafka or wall time. The turn
is that of `workers.engine.engine.Engine.step`, without what only text needs (templates, sampling, stop strings,
deltas): so an hour of traffic is minutes of computing, and the decisions are those of production.

What differs from a real worker, and should be kept in mind:

- Requests are never refused at the index: all that arrived wait in it, as if Kafka had handed over everything.
- Staging takes a fixed time a request on one thread (`staging_s`), by default none.
- A request ends after the number of tokens that its trace says; the scheduler knows only `max_tokens`.
- Copies of swapped KV take the bytes over the given rates, and delay the step.
- There are no hard deadlines: no public trace has any.
- Prompts share a prefix where the trace says so (Mooncake's hashes); what a request alone computed it finds again when
  it comes back after a preemption. No prompt continues an earlier answer.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import overload

from kvcache.manager import KVCacheManager
from kvcache.partitions import Share, divide
from kvcache.swap_plan import Direction
from scheduling.batch import BatchScheduler
from scheduling.cost import CostModel
from scheduling.index import Index
from scheduling.length import LengthPredictor, LengthStatistics, QuantilePredictor
from scheduling.limits import BatchLimits
from scheduling.plan import Outcome, StepPlan
from scheduling.preemption_rules import PreemptionMode, PreemptionRules
from scheduling.priority import PriorityClass
from scheduling.qdisc import Qdisc
from scheduling.state import RequestState
from scheduling.step_time import LinearStepTime, StepTimeTracker
from scheduling.swap_rule import SwapRates, SwapRule
from scheduling.tree import Slo
from workers.runs.run_record import EngineTotals, RequestRecord, RunRecord, RunRecorder
from workers.runs.step_models import StepDuration
from workers.runs.trace_mix import ArrivingRequest

__all__ = ["BlockNames", "EngineModel", "KnownLengths", "Policy", "Simulation", "SimulationStuck", "SwapModel"]

_MOST_IDLE_TURNS = 1_000


class SimulationStuck(Exception):
    """Requests wait, nothing runs, and nothing will change that: a discipline gives no row and names no time."""


@dataclass(frozen=True, slots=True)
class SwapModel:
    places: int
    """Blocks that may be swapped out at the same time."""
    rates: SwapRates
    theta: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """The simulated machine and the worker's settings on it."""

    step_time: StepDuration
    """How long a step really takes."""
    first_guess: LinearStepTime
    """What the scheduler takes it for before it has measured any."""
    limits: BatchLimits
    num_blocks: int
    block_size: int = 16
    cost: CostModel = field(default_factory=CostModel)
    max_tokens: int = 1024
    """The output limit a request carries; its true output where that is more."""
    known_lengths: bool = False
    """The scheduler is told each request's output length beforehand."""
    staging_s: float = 0.0
    """Time on the staging thread for each request."""
    make_kv: Callable[[Index, int, int], KVCacheManager] | None = None
    """The KV accounting, of so many blocks of so many tokens; None: a worker's own."""
    shares: Mapping[int, Share] = field(default_factory=dict)
    """What classes are entitled to of the pool; none by default. (Slots: `limits.slot_parts`.)"""
    preemption: PreemptionRules = field(default_factory=PreemptionRules)
    swap: SwapModel | None = None
    """None: nothing is swapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A discipline to be tried. `make` gets a fresh index and the prices."""

    name: str
    make: Callable[[Index, CostModel], Qdisc]
    strict_classes: frozenset[PriorityClass] = frozenset()
    """Those whose tokens go first in a step."""


class BlockNames(Sequence[int]):
    """What a request's blocks contain, prompt and output, named without being written out.

    Blocks that lie wholly within the prompt's hashed pieces are named by the piece and their place in it, so equal
    pieces are equal blocks (the trace's hashes are chained already); all others by the request.
    """

    def __init__(self, request: ArrivingRequest, block_size: int) -> None:
        hashed = min(len(request.prefix_hashes) * request.prefix_tokens, request.prompt_tokens)
        self._hashes = request.prefix_hashes
        self._blocks_a_piece = request.prefix_tokens // block_size
        self._shared = hashed // block_size if self._blocks_a_piece * block_size == request.prefix_tokens else 0
        self._length = (request.prompt_tokens + request.output_tokens) // block_size
        self._own = request.number << _PLACE_BITS

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(self._length))]
        if place >= self._length:
            raise IndexError(place)
        if place < self._shared:
            piece, rest = divmod(place, self._blocks_a_piece)
            return -1 - (self._hashes[piece] << _PLACE_BITS | rest)
        return self._own | place


_PLACE_BITS = 24


class KnownLengths:
    """Implements `scheduling.length.LengthPredictor`: `max_tokens` is the truth."""

    def predict(self, priority: PriorityClass, tenant: str, max_tokens: int) -> int:
        return max_tokens

    def observe(self, priority: PriorityClass, tenant: str, predicted: int, actual: int) -> None:
        """Nothing to learn."""

    def statistics(self) -> LengthStatistics:
        return LengthStatistics(0, 0, 0, 0.0, 0.0, 0, 0)


class Simulation:
    """One run of one stream under one policy. Make a new one for the next run."""

    def __init__(
        self,
        requests: Sequence[ArrivingRequest],
        engine: EngineModel,
        policy: Policy,
        slos: Callable[[PriorityClass], Slo] = lambda _: Slo(),
        on_preempted: Callable[[ArrivingRequest, float], None] = lambda _request, _now: None,
    ) -> None:
        """`on_preempted(request, now)` is told of each suspension for somebody else."""
        self._engine = engine
        self._slos = slos
        self._on_preempted = on_preempted
        self._index = Index(capacity=max(1, len(requests)), cost=engine.cost)
        if engine.make_kv is None:
            self._kv = self._own_kv(policy.strict_classes)
        else:
            self._kv = engine.make_kv(self._index, engine.num_blocks, engine.block_size)
        self._qdisc = policy.make(self._index, engine.cost)
        self._lengths: LengthPredictor = KnownLengths() if engine.known_lengths else QuantilePredictor()
        self._scheduler = BatchScheduler(
            qdisc=self._qdisc,
            index=self._index,
            kv=self._kv,
            limits=engine.limits,
            step_time=StepTimeTracker(engine.first_guess),
            cost=engine.cost,
            lengths=self._lengths,
            strict_classes=policy.strict_classes,
            preemption=engine.preemption,
            swap_rule=None if engine.swap is None else SwapRule(engine.swap.rates, engine.swap.theta),
        )
        self._recorder = RunRecorder(requests, self._borrowed_cost)
        self._arrivals = deque(self._recorder.records)
        self._records: dict[int, RequestRecord] = {}
        """By row, until it has ended."""
        self._staging: deque[tuple[float, int]] = deque()
        """Rows with the staging thread and when each is done, in that order."""
        self._now = 0.0
        self._ended = 0
        self._idle_turns = 0

    def _own_kv(self, strict: frozenset[PriorityClass]) -> KVCacheManager:
        engine, mode = self._engine, self._engine.preemption.mode
        return KVCacheManager(
            engine.num_blocks,
            engine.block_size,
            parts=divide("KV blocks", engine.num_blocks, engine.shares),
            following=strict.intersection(PriorityClass(owner) for owner in engine.shares),
            lend=mode.evicts_for_newcomers,
            firm=mode is PreemptionMode.NONE,
            swap_places=0 if engine.swap is None else engine.swap.places,
        )

    def run(self, on_progress: Callable[[int], None] | None = None, until_s: float = inf) -> RunRecord:
        """Until every request has ended, or the first step that ends at or after `until_s`.

        `on_progress(ended)` is called after each turn. Raises `SimulationStuck`.
        """
        while self._now < until_s and (self._arrivals or self._records):
            self._turn()
            if on_progress is not None:
                on_progress(self._ended)
        self._recorder.advance(self._now)
        return self._recorder.record(
            EngineTotals(self._scheduler.statistics(), self._kv.statistics(), self._lengths.statistics())
        )

    def check_integrity(self) -> None:
        self._scheduler.check_integrity()
        self._index.check_integrity()

    # --- one turn -------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._take_arrivals()
        self._stage()
        plan = self._scheduler.schedule(self._now)
        for row in self._scheduler.take_impossible():
            self._end(row, RequestState.FAILED, ran=False)
        if plan is None:
            self._wait()
        else:
            self._idle_turns = 0
            self._run(plan)

    def _take_arrivals(self) -> None:
        index = self._index
        while self._arrivals and self._arrivals[0].request.arrival_s <= self._now:
            record = self._arrivals.popleft()
            request = record.request
            row = index.add(
                origin=request.priority,
                tenant=request.tenant,
                flow=request.flow,
                prompt_tokens=request.prompt_tokens,
                output_tokens=self._lengths.predict(request.priority, request.tenant, self._max_tokens(request)),
                arrival_s=request.arrival_s,
                ttft_deadline_s=self._slos(request.priority).ttft_deadline_s(request.arrival_s),
            )
            self._records[row] = record
            self._recorder.arrived(record)
            self._scheduler.enqueue(row, self._now)

    def _max_tokens(self, request: ArrivingRequest) -> int:
        if self._engine.known_lengths:
            return request.output_tokens
        return max(self._engine.max_tokens, request.output_tokens)

    def _stage(self) -> bool:
        """Hand rows to the staging thread and take back what is done. False: there was neither."""
        rows = self._scheduler.to_stage(self._now)
        for row in rows:
            busy_until_s = max(self._now, self._staging[-1][0] if self._staging else 0.0)
            self._staging.append((busy_until_s + self._engine.staging_s, row))
        done = False
        while self._staging and self._staging[0][0] <= self._now:
            _, row = self._staging.popleft()
            request = self._records[row].request
            names = BlockNames(request, self._engine.block_size)
            self._scheduler.staged(row, request.prompt_tokens, self._max_tokens(request), self._now, names)
            done = True
        return done or bool(rows)

    def _wait(self) -> None:
        """Nothing to run: on to the next thing that happens."""
        if self._stage():
            return  # the last `schedule` claimed a row, which is now staged
        times = [self._scheduler.next_event(self._now)]
        times.append(self._arrivals[0].request.arrival_s if self._arrivals else None)
        times.append(self._staging[0][0] if self._staging else None)
        due_s = min((time for time in times if time is not None), default=None)
        self._idle_turns += 1
        if due_s is None or self._idle_turns > _MOST_IDLE_TURNS:
            if not self._records:
                return
            raise SimulationStuck(
                f"{len(self._records)} requests wait at {self._now:.3f} s and nothing runs (next event: {due_s}, "
                f"{self._scheduler.statistics()})"
            )
        self._now = max(self._now, due_s)
        self._recorder.advance(self._now)

    def _run(self, plan: StepPlan) -> None:
        records, recorder = self._records, self._recorder
        for eviction in plan.evictions:
            recorder.preempted(records[eviction.row])
            if eviction.row != eviction.for_row:
                self._on_preempted(records[eviction.row].request, self._now)
        for row in plan.admitted:
            recorder.admitted(records[row], self._now)
        prefill = decode = context = 0
        for chunk in plan.chunks:
            context += chunk.start + chunk.tokens
            if chunk.decode:
                decode += 1
            else:
                prefill += chunk.tokens
        self._now += self._swap(plan)
        started_s = self._now
        self._now = started_s + self._engine.step_time.predict(prefill, decode, context)
        recorder.advance(self._now)
        step = len(recorder.step_ends_s)
        recorder.step_ended(started_s, self._now)
        outcomes, ended = self._book(plan, step)
        self._scheduler.settle(plan, outcomes, self._now - started_s, self._now)
        for row in ended:
            request = records[row].request
            predicted = self._index.output_tokens[row]
            self._lengths.observe(request.priority, request.tenant, predicted, len(records[row].token_steps))
            self._end(row, RequestState.FINISHED, ran=True)

    def _swap(self, plan: StepPlan) -> float:
        """Seconds that the plan's copies take."""
        seconds = 0.0
        for copy in plan.swaps:
            assert self._engine.swap is not None, f"{copy} and nowhere to swap to"
            rates = self._engine.swap.rates
            byte_s = rates.out_bytes_s if copy.direction is Direction.OUT else rates.in_bytes_s
            seconds += len(copy.blocks) * rates.block_bytes / byte_s
        return seconds

    def _book(self, plan: StepPlan, step: int) -> tuple[list[Outcome], list[int]]:
        """Service and tokens of a step; the outcomes of what sampled, and the rows that ended."""
        records, service, cost = self._records, self._recorder.service, self._engine.cost
        context_tokens = self._engine.limits.context_tokens
        outcomes: list[Outcome] = []
        ended: list[int] = []
        for chunk in plan.chunks:
            row = chunk.row
            record = records[row]
            request = record.request
            if not chunk.decode:
                # Computed for the first time, as far as it is prompt: recomputation is no service.
                end = min(chunk.start + chunk.tokens, request.prompt_tokens)
                start = max(chunk.start, record.prompt_computed)
                if end > start:
                    service[record.account] += cost.prompt(end) - cost.prompt(start)
                    record.prompt_computed = end
            if not chunk.samples:
                continue
            record.token_steps.append(step)
            tokens = len(record.token_steps)
            service[record.account] += cost.next_output(tokens)
            if tokens >= request.output_tokens or request.prompt_tokens + tokens >= context_tokens:
                outcomes.append(Outcome(row, RequestState.FINISHED))
                ended.append(row)
            else:
                outcomes.append(Outcome(row, None))
        return outcomes, ended

    def _end(self, row: int, outcome: RequestState, *, ran: bool) -> None:
        self._recorder.ended(self._records.pop(row), outcome, self._now, ran=ran)
        self._index.release(row)
        self._ended += 1

    def _borrowed_cost(self) -> list[int]:
        by_class = self._qdisc.statistics().by_class
        return [by_class[priority].borrowed_cost for priority in PriorityClass]
