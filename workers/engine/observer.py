"""What the engine tells of itself: counts and distributions as it goes, and once a second a snapshot of its parts.

Knows the engine's parts and what is worth counting. Does not know metrics' names (`workers.telemetry.engine_metrics`).
Owned by the engine thread: nothing here takes a lock, and a step pays a few microseconds. Readers on other threads take
`snapshot`, which is replaced as a whole, and the distributions' own snapshots.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kvcache.manager import KVCacheManager
from kvcache.statistics import KVCacheStatistics
from kvcache.swap_plan import Direction
from scheduling.accounting import AccountedQdisc
from scheduling.batch import BatchScheduler
from scheduling.batch_statistics import BatchStatistics
from scheduling.capacity import CapacityMeter
from scheduling.columns import grown
from scheduling.index import Index
from scheduling.length import LengthPredictor, LengthStatistics
from scheduling.plan import StepPlan
from scheduling.priority import PriorityClass
from scheduling.prompt_ratio import PromptRatio, PromptRatioStatistics
from scheduling.qdisc import QdiscStatistics
from scheduling.state import RequestState
from scheduling.tree_statistics import TreeStatistics
from workers.intake.request import Arrival
from workers.telemetry.distribution import Distribution, DistributionSnapshot
from workers.telemetry.metric_catalogue import INTER_TOKEN_GAP, STEP_SEQUENCES, STEP_TIME, STEP_TOKENS, SWAP_TIME

__all__ = ["AdmittedRequest", "EngineObserver", "EngineSnapshot", "ObserverDistributions", "Preempted"]

_INTERVAL_S = 1.0
_MANY_VICTIMS = 4_096
"""Kinds of preemptions that are told apart; victims beyond it count as `other`'s."""
_OTHER = "other"
_CLASSES = tuple(PriorityClass)
_MASK = 2**32 - 1


class Preempted(NamedTuple):
    """A kind of preemption."""

    victim: PriorityClass
    """The service class."""
    tenant: str
    causer: PriorityClass
    reason: str
    """`growth` or `admission`."""
    swapped: bool


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request that runs or is suspended."""

    arrival: Arrival
    decoding: bool
    suspended: bool
    prompt_tokens: int
    output_tokens: int
    max_output_tokens: int
    slack_s: float
    """How long it still has to keep its class's objective; infinite without one."""
    preemptions: int


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    at_s: float
    batch: BatchStatistics
    qdisc: QdiscStatistics
    tree: TreeStatistics | None
    kv: KVCacheStatistics
    lengths: LengthStatistics
    prompts: PromptRatioStatistics
    capacity_units_s: float
    waiting: Mapping[PriorityClass, int]
    """Not admitted, by service class."""
    running: Mapping[PriorityClass, int]
    """Hold a slot, by service class."""
    suspended: Mapping[PriorityClass, int]
    oldest_s: Mapping[PriorityClass, float]
    """Age of the oldest that waits, by origin class; absent for none."""
    preempted: Mapping[Preempted, int]
    """Since the start."""
    admitted: tuple[AdmittedRequest, ...]
    """Those that run or are suspended."""


@dataclass(frozen=True, slots=True)
class ObserverDistributions:
    gaps: Mapping[PriorityClass, DistributionSnapshot]
    """Between two tokens of a request, by origin class."""
    swaps: Mapping[Direction, DistributionSnapshot]
    step_time: DistributionSnapshot
    step_sequences: DistributionSnapshot
    step_tokens: DistributionSnapshot


class EngineObserver:
    def __init__(
        self,
        *,
        scheduler: BatchScheduler,
        qdisc: AccountedQdisc,
        index: Index,
        kv: KVCacheManager,
        lengths: LengthPredictor,
        prompt_ratio: PromptRatio,
        capacity: CapacityMeter,
    ) -> None:
        self._scheduler = scheduler
        self._qdisc = qdisc
        self._index = index
        self._kv = kv
        self._lengths = lengths
        self._prompt_ratio = prompt_ratio
        self._capacity = capacity
        self._gaps = {priority: Distribution(INTER_TOKEN_GAP.bounds) for priority in PriorityClass}
        self._swaps = {direction: Distribution(SWAP_TIME.bounds) for direction in Direction}
        self._step_time = Distribution(STEP_TIME.bounds)
        self._step_sequences = Distribution(STEP_SEQUENCES.bounds)
        self._step_tokens = Distribution(STEP_TOKENS.bounds)
        self._preempted: Counter[Preempted] = Counter()
        self._dispatched = [0] * len(_CLASSES)
        """Rows that were admitted, by service class; modulo 2³², as the columns are."""
        self._dispatched_before: tuple[array[int], ...] = tuple(array("I") for _ in _CLASSES)
        """By class and row: the same when the row arrived. Sixteen bytes a row."""
        self._due_s = 0.0
        self.snapshot: EngineSnapshot | None = None
        """The latest; None before the engine's first turn."""

    # --- the engine tells -----------------------------------------------------------------------------------------

    def arrived(self, row: int) -> None:
        """A row of the index is new."""
        if row >= len(self._dispatched_before[0]):
            for column in self._dispatched_before:
                more = grown(len(column), row) - len(column)
                column.frombytes(bytes(more * column.itemsize))
        for column, dispatched in zip(self._dispatched_before, self._dispatched, strict=True):
            column[row] = dispatched

    def dispatched(self, row: int) -> tuple[int, ...]:
        """A row is admitted for the first time. By class: how many were so since it arrived."""
        passed = tuple(
            (self._dispatched[priority] - self._dispatched_before[priority][row]) & _MASK for priority in _CLASSES
        )
        priority = self._index.service[row]
        self._dispatched[priority] = (self._dispatched[priority] + 1) & _MASK
        return passed

    def step(self, plan: StepPlan, guessed: int, seconds: float) -> None:
        """A forward pass was done, over so many guessed tokens besides the plan's."""
        self._step_time.observe(seconds)
        self._step_sequences.observe(len(plan.chunks))
        self._step_tokens.observe(plan.prefill_tokens + plan.decode_tokens + guessed)

    def gap(self, origin: PriorityClass, seconds: float) -> None:
        """A request has its next token, so long after the one before."""
        self._gaps[origin].observe(seconds)

    def copied(self, direction: Direction, seconds: float) -> None:
        """KV blocks were copied."""
        self._swaps[direction].observe(seconds)

    def preempted(self, victim: int, causer: int, *, tenant: str, for_growth: bool, swapped: bool) -> None:
        """Row `victim` lost its blocks to row `causer`."""
        service = self._index.service_of
        reason = "growth" if for_growth else "admission"
        kind = Preempted(service(victim), tenant, service(causer), reason, swapped)
        if kind not in self._preempted and len(self._preempted) >= _MANY_VICTIMS:
            kind = kind._replace(tenant=_OTHER)
        self._preempted[kind] += 1

    def turn(
        self,
        now: float,
        oldest: Callable[[], Iterable[Arrival]],
        admitted: Callable[[], Iterable[AdmittedRequest]],
    ) -> None:
        """The engine's turn ends. `oldest`: at least the one of each class that waits longest. `admitted`: all that
        run or are suspended."""
        if now >= self._due_s:
            self._due_s = now + _INTERVAL_S
            self.look(now, oldest(), admitted())

    def look(self, now: float, oldest: Iterable[Arrival], admitted: Iterable[AdmittedRequest]) -> None:
        """Replace the snapshot."""
        count = self._index.count
        arrived: dict[PriorityClass, float] = {}
        for arrival in oldest:
            priority, arrived_s = arrival.origin_class, arrival.arrived_s
            arrived[priority] = min(arrived.get(priority, arrived_s), arrived_s)
        running = {priority: self._scheduler.running_of(priority) for priority in _CLASSES}
        self.snapshot = EngineSnapshot(
            at_s=now,
            batch=self._scheduler.statistics(),
            qdisc=self._qdisc.statistics(),
            tree=self._qdisc.tree(now),
            kv=self._kv.statistics(),
            lengths=self._lengths.statistics(),
            prompts=self._prompt_ratio.statistics(),
            capacity_units_s=self._capacity.statistics().units_s,
            waiting={
                priority: count(priority, RequestState.WAITING)
                + count(priority, RequestState.STAGED)
                + count(priority, RequestState.CLAIMED)
                for priority in _CLASSES
            },
            running=running,
            suspended={
                priority: count(priority, RequestState.PREFILL)
                + count(priority, RequestState.DECODE)
                - running[priority]
                for priority in _CLASSES
            },
            oldest_s={priority: now - arrived_s for priority, arrived_s in arrived.items()},
            preempted=dict(self._preempted),
            admitted=tuple(admitted),
        )

    # --- reading --------------------------------------------------------------------------------------------------

    def distributions(self) -> ObserverDistributions:
        """From any thread."""
        return ObserverDistributions(
            gaps={priority: gaps.snapshot() for priority, gaps in self._gaps.items()},
            swaps={direction: times.snapshot() for direction, times in self._swaps.items()},
            step_time=self._step_time.snapshot(),
            step_sequences=self._step_sequences.snapshot(),
            step_tokens=self._step_tokens.snapshot(),
        )
