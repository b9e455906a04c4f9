"""A worker: one accelerator's engine between its consumers and its reply topics.

Knows the order in which things start and end, and who hands what to whom. Does not know how any of them works.

Start: model (given, warm) → topics checked → orders read → producers → engine and staging threads → consumers join
their groups last.
End (`stop` is set): consumers pause → the engine drains within the grace period, what waits is left for the next worker
→ replies are delivered → offsets committed → groups left → producers and threads stopped.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Tracer

from scheduling.cost import CostKind
from scheduling.priority import PriorityClass
from scheduling.tree import TreeConfig
from topics.admin import KafkaAdmin
from topics.aiokafka_producer import KafkaUnavailableError
from topics.attempt_notes import PriorAttempts
from topics.catalogue import Catalogue, Severity, check_topics
from topics.consumer import PartitionEpoch
from topics.consumer_watchdog import ConsumerStalledError, ConsumerWatchdog
from topics.dead_letter_limit import DeadLetterLimit, DeadLetterRules, TooManyDeadLettersError
from topics.errors import RequestError
from topics.kafka_settings import KafkaSettings
from topics.known_topics import RecordRefusedError
from topics.log_reader import LogReader
from topics.producer import DeltaProducer
from topics.progress_journal import ProgressJournal
from topics.record_producer import ProducerStoppedError
from topics.replies import OutboundRecord
from topics.terminal_replies import Fate, TerminalReplies
from workers.assembly import assemble, block_hasher, class_tree, cost_model, engine_inbox, step_cap_s
from workers.attempts import Attempts
from workers.class_channel import ClassChannel
from workers.config import WorkerConfig
from workers.continuing import Continuing
from workers.control import ControlEffects, WorkerControl
from workers.detokenizer import DetokenizerFactory
from workers.egress import Egress
from workers.engine_messages import Cancelled, Drain, QuotaShare, Revoked
from workers.engine_thread import EngineThread
from workers.errors import StepHangs
from workers.giving_up import GivingUp
from workers.health import Health, HealthFile
from workers.http_endpoint import HttpEndpoint
from workers.ingress import Ingress, Refusal
from workers.live_scheduling import LiveScheduling
from workers.outbox import Outbox
from workers.prompt import PreparedRequest, PromptBuilder
from workers.quota_share import ShareOfPartitions
from workers.reporter import Reporter
from workers.request import Arrival, Moved
from workers.residency import Residency
from workers.scheduling_config import SchedulingConfig
from workers.staging import Staged, StageJob, Staging
from workers.tenant_labels import TenantLabels
from workers.terminal_writer import ReplyTopics, Settled
from workers.tracing import ReplySent, RequestTracer
from workers.usage import UsageWriter
from workers.wall_clock import WallClock
from workers.watchdog import Watchdog
from workers.worker_statistics import WorkerStatistics
from workers.worker_telemetry import WorkerTelemetry

if TYPE_CHECKING:
    from workers.loaded_model import LoadedModel  # with it comes torch, which a worker of another runner does without
    from workers.rank_group import RankGroup

__all__ = ["TopicsNotReadyError", "Worker", "WorkerFailedError"]

log = logging.getLogger(__name__)

_DELIVERY_GRACE_S = 10.0
"""At the end, how long replies may take to reach the broker."""
_LAST_STEP_S = 15.0
"""A step that takes longer is taken for stuck."""
_STUCK_S = 60.0
_STUCK_STEPS = 30
"""Planned steps after which one that still runs is taken for hung."""
_RANKS_LOOK_S = 0.5
_PRODUCER_GRACE_S = 2.0
_SHARE_INTERVAL_S = 1.0
_DELIVERY_BROKE = (RecordRefusedError, ProducerStoppedError)


class TopicsNotReadyError(Exception):
    """The topics are not as a worker needs them; the message says which and what to do."""


class WorkerFailedError(Exception):
    """A part of the worker broke: it must end and be started again."""


_OURS = (WorkerFailedError, KafkaUnavailableError)
_OUR_ENDS = (ConsumerStalledError, StepHangs, TooManyDeadLettersError)
"""What ends the worker, to be said in its own words."""


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
        self._topics = ReplyTopics(
            self._catalogue.deltas, self._catalogue.replies, self._catalogue.dead_letters, self._catalogue.prefix
        )
        groups = {priority: self._catalogue.group(priority.label) for priority in self._classes}
        group_of = {self._catalogue.requests(priority.label): groups[priority] for priority in self._classes}
        self._tracer = RequestTracer(tracer, WallClock(), group_of, config.kafka.client_id)
        self._thread_broke = asyncio.Event()
        self._thread_error: BaseException | None = None
        self._drain_ordered = asyncio.Event()
        """On the control topic: as if `stop` were set."""

        tree = self._tree(config.scheduling)
        weights = {priority: tree.of(priority).weight for priority in self._classes}
        self._residency = Residency(weights, config.ingress.max_rows, config.ingress.max_bytes)
        self._inbox = engine_inbox(config.ingress.max_rows)
        self._scheduling = LiveScheduling(config.scheduling, self._tree, self._inbox.put)
        self._control = WorkerControl(
            kafka,
            self._catalogue,
            worker=instance,
            classes=config.classes,
            effects=ControlEffects(
                cancel=lambda orders: self._inbox.put(Cancelled(orders)),
                obey=self._scheduling.obey,
                drain=self._drain_ordered.set,
                problem=lambda: self._scheduling.problem,
            ),
        )
        self._journal = ProgressJournal(kafka, self._catalogue.progress, group_of)
        self._attempts = Attempts(
            self._journal,
            accept=self._accept,
            stage=self._stage,
            let_in=self._inbox.put,
            go_on=self._go_on,
            give_up=self._give_up,
            on_broken=self._on_thread_broken,
            call_soon=self._on_loop,
            full=self._residency.paused,
            certain=lambda priority: self._channels[priority].consumer.lease.holds,
        )
        self._ingress = Ingress(
            config.ingress,
            default_reply_topic=self._topics.replies,
            trust_tenant_header=config.scheduling.trust_tenant_header,
            ttft_slo_s={priority: tree.of(priority).slo.ttft_s for priority in self._classes},
            accept=self._attempts.take,
            refuse=self._refuse,
            cancelling=self._control.orders.cancelling,
        )
        self._outbox = Outbox(config.egress.max_pending_bytes, self._notify_egress)
        self._builder = builder = PromptBuilder(
            model.tokenizer,
            model.limits,
            model.served_names,
            default_max_tokens=config.model.default_max_tokens,
        )
        new_detokenizer = DetokenizerFactory(model.tokenizer.backend_tokenizer)
        hasher = block_hasher(config.kv, model.runner, model.served_names[0], model.dtype)
        self._staging = Staging(
            lambda arrival, sequence: prepare(builder, arrival, sequence),
            self._attempts.staged,
            self._on_thread_broken,
            hasher,
        )
        self._parts = assemble(
            config.engine,
            config.scheduling,
            kv_config=config.kv,
            preemption=config.preemption,
            swap=model.swap,
            runner=model.runner,
            rates=model.rates,
            max_rows=config.ingress.max_rows,
            context_tokens=model.limits.context_tokens,
            outbox=self._outbox,
            inbox=self._inbox,
            stage=self._attempts.stage,
            hasher=hasher,
            new_detokenizer=new_detokenizer,
            clock=time.monotonic,
            cpu_clock=time.thread_time,
            observed=config.telemetry.enabled,
        )
        self.telemetry = WorkerTelemetry(
            config.telemetry,
            observer=self._parts.observer,
            model=model.served_names[0],
            max_sequences=config.engine.max_sequences,
            slos={child.priority: child.slo for child in tree.walk() if child.priority is not None},
            gpu_uuid=model.gpu_uuid,
            known_tenants=list(config.scheduling.tenant_weights),
            topics=self._topics,
            statistics=self.statistics,
            reporter=self._reporter(tree, instance),
            publish=self._publish_report,
        )
        self._step_cap_s = step_cap_s(config.engine, model.rates)
        self._thread = EngineThread(self._parts.engine, self._inbox, self._on_thread_broken)
        self._draining = False
        self.health = self._health()
        self.endpoint = None if config.health.listen is None else HttpEndpoint.at(config.health.listen)
        """Where others may mount what they have to tell, before `run`."""
        if self.endpoint is not None:
            self.health.mount(self.endpoint)
        self._deltas = DeltaProducer(kafka)
        self._channels = {
            priority: ClassChannel(
                priority,
                config,
                kafka,
                self._catalogue,
                self._topics,
                self._residency,
                instance=instance,
                on_batch=self._tracer.polled,
                on_record=self._ingress.take,
                adopt=self._journal.adopt,
                on_confirmed=self._attempts.confirmed,
                on_revoked=self._revoke,
                given_back=self._attempts.given_back,
                on_settled=self._settled,
            )
            for priority in self._classes
        }
        self._egress = Egress(
            config.egress,
            outbox=self._outbox,
            topics=self._topics,
            deltas=self._deltas,
            writers={priority: channel.writer for priority, channel in self._channels.items()},
            groups=groups,
            new_detokenizer=new_detokenizer,
            attempts=self._attempts,
            on_tokens=self.telemetry.tokens,
            usage=UsageWriter(self._catalogue.usage, WallClock()) if config.telemetry.usage_records else None,
            token_bytes=new_detokenizer.token_bytes,
        )
        limit = DeadLetterLimit(
            kafka,
            DeadLetterRules(**dict(config.dead_letters)),
            letters=self._topics.dead_letters,
            replies=self._topics.replies,
        )
        self._continuing = Continuing(
            self._attempts,
            self._deltas,
            LogReader(kafka, "deltas-told"),
            self._topics.deltas,
            context=lambda message: self._egress.context_of(message.job.arrival),
            new_detokenizer=new_detokenizer,
            let_in=self._inbox.put,
        )
        self._giving_up = GivingUp(limit, self._egress.give_up)

    def _tree(self, scheduling: SchedulingConfig) -> TreeConfig:
        """The class tree of a section on this machine, with every class that is served in it. Raises `TreeError`."""
        slots, model = self._config.engine.max_sequences, self._model
        cost = cost_model(CostKind(scheduling.cost), model.rates, slots)
        tree = class_tree(scheduling, model.rates, cost, slots, model.limits.context_tokens)
        for priority in self._classes:
            tree.of(priority)
        return tree

    @property
    def policy(self) -> str:
        """The queueing discipline that is in force: configured, or ordered on the control topic."""
        return self._scheduling.policy

    def _reporter(self, tree: TreeConfig, instance: str) -> Reporter:
        config = self._config
        return Reporter(
            self._catalogue.reports,
            worker=instance,
            policy=lambda: self._scheduling.policy,
            model=self._model.served_names[0],
            slots=config.engine.max_sequences,
            class_of_node={child.name: child.priority for child in tree.walk() if child.priority is not None},
            tenants=TenantLabels(config.telemetry.max_tenants, config.scheduling.tenant_weights),
            started_s=time.monotonic(),
        )

    def _publish_report(self, report: OutboundRecord) -> None:
        # With the deltas, and never instead of one: the next report says all that this one would have.
        if self._deltas.has_room:
            self._deltas.send(report)

    def reload_tree(self, config: WorkerConfig) -> None:
        """Go on under the class tree of a configuration that was read again; everything else needs a restart.

        Raises `TreeError` if it has no place for a class that is served.
        """
        self._scheduling.reconfigure(config.scheduling)

    # --- life -----------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain.

        Raises `TopicsNotReadyError`, `EndpointError`, `HttpEndpointError`, `KafkaUnavailableError`, `AdminError`,
        `WorkerFailedError`.
        """
        self._loop = asyncio.get_running_loop()
        if stop.is_set():
            return
        await self._check_topics()
        async with AsyncExitStack() as clean_up:
            await self.telemetry.open()
            clean_up.push_async_callback(self.telemetry.close)
            if self.endpoint is not None:
                await clean_up.enter_async_context(self.endpoint.serving())
            clean_up.push_async_callback(self._control.stop)
            await self._control.start()
            replies = [channel.replies for channel in self._channels.values()]
            producers: list[_Producer] = [self._deltas, self._journal, *replies]
            clean_up.push_async_callback(_stop_all, producers)
            for producer in producers:
                await producer.start()
            # Holds the interpreter for a second or two: not while anybody waits for an answer.
            self._builder.warm_up()
            self._staging.start()
            clean_up.push_async_callback(asyncio.to_thread, self._staging.stop)
            self._thread.start()
            clean_up.push_async_callback(asyncio.to_thread, self._thread.stop, _LAST_STEP_S)
            try:
                async with asyncio.TaskGroup() as tasks:
                    await self._serve(stop, tasks)
            except ExceptionGroup as group:
                expected, bugs = group.split((*_OURS, *_OUR_ENDS, *_DELIVERY_BROKE))
                if expected is None or bugs is not None:
                    raise
                error = expected.exceptions[0]
                if isinstance(error, _DELIVERY_BROKE):
                    raise WorkerFailedError(f"a reply can't be delivered: {error}") from group
                if isinstance(error, _OUR_ENDS):
                    raise WorkerFailedError(str(error)) from group
                raise error from group

    async def _check_topics(self) -> None:
        async with KafkaAdmin(self._kafka) as admin:
            problems = await check_topics(admin, self._catalogue, labels=self._config.classes)
            cluster = await admin.cluster()
        for problem in problems:
            if problem.severity is Severity.WARNING:
                log.warning("%s", problem)
        served = {self._catalogue.requests(priority.label) for priority in self._classes}
        self._partitions = sum(topic.partitions for topic in cluster.topics.values() if topic.name in served)
        errors = [str(problem) for problem in problems if problem.severity is Severity.ERROR]
        if errors:
            raise TopicsNotReadyError("\n".join(errors))

    async def _serve(self, stop: asyncio.Event, tasks: asyncio.TaskGroup) -> None:
        ended = asyncio.Event()
        egress = tasks.create_task(self._egress.run())
        besides = [tasks.create_task(self._giving_up.run()), tasks.create_task(self._continuing.run())]
        writers = [tasks.create_task(channel.writer.run()) for channel in self._channels.values()]
        tasks.create_task(self._control.run(ended))
        tasks.create_task(self._watchdog().run(ended))
        if self._model.group is not None:
            tasks.create_task(_watch_ranks(self._model.group, ended))
        if self._config.health.file is not None:
            file = HealthFile(self._config.health.file, self._config.health.interval_s, self.health)
            tasks.create_task(file.run(ended))
        consumers = [channel.consumer for channel in self._channels.values()]
        stalls = ConsumerWatchdog(self._kafka, consumers, stall_s=self._config.health.stall_s)
        tasks.create_task(stalls.run(ended))
        tasks.create_task(self.telemetry.run(ended))
        quotas = self._config.scheduling.quotas
        if quotas.share is not None:
            self._inbox.put(QuotaShare(quotas.share))
        else:
            tasks.create_task(self._share_of_partitions().run(ended))
        try:
            for channel in self._channels.values():
                channel.open()
            if await self._unless_stopped(stop, self._join_groups(tasks)):
                self._on_progress(f"Ready: serving {', '.join(self._config.classes)} of {self._catalogue.prefix}.")
                self.ready.set()
                await self._unless_stopped(stop, stop.wait())
            await self._drain(egress, writers)
        finally:
            ended.set()
            for task in besides:
                task.cancel()
            await self._give_back()
            await self._leave_groups()

    async def _give_back(self) -> None:
        """What runs takes no blame for an end that is none of its doing: the engine neither broke nor hangs."""
        if self._thread_error is not None or not await asyncio.to_thread(self._thread.stop, _LAST_STEP_S):
            return
        self._attempts.give_back()
        try:
            async with asyncio.timeout(_PRODUCER_GRACE_S):
                await self._attempts.given_back()
        except TimeoutError:
            log.warning(
                "the broker did not take the last notes in %g s: the next worker may suspect", _PRODUCER_GRACE_S
            )

    async def _join_groups(self, tasks: asyncio.TaskGroup) -> None:
        """Return when every group has given this worker its partitions, none included."""
        consumers = [channel.consumer for channel in self._channels.values()]
        for consumer in consumers:
            await consumer.start()
            tasks.create_task(consumer.wait_closed())
        for consumer in consumers:
            await consumer.wait_assigned()

    async def _leave_groups(self) -> None:
        """All at once: each may take seconds while the broker is away. Raises the first error, when all have left."""
        outcomes = await asyncio.gather(
            *(channel.consumer.stop() for channel in self._channels.values()), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _unless_stopped(self, stop: asyncio.Event, work: Coroutine[Any, Any, Any]) -> bool:
        """Whether `work` was done before `stop`. Raises `WorkerFailedError` if a thread of ours broke meanwhile."""
        working = asyncio.create_task(work)
        signs = (stop, self._drain_ordered, self._thread_broke)
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

    def _raise_if_broken(self) -> None:
        if self._thread_error is not None:
            raise WorkerFailedError(f"the engine broke: {self._thread_error!r}") from self._thread_error

    async def _drain(self, egress: asyncio.Task[None], writers: Sequence[asyncio.Task[None]]) -> None:
        """Nothing new; what runs ends within the grace period or is left; what is answered is delivered."""
        self._on_progress("Draining: nothing new starts, what runs may finish …")
        self._draining = True
        self._control.draining()
        for channel in self._channels.values():
            channel.close()
        self._inbox.put(Drain())
        grace_s = self._config.egress.drain_grace_s
        if not await asyncio.to_thread(self._thread.wait_drained, grace_s):
            log.warning("some requests still ran after %g s: they are left for the next worker", grace_s)
        if not await asyncio.to_thread(self._thread.stop, _LAST_STEP_S):
            raise WorkerFailedError(f"the step that runs has not ended for {_LAST_STEP_S:g} s")
        self._egress.close()
        try:
            async with asyncio.timeout(_DELIVERY_GRACE_S):
                await egress
                for channel in self._channels.values():
                    channel.writer.close()
                await asyncio.wait(writers)
        except TimeoutError:
            log.warning("the broker did not take all replies in %g s: the next worker answers again", _DELIVERY_GRACE_S)
            for task in (egress, *writers):
                task.cancel()
        self._raise_if_broken()

    def _watchdog(self) -> Watchdog:
        longest_s = self._config.engine.step_timeout_s or max(_STUCK_S, _STUCK_STEPS * self._step_cap_s)
        return Watchdog(lambda: self._thread.pulse_s, longest_s)

    def _health(self) -> Health:
        return Health(
            last_turn_s=lambda: self._thread.pulse_s,
            # A step is planned within its cap; ten of them is not slow any more but stuck.
            longest_turn_s=10.0 + 10 * self._step_cap_s + self._config.health.interval_s,
            accepting=lambda: self.ready.is_set() and not self._draining,
            unhealthy=lambda: next(
                (reason for channel in self._channels.values() if (reason := channel.consumer.unhealthy)), None
            ),
        )

    def _share_of_partitions(self) -> ShareOfPartitions:
        return ShareOfPartitions(
            assigned=lambda: sum(channel.consumer.statistics().assigned for channel in self._channels.values()),
            partitions=self._partitions,
            interval_s=_SHARE_INTERVAL_S,
            tell=lambda share: self._inbox.put(QuotaShare(share)),
        )

    def statistics(self) -> WorkerStatistics:
        return WorkerStatistics(
            engine=self._parts.engine.statistics(),
            ingress=self._ingress.statistics(),
            residency=self._residency.statistics(),
            consumers={priority: channel.consumer.statistics() for priority, channel in self._channels.items()},
            transactions={priority: channel.transactions() for priority, channel in self._channels.items()},
            deltas=self._deltas.statistics(),
            undelivered_bytes=self._outbox.undelivered_bytes,
        )

    # --- what channels tell (event loop) --------------------------------------------------------------------------

    def _revoke(self, partition: PartitionEpoch) -> None:
        self.telemetry.revoked(partition)
        self._egress.revoke(*partition)
        self._attempts.revoke(partition)
        self._inbox.put(Revoked(partition.topic, partition.partition, partition.epoch))

    def _accept(self, arrival: Arrival) -> None:
        self.telemetry.arrived(arrival)
        self._inbox.put(arrival)
        # An order may have come since ingress looked; one to another class is obeyed here alone.
        headers, timestamp_ms = arrival.headers, arrival.record.timestamp_ms
        order = self._control.orders.cancelling(headers.request_id, headers.job_id, arrival.tenant, timestamp_ms)
        if order is not None:
            self._inbox.put(Cancelled((order,)))

    def _refuse(self, refusal: Refusal) -> None:
        self.telemetry.refused(refusal)
        self._egress.refuse(refusal)

    def _go_on(self, message: Staged) -> None:
        self._continuing.put(message)

    def _give_up(self, arrival: Arrival, prior: PriorAttempts) -> None:
        self._giving_up.put(arrival, prior)

    def _settled(self, settled: Settled) -> None:
        """A terminal reply has left the worker, one way or the other."""
        publication = settled.terminal.publication
        self._attempts.settled(settled.terminal.record, settled.terminal.epoch)
        delivered = settled.fate is Fate.DELIVERED
        met = self.telemetry.settled(settled) if delivered else {}
        if publication is None:
            return
        was_full = self._outbox.full
        self._outbox.delivered(publication)
        if was_full and not self._outbox.full:
            self._inbox.wake()  # it may dispatch again
        assert publication.ending is not None
        if isinstance(publication.ending.reason, Moved):
            return
        sent = settled.terminal.reply
        reply = ReplySent(
            sent.topic,
            settled.sent_s,
            settled.acknowledged_s,
            sent.size_bytes,
            attempt=sent.attempt,
            committed=delivered,
            transactional=self._config.delivery == "exactly-once",
        )
        self._tracer.record(
            publication.arrival,
            publication.prepared,
            publication.ending,
            reply,
            f"chatcmpl-{publication.arrival.headers.request_id}",
            met,
        )

    # --- from the engine's threads --------------------------------------------------------------------------------

    def _stage(self, job: StageJob) -> None:
        self._staging.submit(job)

    def _on_loop(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)

    def _notify_egress(self) -> None:
        self._loop.call_soon_threadsafe(self._egress.notify)

    def _on_thread_broken(self, error: BaseException) -> None:
        """The engine thread or the staging thread has ended: nothing is computed any more."""
        self._thread_error = error
        self._loop.call_soon_threadsafe(self._thread_broke.set)


async def _watch_ranks(group: "RankGroup", ended: asyncio.Event) -> None:
    """Raises `WorkerFailedError` when one of the others is gone: without its weights nothing can be computed."""
    while not ended.is_set():
        if await asyncio.to_thread(group.wait_lost, _RANKS_LOOK_S):
            raise WorkerFailedError("a rank of the tensor-parallel group has ended: the group must be started again")


def prepare(builder: PromptBuilder, arrival: Arrival, sequence: int = 0) -> PreparedRequest:
    """What the staging thread does with a sequence of a request. Raises `RequestError`."""
    prepared = builder.prepare(arrival.record, arrival.headers, sequence)
    if prepared.priority is not None and arrival.body_unread:
        raise RequestError.invalid_request(
            "priority",
            "priority in a body this large comes too late to choose its class: use the tier header.",
        )
    return prepared


_Producer = DeltaProducer | ProgressJournal | TerminalReplies


async def _stop_all(producers: Sequence[_Producer]) -> None:
    """Everything that matters was delivered in the drain: what is left gets a moment, all at once."""
    await asyncio.gather(*(producer.stop(_PRODUCER_GRACE_S) for producer in producers))
