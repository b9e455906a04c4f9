"""A worker's report of itself, once a second: for `headrace top`.

Knows the engine's snapshot, counts what comes and ends by class and tenant, and makes the record. Does not know how it
is sent. Owned by the event loop. Bounded: tenants are those that have labels of their own
(`workers.telemetry.tenant_labels`), the others are one.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from math import isfinite

from scheduling.priority import PriorityClass
from topics.consumer import PartitionEpoch
from topics.replies import OutboundRecord
from topics.worker_reports import (
    MAX_REQUESTS,
    MAX_TENANTS,
    ClassReport,
    EngineReport,
    KVReport,
    RequestReport,
    TenantReport,
    TimeToFirstToken,
    WorkerReport,
)
from workers.answers.terminal_writer import Settled
from workers.engine.observer import AdmittedRequest, EngineSnapshot
from workers.engine.stages import stage_times
from workers.engine.statistics import EngineStatistics
from workers.intake.request import Arrival
from workers.telemetry.tenant_labels import TenantLabels
from workers.telemetry.wall_clock import WallClock

__all__ = ["Reporter"]

_RATE = "rate"
_Account = tuple[PriorityClass, str]


class Reporter:
    def __init__(
        self,
        topic: str,
        *,
        worker: str,
        policy: Callable[[], str],
        model: str,
        slots: int,
        class_of_node: Mapping[str, PriorityClass],
        tenants: TenantLabels,
        started_s: float,
    ) -> None:
        """`started_s`: of the monotonic clock. `class_of_node`: of the class tree's nodes. `policy`: its name now."""
        self._topic = topic
        self._worker = worker
        self._policy = policy
        self._model = model
        self._slots = slots
        self._class_of_node = class_of_node
        self._tenants = tenants
        self._clock = WallClock()
        self._started_s = started_s
        self._known: dict[PartitionEpoch, Counter[_Account]] = {}
        """Requests that have arrived and not ended, by assignment."""
        self._tokens: Counter[_Account] = Counter()
        self._answered: Counter[_Account] = Counter()
        self._missed: Counter[PriorityClass] = Counter()
        self._ttft: dict[PriorityClass, TimeToFirstToken] = {}

    # --- what happens ---------------------------------------------------------------------------------------------

    def arrived(self, arrival: Arrival) -> None:
        place = PartitionEpoch(arrival.id.topic, arrival.id.partition, arrival.epoch)
        self._known.setdefault(place, Counter())[self._account(arrival)] += 1

    def tokens(self, arrival: Arrival, count: int) -> None:
        self._tokens[self._account(arrival)] += count

    def revoked(self, partition: PartitionEpoch) -> None:
        self._known.pop(partition, None)

    def settled(self, settled: Settled, met: Mapping[str, bool]) -> None:
        """A terminal reply is on the broker. `met`: the request's objectives."""
        publication = settled.terminal.publication
        if publication is None:
            return
        assert publication.ending is not None, f"{publication.arrival.id} is settled and has not ended"
        arrival, timeline = publication.arrival, publication.ending.timeline
        account = self._account(arrival)
        known = self._known.get(settled.terminal.partition)
        if known is not None:
            known[account] -= 1
        self._answered[account] += 1
        self._missed[account[0]] += not all(met.values())
        if timeline.first_token_s is None or timeline.ended_s is None:
            return
        stages = stage_times(arrival, timeline, self._clock)
        sums = self._ttft.get(account[0], TimeToFirstToken())
        self._ttft[account[0]] = TimeToFirstToken(
            requests=sums.requests + 1,
            ingress=sums.ingress + (stages.ingress or 0.0),
            queue=sums.queue + (stages.queue or 0.0),
            slot=sums.slot + (stages.slot or 0.0),
            prefill=sums.prefill + (stages.prefill or 0.0),
            reply=sums.reply + max(0.0, settled.acknowledged_s - timeline.ended_s),
        )

    def _account(self, arrival: Arrival) -> _Account:
        return arrival.origin_class, self._tenants.of(arrival.tenant)

    # --- the record -----------------------------------------------------------------------------------------------

    def record(self, now: float, snapshot: EngineSnapshot, engine: EngineStatistics) -> OutboundRecord:
        """`now`: of the monotonic clock."""
        report = self._report(now, snapshot, engine)
        return OutboundRecord(self._topic, 0, self._worker.encode(), report.model_dump_json().encode())

    def _report(self, now: float, snapshot: EngineSnapshot, engine: EngineStatistics) -> WorkerReport:
        admitted = sorted(snapshot.admitted, key=lambda one: (one.arrival.origin_class, one.slack_s))
        tenants = self._tenant_reports(admitted)
        kv = snapshot.kv
        return WorkerReport(
            worker=self._worker,
            at_ms=self._clock.ns(now) // 1_000_000,
            up_s=now - self._started_s,
            policy=self._policy(),
            model=self._model,
            slots=self._slots,
            classes=tuple(self._class_reports(snapshot)),
            tenants=tuple(tenants[:MAX_TENANTS]),
            more_tenants=max(0, len(tenants) - MAX_TENANTS),
            requests=tuple(_request_report(one, now) for one in admitted[:MAX_REQUESTS]),
            more_requests=max(0, len(admitted) - MAX_REQUESTS),
            engine=EngineReport(
                steps=engine.steps,
                step_seconds=engine.step_seconds,
                prefill_tokens=engine.prefill_tokens,
                decode_tokens=engine.decode_tokens,
                capacity_units_s=snapshot.capacity_units_s,
            ),
            kv=KVReport(blocks=kv.pool.blocks, free=kv.pool.free, cached=kv.cached, swapped=kv.swapped),
        )

    def _class_reports(self, snapshot: EngineSnapshot) -> list[ClassReport]:
        rates: dict[PriorityClass, float] = {}
        borrowed: Counter[PriorityClass] = Counter()
        if snapshot.tree is not None:
            for bucket in snapshot.tree.buckets:
                priority = self._class_of_node.get(bucket.node)
                if bucket.bucket == _RATE and priority is not None:
                    rates[priority] = bucket.rate
            for one in snapshot.tree.borrowed:
                borrowed[one.borrower] += one.cost
        preempted: Counter[PriorityClass] = Counter()
        for kind, count in snapshot.preempted.items():
            preempted[kind.victim] += count
        answered: Counter[PriorityClass] = Counter()
        for (priority, _), count in self._answered.items():
            answered[priority] += count
        return [
            ClassReport(
                label=priority.label,
                waiting=snapshot.waiting[priority],
                oldest_s=snapshot.oldest_s.get(priority),
                running=snapshot.running[priority],
                suspended=snapshot.suspended[priority],
                kv_blocks=snapshot.kv.used_by_class.get(priority, 0),
                rate_units_s=rates.get(priority),
                dispatched_units=figures.dispatched_cost,
                borrowed_units=borrowed[priority],
                preempted=preempted[priority],
                answered=answered[priority],
                missed=self._missed[priority],
                ttft=self._ttft.get(priority, TimeToFirstToken()),
            )
            for priority, figures in sorted(snapshot.qdisc.by_class.items())
        ]

    def _tenant_reports(self, admitted: list[AdmittedRequest]) -> list[TenantReport]:
        """Those with the most requests first."""
        known: Counter[_Account] = Counter()
        for counts in self._known.values():
            known.update(counts)
        running = Counter(self._account(one.arrival) for one in admitted if not one.suspended)
        accounts = {*known, *self._tokens, *self._answered}
        return [
            TenantReport(
                label=account[0].label,
                tenant=account[1],
                # The engine's snapshot may be older than what has ended since.
                known=max(known[account], running[account]),
                running=running[account],
                output_tokens=self._tokens[account],
                answered=self._answered[account],
            )
            for account in sorted(accounts, key=lambda one: (-known[one], -self._tokens[one], one))
        ]


def _request_report(one: AdmittedRequest, now: float) -> RequestReport:
    arrival = one.arrival
    return RequestReport(
        request_id=arrival.headers.request_id,
        label=arrival.origin_class.label,
        tenant=arrival.tenant,
        state="suspended" if one.suspended else "decode" if one.decoding else "prefill",
        age_s=max(0.0, now - arrival.arrived_s),
        prompt_tokens=one.prompt_tokens,
        output_tokens=one.output_tokens,
        max_output_tokens=one.max_output_tokens,
        slack_s=one.slack_s if isfinite(one.slack_s) else None,
        preemptions=one.preemptions,
    )
