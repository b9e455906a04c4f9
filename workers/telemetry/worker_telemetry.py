"""The telemetry of a worker: who is told what, who is asked when, and where it all comes together.

Knows the store of metrics and everybody who fills it. Does not know names (`workers.telemetry.metric_catalogue`) or
transport (`workers.telemetry.metric_export`). All methods are the event loop's; readings happen on other threads and
see the state of at most a second ago, recorded counts up to date.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

from scheduling.priority import PriorityClass
from scheduling.tree import Slo
from topics.consumer import PartitionEpoch
from topics.replies import OutboundRecord
from workers.answers.terminal_writer import ReplyTopics, Settled
from workers.configuration.telemetry_config import TelemetryConfig
from workers.engine.observer import EngineObserver
from workers.intake.ingress import Refusal
from workers.intake.request import Arrival, Moved
from workers.telemetry import metric_catalogue as ours
from workers.telemetry import metric_compat as theirs
from workers.telemetry.delivery_metrics import read_delivery
from workers.telemetry.engine_metrics import EngineMetrics
from workers.telemetry.gpu_metrics import gpu_metrics
from workers.telemetry.metric_compat import declared
from workers.telemetry.metric_export import MetricExport
from workers.telemetry.metric_store import MetricStore, Reading
from workers.telemetry.rates import TenantThroughput
from workers.telemetry.reporter import Reporter
from workers.telemetry.request_metrics import RequestMetrics
from workers.telemetry.slo import SloTracker
from workers.telemetry.tenant_labels import TenantLabels
from workers.worker_statistics import WorkerStatistics

__all__ = ["WorkerTelemetry"]

_INTERVAL_S = 1.0
_SHOWN_WINDOW = "1h"
"""Of the attainment under other people's names, which have no window."""


class WorkerTelemetry:
    """Where telemetry is off, every method does nothing."""

    def __init__(
        self,
        config: TelemetryConfig,
        *,
        observer: EngineObserver | None,
        model: str,
        max_sequences: int,
        slos: Mapping[PriorityClass, Slo],
        known_tenants: list[str],
        gpu_uuid: str | None,
        topics: ReplyTopics,
        statistics: Callable[[], WorkerStatistics],
        reporter: Reporter,
        publish: Callable[[OutboundRecord], None],
    ) -> None:
        """`observer`: the engine's; None: telemetry is off. `known_tenants` get series of their own before others.
        `publish` is called with `reporter`'s record once a second."""
        self._config = config
        self._on = observer is not None
        self._observer = observer
        self._reporter = reporter
        self._publish = publish
        self._statistics = statistics
        self._deltas_topic = topics.deltas
        self._latest: WorkerStatistics | None = None
        self._looked = asyncio.Event()
        self._slos = SloTracker(slos)
        self._tenants = TenantLabels(config.max_tenants, known_tenants)
        self._throughput = TenantThroughput()
        self._live: dict[PartitionEpoch, Counter[str]] = {}
        """Requests that have arrived and not ended, by assignment and tenant label."""
        self.store = MetricStore(declared(config.compat))
        self._requests = RequestMetrics(self.store, self._tenants, model, topics.dead_letters)
        self._engine = None
        if observer is not None:
            self._engine = EngineMetrics(observer, self._tenants, model, max_sequences)
            self.store.read_from(self._engine.read)
        gpu = gpu_metrics(gpu_uuid) if self._on and gpu_uuid is not None else None
        if gpu is not None:
            self.store.read_from(gpu.read)
        self.store.read_from(self._read)
        self.export = MetricExport(self.store, host=config.metrics_host, port=config.metrics_port if self._on else None)

    # --- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Raises `EndpointError`."""
        if self._on:
            await asyncio.to_thread(self.export.open)

    async def close(self) -> None:
        """Whatever is counted by now is pushed before it returns."""
        if self._on:
            await asyncio.to_thread(self.export.close)

    async def run(self, stop: asyncio.Event) -> None:
        """Look each second, until `stop` is set, and once more then."""
        looked_s = time.monotonic()
        while self._on and not stop.is_set():
            with suppress(TimeoutError):  # a second is over
                async with asyncio.timeout(_INTERVAL_S):
                    await stop.wait()
            now = time.monotonic()
            self.look(now, now - looked_s)
            looked_s = now

    async def next_look(self) -> None:
        """Return after the next look: what is read then is not older than this call, but for the engine's second."""
        await self._looked.wait()

    def look(self, now: float, elapsed_s: float) -> None:
        """A second is over."""
        self._looked.set()
        self._looked = asyncio.Event()
        self._latest = statistics = self._statistics()
        if self._engine is not None:
            self._engine.look(now, statistics.engine)
        if self._observer is not None and (snapshot := self._observer.snapshot) is not None:
            self._publish(self._reporter.record(now, snapshot, statistics.engine))
        active = {tenant for tenants in self._live.values() for tenant, count in tenants.items() if count > 0}
        self._throughput.look(max(elapsed_s, 1e-3), active)

    # --- what happens to requests ---------------------------------------------------------------------------------

    def arrived(self, arrival: Arrival) -> None:
        if self._on:
            place = PartitionEpoch(arrival.id.topic, arrival.id.partition, arrival.epoch)
            self._live.setdefault(place, Counter())[self._tenants.of(arrival.tenant)] += 1
            self._reporter.arrived(arrival)

    def refused(self, refusal: Refusal) -> None:
        if self._on:
            self._requests.refused(refusal)

    def tokens(self, arrival: Arrival, count: int) -> None:
        """So many output tokens have come."""
        if self._on and count:
            tenant = self._tenants.of(arrival.tenant)
            self.store.add(ours.GENERATED, count, arrival.origin_class.label, tenant)
            self._throughput.add(tenant, count)
            self._reporter.tokens(arrival, count)

    def begun(self, arrival: Arrival, acknowledged_s: float) -> None:
        """The broker has the first delta of its stream."""
        if self._on:
            self._requests.begun(arrival, acknowledged_s)

    def revoked(self, partition: PartitionEpoch) -> None:
        self._live.pop(partition, None)
        self._reporter.revoked(partition)

    def settled(self, settled: Settled) -> dict[str, bool]:
        """A terminal reply is on the broker. Returns the request's objectives, and whether it met them."""
        if not self._on:
            return {}
        met: dict[str, bool] = {}
        publication = settled.terminal.publication
        if publication is not None:
            assert publication.ending is not None
            if not isinstance(publication.ending.reason, Moved):
                met = self._slos.record(publication.arrival, publication.ending, settled.acknowledged_s)
            tenants = self._live.get(settled.terminal.partition)
            if tenants is not None:
                tenants[self._tenants.of(publication.arrival.tenant)] -= 1
        self._requests.settled(settled, met)
        self._reporter.settled(settled, met)
        return met

    # --- a reading ------------------------------------------------------------------------------------------------

    def _read(self, reading: Reading) -> None:
        latest = self._latest
        if latest is not None:
            read_delivery(reading, latest, self._deltas_topic)
        for attained in self._slos.attainment(time.monotonic()):
            label = attained.priority.label
            reading.set(ours.SLO_ATTAINMENT, attained.ratio, label, attained.slo, attained.window)
            if attained.window == _SHOWN_WINDOW and reading.declares(theirs.LLM_ATTAINMENT):
                reading.set(theirs.LLM_ATTAINMENT, attained.ratio, label, attained.slo)
        for tenant, rate in self._throughput.mean().items():
            reading.set(ours.THROUGHPUT, rate, tenant)
        for tenant, rate in self._throughput.reached().items():
            reading.set(ours.THROUGHPUT_P99, rate, tenant)
            if reading.declares(theirs.SCHEDULER_THROUGHPUT):
                reading.set(theirs.SCHEDULER_THROUGHPUT, rate, tenant)
