"""The delivering half of a worker: records in, answers out, and what is known of each request's attempts meanwhile.

Knows who hands a request to whom between the broker and the engine, and in which order the parts start and end. Does
not know how any of them works, what is computed (`workers.computing`), or why the worker ends (`workers.worker`).
On the event loop; the engine's threads call `attempts.stage` and `attempts.staged` alone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from scheduling.priority import PriorityClass
from scheduling.tree import TreeConfig
from topics.attempt_notes import PriorAttempts
from topics.catalogue import Catalogue
from topics.consumer import PartitionEpoch
from topics.control_orders import ControlOrders
from topics.dead_letter_limit import DeadLetterLimit, DeadLetterRules
from topics.kafka_settings import KafkaSettings
from topics.log_reader import LogReader
from topics.producer import DeltaProducer
from topics.progress_journal import ProgressJournal
from topics.record import InboundRecord, RecordId
from topics.record_fetcher import RecordFetcher
from topics.terminal_replies import Fate, TerminalReplies
from workers.answers.egress import Egress
from workers.answers.kept_finals import KeptFinals
from workers.answers.reply_contexts import ReplyContexts
from workers.answers.terminal_writer import ReplyTopics, Settled
from workers.answers.unserved import Unserved
from workers.answers.usage import UsageWriter
from workers.attempts.attempts import Attempts
from workers.attempts.continuing import Continuing
from workers.attempts.giving_up import GivingUp
from workers.computing import Computing
from workers.configuration.config import WorkerConfig
from workers.engine.messages import Cancelled, Dropped, Resumed, Revoked
from workers.intake.class_channel import ClassChannel
from workers.intake.ingress import Ingress, Refusal
from workers.intake.payload_source import PayloadSource
from workers.intake.payloads import Payloads
from workers.intake.request import Arrival, Moved
from workers.intake.residency import Residency, class_shares
from workers.intake.staging import Staged
from workers.telemetry.tracing import ReplySent, RequestTracer
from workers.telemetry.wall_clock import WallClock
from workers.telemetry.worker_telemetry import WorkerTelemetry

if TYPE_CHECKING:
    from workers.models.loaded_model import LoadedModel

__all__ = ["Delivery"]

log = logging.getLogger(__name__)

_DELIVERY_GRACE_S = 10.0
"""At the end, how long replies may take to reach the broker."""
_PRODUCER_GRACE_S = 2.0


class Delivery:
    """`start`, `serve`, `join_groups`; then `close`, `finish`, `end_besides`, `give_back`, `leave_groups`, `stop`."""

    def __init__(
        self,
        config: WorkerConfig,
        model: "LoadedModel",
        kafka: KafkaSettings,
        catalogue: Catalogue,
        tree: TreeConfig,
        *,
        instance: str,
        topics: ReplyTopics,
        computing: Computing,
        orders: ControlOrders,
        telemetry: WorkerTelemetry,
        tracer: RequestTracer,
        call_soon: Callable[[Callable[[], None]], None],
        on_broken: Callable[[str, BaseException], None],
    ) -> None:
        """`tree`: the classes that are served, and others. `instance`: see `workers.worker`. `orders`: those that
        stand. `call_soon`: on the event loop, from any thread. `on_broken`: nothing can be begun any more, and why."""
        self._computing = computing
        self._orders = orders
        self._telemetry = telemetry
        self._tracer = tracer
        self._transactional = config.delivery == "exactly-once"
        classes = [PriorityClass.from_label(label) for label in config.classes]
        groups = {priority: catalogue.group(priority.label) for priority in classes}
        group_of = {catalogue.requests(priority.label): groups[priority] for priority in classes}
        weights = {priority: tree.of(priority).weight for priority in classes}
        self.residency = Residency(weights, config.ingress.max_rows, config.ingress.max_bytes)
        self.deltas = DeltaProducer(kafka)
        self._journal = ProgressJournal(kafka, catalogue.progress, group_of)
        self.attempts = Attempts(
            self._journal,
            accept=self._accept,
            resume=lambda arrival: self._accept(arrival, Resumed(arrival)),
            drop=self._drop,
            stage=lambda job: self.payloads[job.arrival.origin_class].stage(job),
            let_in=computing.put,
            go_on=self._go_on,
            give_up=self._give_up,
            answered=self._answer_kept,
            on_broken=lambda error: on_broken("attempts can't be noted", error),
            call_soon=call_soon,
            full=self.residency.paused,
            certain=lambda priority: self.channels[priority].consumer.lease.holds,
            log_end=lambda arrival: self.channels[arrival.origin_class].consumer.log_end(arrival.id.partition),
            carries=self._transactional,
        )
        self.ingress = Ingress(
            config.ingress,
            default_reply_topic=topics.replies,
            trust_tenant_header=config.scheduling.trust_tenant_header,
            ttft_slo_s={priority: tree.of(priority).slo.ttft_s for priority in classes},
            accept=self._take,
            refuse=self._refuse,
            cancelling=orders.cancelling,
        )
        self.payloads: Mapping[PriorityClass, PayloadSource] = {
            priority: PayloadSource(
                Payloads(max_bytes, self.ingress.sender_of),
                RecordFetcher(kafka, f"payloads-{priority.label}", catalogue.requests(priority.label)),
                prepare=computing.stage,
                refuse=self.attempts.staged,
                call_soon=call_soon,
            )
            for priority, max_bytes in class_shares(weights, config.ingress.max_bytes).items()
        }
        self._kept = KeptFinals(config.kafka.session_timeout_ms / 1000, self._trace)
        self.channels: Mapping[PriorityClass, ClassChannel] = {
            priority: ClassChannel(
                priority,
                config,
                kafka,
                catalogue,
                topics,
                self.residency,
                instance=instance,
                on_batch=tracer.polled,
                on_record=self.ingress.take,
                adopt=self._journal.adopt,
                on_confirmed=self.attempts.confirmed,
                on_revoked=self._revoke,
                on_given=self.attempts.carried.given,
                told=self._wait_told,
                given_back=self.attempts.given_back,
                on_settled=self._settled,
            )
            for priority in classes
        }
        writers = {priority: channel.writer for priority, channel in self.channels.items()}
        contexts = ReplyContexts(topics, self.attempts.number)
        self._unserved = Unserved(
            topics=topics, writers=writers, groups=groups, contexts=contexts, attempts=self.attempts
        )
        self.egress = Egress(
            config.egress,
            outbox=computing.outbox,
            topics=topics,
            deltas=self.deltas,
            writers=writers,
            new_detokenizer=computing.new_detokenizer,
            attempts=self.attempts,
            contexts=contexts,
            on_tokens=telemetry.tokens,
            on_begun=telemetry.begun,
            usage=UsageWriter(catalogue.usage, WallClock()) if config.telemetry.usage_records else None,
            token_bytes=computing.new_detokenizer.token_bytes,
            payload_of=lambda arrival, then: self.payloads[arrival.origin_class].give(arrival, then),
        )
        self._continuing = Continuing(
            self.attempts,
            self.deltas,
            LogReader(kafka, "deltas-told"),
            topics.deltas,
            context=lambda message: contexts.of(message.job.arrival),
            new_detokenizer=computing.new_detokenizer,
            let_in=computing.put,
        )
        rules = DeadLetterRules(**dict(config.dead_letters))
        limit = DeadLetterLimit(kafka, rules, letters=topics.dead_letters, replies=topics.replies)
        self._giving_up = GivingUp(
            limit, self._unserved.give_up, lambda arrival: self.payloads[arrival.origin_class].get(arrival)
        )
        self._besides: list[asyncio.Task[None]] = []
        """They have no end of their own."""

    # --- it begins ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect the producers. Raises `KafkaUnavailableError`."""
        for producer in self._producers():
            await producer.start()

    def serve(self, tasks: asyncio.TaskGroup) -> None:
        """Records that come are taken and answered from now on."""
        self._replying = tasks.create_task(self.egress.run())
        self._besides = [
            tasks.create_task(self._giving_up.run()),
            tasks.create_task(self._continuing.run()),
            *(tasks.create_task(source.run()) for source in self.payloads.values()),
        ]
        self._writing = [tasks.create_task(channel.writer.run()) for channel in self.channels.values()]
        for channel in self.channels.values():
            channel.open()

    async def join_groups(self, tasks: asyncio.TaskGroup) -> None:
        """Return when every group has given this worker its partitions, none included."""
        consumers = [channel.consumer for channel in self.channels.values()]
        for consumer in consumers:
            await consumer.start()
            tasks.create_task(consumer.wait_closed())
        for consumer in consumers:
            await consumer.wait_assigned()

    # --- it ends --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take nothing new; what is answered still leaves."""
        for channel in self.channels.values():
            channel.close()

    async def finish(self) -> None:
        """Deliver all that the engine has left, within the grace period. After the engine has stopped."""
        self.egress.close()
        try:
            async with asyncio.timeout(_DELIVERY_GRACE_S):
                await self._replying
                for channel in self.channels.values():
                    channel.writer.close()
                await asyncio.wait(self._writing)
        except TimeoutError:
            log.warning("the broker did not take all replies in %g s: the next worker answers again", _DELIVERY_GRACE_S)
            for task in (self._replying, *self._writing):
                task.cancel()

    def end_besides(self) -> None:
        """Who waits to go on, to be given up or for its payload is left for the next worker."""
        for task in self._besides:
            task.cancel()

    async def give_back(self) -> None:
        """Note of what runs that nobody runs it any more. After the engine has stopped."""
        self.attempts.give_back()
        try:
            async with asyncio.timeout(_PRODUCER_GRACE_S):
                await self.attempts.given_back()
        except TimeoutError:
            log.warning(
                "the broker did not take the last notes in %g s: the next worker may suspect", _PRODUCER_GRACE_S
            )

    async def leave_groups(self) -> None:
        """Raises what ended a consumer before, which is a bug; when all have left."""
        self._kept.drop_all()
        await _all_at_once(*(channel.consumer.stop() for channel in self.channels.values()))

    async def stop(self) -> None:
        """Everything that matters was delivered by `finish`: what is left gets a moment."""
        await _all_at_once(*(producer.stop(_PRODUCER_GRACE_S) for producer in self._producers()))

    def _producers(self) -> list[DeltaProducer | ProgressJournal | TerminalReplies]:
        return [self.deltas, self._journal, *(channel.replies for channel in self.channels.values())]

    # --- what the parts tell one another --------------------------------------------------------------------------

    def _take(self, arrival: Arrival, record: InboundRecord) -> None:
        self.residency.enter(arrival.origin_class, arrival.id.partition, arrival.epoch)
        self.payloads[arrival.origin_class].payloads.keep(arrival, record)
        self.attempts.take(arrival)

    def _accept(self, arrival: Arrival, message: Resumed | None = None) -> None:
        """`message`: what the engine is told in the place of the arrival."""
        self._telemetry.arrived(arrival)
        self._computing.put(message or arrival)
        # An order may have come since ingress looked; one to another class is obeyed here alone.
        headers = arrival.headers
        order = self._orders.cancelling(headers.request_id, headers.job_id, arrival.tenant, arrival.sent_ms)
        if order is not None:
            self._computing.put(Cancelled((order,)))

    def _refuse(self, refusal: Refusal) -> None:
        place = refusal.record.id
        self.residency.enter(refusal.origin_class, place.partition, refusal.epoch, refusal.held_bytes)
        self._telemetry.refused(refusal)
        self._unserved.refuse(refusal)

    def _go_on(self, message: Staged) -> None:
        self._continuing.put(message)

    def _give_up(self, arrival: Arrival, prior: PriorAttempts) -> None:
        self._giving_up.put(arrival, prior)

    def _answer_kept(self, arrival: Arrival, prior: PriorAttempts | None) -> bool:
        """Whether its answer was there when its partition was taken away; then it is on its way."""
        terminal = self._kept.claim(arrival, prior)
        if terminal is None:
            return False
        self._telemetry.arrived(arrival)
        self.channels[arrival.origin_class].writer.put(terminal)
        return True

    def _revoke(self, partition: PartitionEpoch) -> None:
        self._telemetry.revoked(partition)
        self._computing.put(Revoked(*partition))
        self.attempts.revoke(partition, cut=self.egress.revoke(*partition))
        # Last: what waits for its payload is refused, and the engine must know by then that nobody wants it.
        for source in self.payloads.values():
            source.revoke(partition)

    async def _wait_told(self, partitions: Collection[PartitionEpoch]) -> None:
        await self.egress.wait_told(partitions)

    def _drop(self, records: frozenset[RecordId]) -> None:
        """Nobody wants any more what is computed of these."""
        self.egress.drop(records)
        self._computing.put(Dropped(records))

    def _settled(self, settled: Settled) -> None:
        """A terminal reply has left the worker, one way or the other."""
        terminal, publication = settled.terminal, settled.terminal.publication
        kept = settled.fate is not Fate.DELIVERED and self._kept.keep(settled)
        self.payloads[terminal.origin_class].payloads.drop(terminal.partition, terminal.record.offset)
        self._giving_up.settled((terminal.record, terminal.epoch))
        if publication is not None:
            outbox = self._computing.outbox
            was_full = outbox.full
            outbox.delivered(publication)
            if was_full and not outbox.full:
                self._computing.wake()  # it may dispatch again
        if settled.fate is Fate.DELIVERED:
            self._trace(settled, self._telemetry.settled(settled))
        elif not kept:
            self._trace(settled)
        # Last: if its record has come back meanwhile, what is kept is given now.
        self.attempts.settled(terminal.record, terminal.epoch)

    def _trace(self, settled: Settled, met: Mapping[str, bool] = MappingProxyType({})) -> None:
        """Of what the engine has ended: its spans, now that its end is known. `met`: see `WorkerTelemetry.settled`."""
        terminal, publication = settled.terminal, settled.terminal.publication
        if publication is None or not self._tracer.makes_spans:
            return
        assert publication.ending is not None
        if isinstance(publication.ending.reason, Moved):
            return
        sent = terminal.reply
        reply = ReplySent(
            sent.topic,
            settled.sent_s,
            settled.acknowledged_s,
            sent.size_bytes,
            attempt=sent.attempt,
            committed=settled.fate is Fate.DELIVERED,
            transactional=self._transactional,
        )
        self._tracer.record(
            publication.arrival,
            publication.prepared,
            publication.ending,
            reply,
            met,
        )


async def _all_at_once(*ends: Awaitable[None]) -> None:
    """Each may take seconds while the broker is away. Raises the first error, when all have ended."""
    for outcome in await asyncio.gather(*ends, return_exceptions=True):
        if outcome is not None:
            raise outcome
