"""A worker: one accelerator's engine between its consumers and its reply topics.

Knows the order in which things start and end, and what is supervised meanwhile. Does not know how a request is
delivered (`workers.delivery`) or computed (`workers.computing`), or how a failure is named (`workers.worker_failure`).

Start: model (given, warm) → topics checked → orders read → producers → engine and staging threads → consumers join
their groups last, and read each partition's journal before its first record.
End (`stop` is set): consumers pause → the engine drains within the grace period, what waits is left for the next worker
→ replies are delivered → last notes of what is left → offsets committed → groups left → producers and threads stopped.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Tracer

from scheduling.cost import CostKind
from scheduling.priority import PriorityClass
from scheduling.tree import TreeConfig
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, Severity, check_topics
from topics.consumer_watchdog import ConsumerWatchdog
from topics.kafka_settings import KafkaSettings
from topics.replies import OutboundRecord
from workers.answers.terminal_writer import ReplyTopics
from workers.computing import Computing
from workers.configuration.config import WorkerConfig
from workers.configuration.scheduling_config import SchedulingConfig
from workers.delivery import Delivery
from workers.engine.assembly import class_tree, cost_model
from workers.engine.messages import Cancelled, Drain, QuotaShare
from workers.health import Health, HealthFile
from workers.http_endpoint import HttpEndpoint
from workers.intake.staging import Refused, Staged, StageJob
from workers.orders.control import ControlEffects, WorkerControl
from workers.orders.live_scheduling import LiveScheduling
from workers.orders.quota_share import ShareOfPartitions
from workers.telemetry.reporter import Reporter
from workers.telemetry.tenant_labels import TenantLabels
from workers.telemetry.tracing import RequestTracer
from workers.telemetry.wall_clock import WallClock
from workers.telemetry.worker_telemetry import WorkerTelemetry
from workers.watchdog import Watchdog
from workers.worker_failure import WorkerFailedError, named_failure
from workers.worker_statistics import WorkerStatistics

if TYPE_CHECKING:
    from workers.models.loaded_model import (
        LoadedModel,  # with it comes torch, which a worker of another runner does without
    )
    from workers.runners.rank_group import RankGroup

__all__ = ["TopicsNotReadyError", "Worker", "WorkerFailedError"]

log = logging.getLogger(__name__)

_LAST_STEP_S = 15.0
"""At the end, a step that takes longer is taken for stuck."""
_RANKS_LOOK_S = 0.5
_SHARE_INTERVAL_S = 1.0


class TopicsNotReadyError(Exception):
    """The topics are not as a worker needs them; the message says which and what to do."""


class Worker:
    """`await Worker(…).run(stop)`; `ready` is set when the worker has joined its groups."""

    def __init__(
        self,
        config: WorkerConfig,
        model: "LoadedModel",
        kafka: KafkaSettings,
        tracer: Tracer,
        *,
        instance: str,
        on_progress: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """`instance`: this worker's name, unlike that of any other that lives (`workers.instance`)."""
        self.ready = asyncio.Event()
        self._config = config
        self._model = model
        self._kafka = kafka
        self._on_progress = on_progress
        self._catalogue = Catalogue(prefix=config.kafka.topic_prefix, group_prefix=config.kafka.group_prefix)
        self._classes = tuple(PriorityClass.from_label(label) for label in config.classes)
        self._broken = asyncio.Event()
        self._failure: WorkerFailedError | None = None
        """Of a thread, or of what it can't do without."""
        self._drain_ordered = asyncio.Event()
        """On the control topic: as if `stop` were set."""
        self._draining = False

        tree = self._tree(config.scheduling)
        self._computing = Computing(
            config,
            model,
            begin=self._begin,
            staged=self._staged,
            published=self._published,
            on_broken=self._break,
        )
        self._scheduling = LiveScheduling(config.scheduling, self._tree, self._computing.put)
        self._control = WorkerControl(
            kafka,
            self._catalogue,
            worker=instance,
            classes=config.classes,
            effects=ControlEffects(
                cancel=lambda orders: self._computing.put(Cancelled(orders)),
                obey=self._scheduling.obey,
                drain=self._drain_ordered.set,
                problem=lambda: self._scheduling.problem,
            ),
        )
        topics = ReplyTopics(
            self._catalogue.deltas, self._catalogue.replies, self._catalogue.dead_letters, self._catalogue.prefix
        )
        self.telemetry = self._telemetry(tree, topics, instance)
        self._delivery = Delivery(
            config,
            model,
            kafka,
            self._catalogue,
            tree,
            instance=instance,
            topics=topics,
            computing=self._computing,
            orders=self._control.orders,
            telemetry=self.telemetry,
            tracer=self._request_tracer(tracer),
            call_soon=self._call_soon,
            on_broken=self._break,
        )
        self.health = self._health()
        self.endpoint = None if config.health.listen is None else HttpEndpoint.at(config.health.listen)
        """Where others may mount what they have to tell, before `run`."""
        if self.endpoint is not None:
            self.health.mount(self.endpoint)

    # --- its parts ------------------------------------------------------------------------------------------------

    def _tree(self, scheduling: SchedulingConfig) -> TreeConfig:
        """The class tree of a section on this machine, with every class that is served in it. Raises `TreeError`."""
        slots, model = self._config.engine.max_sequences, self._model
        cost = cost_model(CostKind(scheduling.cost), model.rates, slots)
        tree = class_tree(scheduling, model.rates, cost, slots, model.limits.context_tokens)
        for priority in self._classes:
            tree.of(priority)
        return tree

    def _telemetry(self, tree: TreeConfig, topics: ReplyTopics, instance: str) -> WorkerTelemetry:
        config, model = self._config, self._model
        classes = {child.name: child for child in tree.walk() if child.priority is not None}
        reporter = Reporter(
            self._catalogue.reports,
            worker=instance,
            policy=lambda: self._scheduling.policy,
            model=model.served_names[0],
            slots=config.engine.max_sequences,
            class_of_node={name: child.priority for name, child in classes.items() if child.priority is not None},
            tenants=TenantLabels(config.telemetry.max_tenants, config.scheduling.tenant_weights),
            started_s=time.monotonic(),
        )
        return WorkerTelemetry(
            config.telemetry,
            observer=self._computing.observer,
            model=model.served_names[0],
            max_sequences=config.engine.max_sequences,
            slos={child.priority: child.slo for child in classes.values() if child.priority is not None},
            gpu_uuid=model.gpu_uuid,
            known_tenants=list(config.scheduling.tenant_weights),
            topics=topics,
            statistics=self.statistics,
            reporter=reporter,
            publish=self._publish_report,
        )

    def _request_tracer(self, tracer: Tracer) -> RequestTracer:
        labels = [priority.label for priority in self._classes]
        group_of = {self._catalogue.requests(label): self._catalogue.group(label) for label in labels}
        return RequestTracer(tracer, WallClock(), group_of, self._config.kafka.client_id)

    def _health(self) -> Health:
        return Health(
            last_turn_s=lambda: self._computing.last_turn_s,
            # A step is planned within its cap; ten of them is not slow any more but stuck.
            longest_turn_s=10.0 + 10 * self._computing.step_cap_s + self._config.health.interval_s,
            accepting=lambda: self.ready.is_set() and not self._draining,
            unhealthy=lambda: next(
                (reason for channel in self._delivery.channels.values() if (reason := channel.consumer.unhealthy)),
                None,
            ),
        )

    @property
    def policy(self) -> str:
        """The queueing discipline that is in force: configured, or ordered on the control topic."""
        return self._scheduling.policy

    def reload_tree(self, config: WorkerConfig) -> None:
        """Go on under the class tree of a configuration that was read again; everything else needs a restart.

        Raises `TreeError` if it has no place for a class that is served.
        """
        self._scheduling.reconfigure(config.scheduling)

    def _publish_report(self, report: OutboundRecord) -> None:
        # With the deltas, and never instead of one: the next report says all that this one would have.
        if self._delivery.deltas.has_room:
            self._delivery.deltas.send(report)

    def statistics(self) -> WorkerStatistics:
        delivery = self._delivery
        return WorkerStatistics(
            engine=self._computing.statistics(),
            ingress=delivery.ingress.statistics(),
            residency=delivery.residency.statistics(),
            payloads={priority: source.statistics() for priority, source in delivery.payloads.items()},
            consumers={priority: channel.consumer.statistics() for priority, channel in delivery.channels.items()},
            transactions={priority: channel.transactions() for priority, channel in delivery.channels.items()},
            deltas=delivery.deltas.statistics(),
            undelivered_bytes=self._computing.outbox.undelivered_bytes,
        )

    # --- life -----------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain.

        Raises `TopicsNotReadyError`, `EndpointError`, `HttpEndpointError`, `KafkaUnavailableError`, `AdminError`,
        `WorkerFailedError`.
        """
        self._loop = asyncio.get_running_loop()
        if stop.is_set():
            return
        partitions = await self._check_topics()
        async with AsyncExitStack() as clean_up:
            await self.telemetry.open()
            clean_up.push_async_callback(self.telemetry.close)
            if self.endpoint is not None:
                await clean_up.enter_async_context(self.endpoint.serving())
            clean_up.push_async_callback(self._control.stop)
            await self._control.start()
            clean_up.push_async_callback(self._delivery.stop)
            await self._delivery.start()
            self._computing.warm_up()
            self._computing.start_staging()
            clean_up.push_async_callback(asyncio.to_thread, self._computing.stop_staging)
            self._computing.start_engine()
            clean_up.push_async_callback(asyncio.to_thread, self._computing.stop_engine, _LAST_STEP_S)
            try:
                async with asyncio.TaskGroup() as tasks:
                    await self._serve(stop, tasks, partitions)
            except ExceptionGroup as group:
                failure = named_failure(group)
                if failure is None:
                    raise
                raise failure from group

    async def _check_topics(self) -> int:
        """How many partitions the served classes have, all together. Raises `TopicsNotReadyError`, `AdminError`."""
        async with KafkaAdmin(self._kafka) as admin:
            problems = await check_topics(admin, self._catalogue, labels=self._config.classes)
            cluster = await admin.cluster()
        for problem in problems:
            if problem.severity is Severity.WARNING:
                log.warning("%s", problem)
        errors = [str(problem) for problem in problems if problem.severity is Severity.ERROR]
        if errors:
            raise TopicsNotReadyError("\n".join(errors))
        served = {self._catalogue.requests(priority.label) for priority in self._classes}
        return sum(topic.partitions for topic in cluster.topics.values() if topic.name in served)

    async def _serve(self, stop: asyncio.Event, tasks: asyncio.TaskGroup, partitions: int) -> None:
        ended = asyncio.Event()
        self._delivery.serve(tasks)
        self._supervise(tasks, ended, partitions)
        try:
            if await self._unless_stopped(stop, self._delivery.join_groups(tasks)):
                self._on_progress(f"Ready: serving {', '.join(self._config.classes)} of {self._catalogue.prefix}.")
                self.ready.set()
                await self._unless_stopped(stop, stop.wait())
            await self._drain()
        finally:
            ended.set()
            self._delivery.end_besides()
            try:
                await self._give_back()
            finally:
                await self._delivery.leave_groups()

    def _supervise(self, tasks: asyncio.TaskGroup, ended: asyncio.Event, partitions: int) -> None:
        """What goes on beside the requests, until `ended`."""
        config = self._config
        tasks.create_task(self._control.run(ended))
        tasks.create_task(self.telemetry.run(ended))
        steps = Watchdog(lambda: self._computing.last_sign_s, self._computing.longest_step_s)
        tasks.create_task(steps.run(ended))
        consumers = [channel.consumer for channel in self._delivery.channels.values()]
        stalls = ConsumerWatchdog(self._kafka, consumers, stall_s=config.health.stall_s)
        tasks.create_task(stalls.run(ended))
        if self._model.group is not None:
            tasks.create_task(_watch_ranks(self._model.group, ended))
        if config.health.file is not None:
            file = HealthFile(config.health.file, config.health.interval_s, self.health)
            tasks.create_task(file.run(ended))
        if config.scheduling.quotas.share is not None:
            self._computing.put(QuotaShare(config.scheduling.quotas.share))
            return
        share = ShareOfPartitions(
            assigned=lambda: sum(consumer.statistics().assigned for consumer in consumers),
            partitions=partitions,
            interval_s=_SHARE_INTERVAL_S,
            tell=lambda share: self._computing.put(QuotaShare(share)),
        )
        tasks.create_task(share.run(ended))

    async def _unless_stopped(self, stop: asyncio.Event, work: Coroutine[Any, Any, Any]) -> bool:
        """Whether `work` was done before `stop`. Raises `WorkerFailedError` if a thread of ours broke meanwhile."""
        working = asyncio.create_task(work)
        signs = (stop, self._drain_ordered, self._broken)
        waiting = {working, *(asyncio.create_task(sign.wait()) for sign in signs)}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
        self._raise_if_broken()
        if stop.is_set() or self._drain_ordered.is_set():
            return False
        working.result()
        return True

    async def _drain(self) -> None:
        """Nothing new; what runs ends within the grace period or is left; what is answered is delivered."""
        self._on_progress("Draining: nothing new starts, what runs may finish …")
        self._draining = True
        self._control.draining()
        self._delivery.close()
        self._computing.put(Drain())
        grace_s = self._config.egress.drain_grace_s
        if not await asyncio.to_thread(self._computing.wait_drained, grace_s):
            log.warning("some requests still ran after %g s: they are left for the next worker", grace_s)
        if not await asyncio.to_thread(self._computing.stop_engine, _LAST_STEP_S):
            raise WorkerFailedError(f"the step that runs has not ended for {_LAST_STEP_S:g} s")
        await self._delivery.finish()
        self._raise_if_broken()

    async def _give_back(self) -> None:
        """What runs takes no blame for an end that is none of its doing: the engine neither broke nor hangs."""
        if self._failure is None and await asyncio.to_thread(self._computing.stop_engine, _LAST_STEP_S):
            await self._delivery.give_back()

    # --- from the engine's threads --------------------------------------------------------------------------------

    def _begin(self, job: StageJob) -> None:
        self._delivery.attempts.stage(job)

    def _staged(self, message: Staged | Refused) -> None:
        self._delivery.attempts.staged(message)

    def _published(self) -> None:
        self._call_soon(self._delivery.egress.notify)

    def _break(self, what: str, error: BaseException) -> None:
        """From any thread: nothing is computed any more, or nothing can be begun. The first failure is the reason."""
        if self._failure is None:
            self._failure = WorkerFailedError(f"{what}: {error!r}")
            self._failure.__cause__ = error
        self._call_soon(self._broken.set)

    def _call_soon(self, call: Callable[[], None]) -> None:
        """On the event loop, from any thread."""
        self._loop.call_soon_threadsafe(call)

    def _raise_if_broken(self) -> None:
        if self._failure is not None:
            raise self._failure


async def _watch_ranks(group: "RankGroup", ended: asyncio.Event) -> None:
    """Raises `WorkerFailedError` when one of the others is gone: without its weights nothing can be computed."""
    while not ended.is_set():
        if await asyncio.to_thread(group.wait_lost, _RANKS_LOOK_S):
            raise WorkerFailedError("a rank of the tensor-parallel group has ended: the group must be started again")
