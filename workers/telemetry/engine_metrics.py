"""Metrics of the engine: read from its snapshot and its distributions.

Knows what the observer tells and under which name it goes. Decides nothing, keeps the last minute of a few totals.
`look` is called each second on the event loop, `read` at each reading in the reader's thread.
"""

from collections import Counter

from scheduling.priority import PriorityClass
from workers.engine.observer import EngineObserver, EngineSnapshot, ObserverDistributions
from workers.engine.statistics import EngineStatistics
from workers.telemetry import metric_catalogue as ours
from workers.telemetry import metric_compat as theirs
from workers.telemetry.distribution import DistributionSnapshot
from workers.telemetry.metric_store import Reading
from workers.telemetry.rates import Growth, Spread
from workers.telemetry.tenant_labels import TenantLabels

__all__ = ["EngineMetrics"]

_MINUTE = 60
_BUSY_SECONDS = 10
_NOBODY = ""


class EngineMetrics:
    def __init__(self, observer: EngineObserver, tenants: TenantLabels, model: str, max_sequences: int) -> None:
        self._observer = observer
        self._tenants = tenants
        self._model = model
        self._max_sequences = max_sequences
        self._depths = {priority: Spread(_MINUTE) for priority in PriorityClass}
        self._forward = Growth(_BUSY_SECONDS)
        self._dispatched = {priority: Growth(_MINUTE) for priority in PriorityClass}
        self._borrowed: dict[tuple[str, PriorityClass], Growth] = {}
        self._engine: EngineStatistics | None = None

    def look(self, now: float, engine: EngineStatistics) -> None:
        """Each second."""
        self._engine = engine
        self._forward.look(now, engine.step_seconds)
        snapshot = self._observer.snapshot
        if snapshot is None:
            return
        for priority, waiting in snapshot.waiting.items():
            self._depths[priority].look(waiting)
            self._dispatched[priority].look(now, snapshot.qdisc.by_class[priority].dispatched_cost)
        for borrowed in () if snapshot.tree is None else snapshot.tree.borrowed:
            growth = self._borrowed.setdefault((borrowed.lender, borrowed.borrower), Growth(_MINUTE))
            growth.look(now, borrowed.cost)

    # --- a reading ------------------------------------------------------------------------------------------------

    def read(self, reading: Reading) -> None:
        self._read_distributions(reading, self._observer.distributions())
        if self._engine is not None:
            self._read_engine(reading, self._engine)
        snapshot = self._observer.snapshot
        if snapshot is not None:
            self._read_queue(reading, snapshot)
            self._read_shares(reading, snapshot)
            self._read_kv(reading, snapshot)
            self._read_preemptions(reading, snapshot)
            self._read_predictions(reading, snapshot)
            self._read_compat(reading, snapshot)

    def _read_distributions(self, reading: Reading, told: ObserverDistributions) -> None:
        reading.distribution(ours.STEP_TIME, told.step_time)
        reading.distribution(ours.STEP_SEQUENCES, told.step_sequences)
        reading.distribution(ours.STEP_TOKENS, told.step_tokens)
        for priority, gaps in told.gaps.items():
            reading.distribution(ours.INTER_TOKEN_GAP, gaps, priority.label)
        for direction, times in told.swaps.items():
            reading.distribution(ours.SWAP_TIME, times, direction.value)
            if reading.declares(theirs.LLM_SWAP):
                reading.distribution(theirs.LLM_SWAP, times, direction.value)
        if reading.declares(theirs.VLLM_GAP):
            everybody = list(told.gaps.values())
            counts = tuple(map(sum, zip(*(gaps.counts for gaps in everybody), strict=True)))
            together = DistributionSnapshot(everybody[0].bounds, counts, sum(gaps.sum for gaps in everybody))
            reading.distribution(theirs.VLLM_GAP, together, self._model)

    def _read_engine(self, reading: Reading, engine: EngineStatistics) -> None:
        reading.set(ours.STEPS, engine.steps)
        reading.set(ours.COMPUTED_TOKENS, engine.prefill_tokens, "prefill")
        reading.set(ours.COMPUTED_TOKENS, engine.decode_tokens, "decode")
        reading.set(ours.ENGINE_TIME, engine.step_seconds, "forward")
        reading.set(ours.ENGINE_TIME, engine.python_seconds, "python")
        reading.set(ours.ENGINE_TIME, max(0.0, engine.python_seconds - engine.python_cpu_seconds), "waiting")
        reading.set(ours.BUSY, min(1.0, self._forward.rate()))
        if engine.speculation is None:
            return
        for priority, known in engine.speculation.by_class.items():
            reading.set(ours.GUESSED_TOKENS, known.accepted, priority.label, "accepted")
            reading.set(ours.GUESSED_TOKENS, known.guessed - known.accepted, priority.label, "refused")
        if reading.declares(theirs.VLLM_DRAFTS):
            reading.set(theirs.VLLM_DRAFTS, engine.speculation.guessed, self._model)
            reading.set(theirs.VLLM_ACCEPTED, engine.speculation.accepted, self._model)

    def _read_queue(self, reading: Reading, snapshot: EngineSnapshot) -> None:
        for priority, waiting in snapshot.waiting.items():
            label = priority.label
            reading.set(ours.QUEUE_DEPTH, waiting, label)
            reading.set(ours.QUEUE_COST, snapshot.qdisc.by_class[priority].queued_cost, label)
            reading.set(ours.QUEUE_VARIANCE, self._depths[priority].variance(), label)
            reading.set(ours.OLDEST_AGE, snapshot.oldest_s.get(priority, 0.0), label)
            if reading.declares(theirs.LLM_QUEUE_DEPTH):
                reading.set(theirs.LLM_QUEUE_DEPTH, waiting, label)

    def _read_shares(self, reading: Reading, snapshot: EngineSnapshot) -> None:
        for priority, figures in snapshot.qdisc.by_class.items():
            reading.set(ours.DISPATCHED, figures.dispatched, priority.label)
            reading.set(ours.DISPATCHED_COST, figures.dispatched_cost, priority.label)
        reading.set(ours.CAPACITY, snapshot.capacity_units_s)
        if snapshot.tree is None:
            return
        for bucket in snapshot.tree.buckets:
            reading.set(ours.BUCKET_LEVEL, bucket.level, bucket.node, bucket.bucket)
            reading.set(ours.BUCKET_RATE, bucket.rate, bucket.node, bucket.bucket)
        for borrowed in snapshot.tree.borrowed:
            pair = borrowed.lender, borrowed.borrower.label
            reading.set(ours.BORROWED_COST, borrowed.cost, *pair)
            ratio = self._borrow_ratio(borrowed.lender, borrowed.borrower)
            reading.set(ours.BORROW_RATIO, ratio, *pair)
            if reading.declares(theirs.SCHEDULER_BORROW):
                reading.set(theirs.SCHEDULER_BORROW, ratio, *pair)

    def _borrow_ratio(self, lender: str, borrower: PriorityClass) -> float:
        dispatched = self._dispatched[borrower].amount()
        growth = self._borrowed.get((lender, borrower))
        return 0.0 if growth is None or dispatched <= 0 else min(1.0, max(0.0, growth.amount() / dispatched))

    def _read_kv(self, reading: Reading, snapshot: EngineSnapshot) -> None:
        kv = snapshot.kv
        for priority in PriorityClass:
            label = priority.label
            asked = kv.asked_tokens_by_class.get(priority, 0)
            hit = kv.hit_tokens_by_class.get(priority, 0)
            reading.set(ours.KV_BLOCKS, kv.used_by_class.get(priority, 0), label, "used")
            reading.set(ours.PREFIX_ASKED, asked, label)
            reading.set(ours.PREFIX_HIT, hit, label)
            reading.set(ours.SLOTS, snapshot.running[priority], label, "running")
            reading.set(ours.SLOTS, snapshot.suspended[priority], label, "suspended")
            if reading.declares(theirs.LLM_HIT_RATE):
                reading.set(theirs.LLM_HIT_RATE, hit / asked if asked else 0.0, label)
        reading.set(ours.KV_BLOCKS, kv.pool.free, _NOBODY, "free")
        reading.set(ours.KV_BLOCKS, kv.cached, _NOBODY, "cached")
        reading.set(ours.KV_BLOCKS, kv.swapped, _NOBODY, "swapped")
        reading.set(ours.KV_USAGE, 1 - kv.pool.free / kv.pool.blocks)
        reading.set(ours.SLOTS, self._max_sequences - sum(snapshot.running.values()), _NOBODY, "free")

    def _read_preemptions(self, reading: Reading, snapshot: EngineSnapshot) -> None:
        counts: Counter[tuple[str, str, str, str, str]] = Counter()
        for kind, count in snapshot.preempted.items():
            mode = "swap" if kind.swapped else "recompute"
            tenant = self._tenants.known(kind.tenant)
            counts[kind.victim.label, tenant, kind.causer.label, kind.reason, mode] += count
        for labels, count in counts.items():
            reading.set(ours.PREEMPTIONS, count, *labels)
        reading.set(ours.RECOMPUTED, snapshot.batch.recomputed_tokens)
        reading.set(ours.DEMOTIONS, snapshot.batch.suspensions.demotions)
        by_victim: Counter[tuple[str, str]] = Counter()
        by_reason: Counter[tuple[str, str]] = Counter()
        for (victim, tenant, _, reason, _), count in counts.items():
            by_victim[tenant, victim] += count
            by_reason[victim, reason] += count
        if reading.declares(theirs.LLM_PREEMPTIONS):
            for pair, count in by_reason.items():
                reading.set(theirs.LLM_PREEMPTIONS, count, *pair)
            for pair, count in by_victim.items():
                reading.set(theirs.SCHEDULER_PREEMPTIONS, count, *pair)

    def _read_predictions(self, reading: Reading, snapshot: EngineSnapshot) -> None:
        reading.set(ours.PREDICTION_ERROR, snapshot.batch.step_time.error, "step")
        reading.set(ours.PREDICTION_ERROR, snapshot.prompts.relative_error, "prompt")
        lengths = snapshot.lengths
        actual = lengths.actual_tokens / lengths.observed if lengths.observed else 0.0
        error = lengths.mean_absolute_error_tokens / actual if actual else 0.0
        reading.set(ours.PREDICTION_ERROR, error, "output")

    def _read_compat(self, reading: Reading, snapshot: EngineSnapshot) -> None:
        if reading.declares(theirs.VLLM_RUNNING):
            waiting = sum(snapshot.waiting.values()) + sum(snapshot.suspended.values())
            reading.set(theirs.VLLM_RUNNING, sum(snapshot.running.values()), self._model)
            reading.set(theirs.VLLM_WAITING, waiting, self._model)
            reading.set(theirs.VLLM_KV_USAGE, 1 - snapshot.kv.pool.free / snapshot.kv.pool.blocks, self._model)
            reading.set(theirs.VLLM_PREEMPTIONS, snapshot.batch.preemptions, self._model)
