"""The engine: drain the inbox → schedule → run → settle, as plain synchronous code.

Knows the requests that wait and run in this worker, their tokens, and when one has ended. Does not know threads, Kafka
or wall time: `workers.engine_thread` turns the crank, the clocks are whatever the caller measures with, so the same
code runs under a simulated runner on virtual time.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf

from kvcache.block_hash import BlockHasher
from kvcache.manager import KVCacheManager
from scheduling.accounting import AccountedQdisc
from scheduling.batch import BatchScheduler
from scheduling.index import Index
from scheduling.intake import Accepted, Intake, OverQuota, QueueFull
from scheduling.length import LengthPredictor
from scheduling.plan import Chunk, Outcome, StepPlan
from scheduling.policies import change_quotas, switch_policy
from scheduling.priority import PriorityClass
from scheduling.prompt_ratio import PromptRatio
from scheduling.state import TERMINAL_STATES, RequestState
from scheduling.tree import TreeConfig, TreeError
from topics.control_orders import Cancel
from topics.errors import RequestError
from workers.cancelling import Cancelling
from workers.detokenizer import Detokenizer
from workers.engine_messages import (
    Cancelled,
    Drain,
    EngineMessage,
    NewPolicy,
    NewQuotas,
    NewTree,
    PausedClasses,
    QuotaShare,
    Reconfiguration,
    Revoked,
)
from workers.engine_observer import AdmittedRequest, EngineObserver
from workers.engine_statistics import EngineStatistics
from workers.errors import GrammarBroken, NoMemoryForSequence, NotFiniteLogits
from workers.mailbox import Mailbox
from workers.outbox import Outbox
from workers.preemption_times import PreemptionTimes
from workers.request import Arrival, Ending, EngineRequest, FinishReason, Moved, StopMatching
from workers.request_table import RequestTable
from workers.runner import ModelRunner, SequenceInput
from workers.sequence_groups import SequenceGroup, SequenceGroups
from workers.split_forward import SplitForward
from workers.staging import Refused, Staged, StageJob
from workers.stop_strings import StopStrings
from workers.swap_space import BlockSwapper
from workers.timeline import Dispatch, Timeline
from workers.token_intake import TokenIntake

__all__ = ["Engine"]

log = logging.getLogger(__name__)


_MEMORY_RETRY_S = 10.0
_CANCEL_BACKLOG = 1_000
"""Publications that egress has not come to: beyond it no backlog is cancelled, or others' words would wait behind."""
_CANCEL_PAUSE_S = 0.005
"""Between two slices of a backlog that is cancelled, where nothing runs."""
_DROPS_A_TURN = 1_000
"""Some tens of milliseconds."""
_STAGING_WAIT = 0.1
"""Of the last step: what a turn waits at most for an urgent request's tokens."""


class Engine:
    """Owns the scheduler, the index, the KV accounting and the runner. Every method is the engine thread's."""

    def __init__(
        self,
        *,
        scheduler: BatchScheduler,
        index: Index,
        kv: KVCacheManager,
        runner: ModelRunner,
        qdisc: AccountedQdisc,
        intake: Intake,
        lengths: LengthPredictor,
        prompt_ratio: PromptRatio,
        inbox: Mailbox[EngineMessage],
        outbox: Outbox,
        stage: Callable[[StageJob], None],
        hasher: BlockHasher | None,
        swapper: BlockSwapper | None,
        new_detokenizer: Callable[[], Detokenizer],
        default_max_tokens: int,
        max_run_s: float | None,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        observer: EngineObserver | None = None,
    ) -> None:
        """`default_max_tokens`: the prior of the length prediction for a body that names no limit. `max_run_s`: how
        long a request may take from its admission on. `hasher`: see `TokenIntake`."""
        self._scheduler = scheduler
        self._index = index
        self._kv = kv
        self._limits = runner.limits
        self._forward = SplitForward(runner)
        self._qdisc = qdisc
        self._intake = intake
        self._lengths = lengths
        self._prompt_ratio = prompt_ratio
        self._inbox = inbox
        self._outbox = outbox
        self._stage = stage
        self._tokens = TokenIntake(outbox, hasher, observer)
        self._swapper = swapper
        self._new_detokenizer = new_detokenizer
        self._default_max_tokens = default_max_tokens
        self._max_run_s = max_run_s
        self._begun: deque[tuple[int, Arrival]] = deque()
        """Where run time is limited: rows in the order of their first admission. Some have ended since."""
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._observer = observer
        self._requests = RequestTable()
        self._groups = SequenceGroups()
        self._cancelling = Cancelling(self._requests.arrivals)
        self._draining = False
        self._quota_share = 1.0
        self._preemption_times = PreemptionTimes(scheduler.prefill_s)
        self._steps = self._prefill_tokens = self._decode_tokens = 0
        self._ended = self._failed = 0
        self._step_seconds = self._python_seconds = self._python_cpu_seconds = 0.0
        self._last_step_s = 0.0
        self._step_cpu_seconds = 0.0
        """Of this thread inside the runner, in the current turn."""

    # --- the crank ------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One turn. False: there was nothing to run; ask again when a message came or `next_event` is due."""
        now, cpu_now = self._clock(), self._cpu_clock()
        before_s = self._step_seconds
        for message in self._inbox.take_all():
            self._handle(message, now)
        self._drop_revoked(now)
        self._fill_groups(now)
        if self._outbox.backlog < _CANCEL_BACKLOG and not self._outbox.full:
            self._cancel(self._cancelling.take(), now)
        self._end_overdue(now)
        for row in self._scheduler.expire(now):
            if not self._requests.knows(row):
                continue  # another sequence of its request has expired too
            late_ms = int((now - self._index.hard_deadline_s[row]) * 1000)
            self._end(row, RequestError.expired(late_ms), now)
        # Before the plan, for a request's other sequences end with it.
        for row in self._scheduler.take_impossible():
            if self._requests.knows(row):
                self._end(row, self._too_large(row), now)
        may_dispatch = not self._draining and not self._outbox.full
        if may_dispatch and self._scheduler.awaits_tokens(now):
            now = self._await_tokens(now)
        plan = self._plan(now, may_dispatch)
        if may_dispatch:
            # After the plan: a row that the discipline has just claimed is tokenised while the step runs.
            self._hand_out(now)
        if plan is not None:
            self._run(plan, now)
        self._outbox.flush()
        if plan is not None:
            self._python_seconds += self._clock() - now - (self._step_seconds - before_s)
            self._python_cpu_seconds += self._cpu_clock() - cpu_now - self._step_cpu_seconds
        if self._observer is not None:
            self._observer.turn(now, self._oldest, self._admitted)
        return plan is not None or self._requests.dropping

    def _plan(self, now: float, may_dispatch: bool) -> StepPlan | None:
        plan = self._scheduler.schedule(now, may_dispatch)
        for row in self._scheduler.take_chosen():
            request = self._requests.staged(row)
            if request is not None:
                request.timeline.chosen_s = now
        return plan

    def _await_tokens(self, now: float) -> float:
        """An urgent request came during the last step, and its tokens take a moment; a step without it takes longer.

        Waits at most for a part of a step, whoever is slow. Returns the new time.
        """
        until_s = now + _STAGING_WAIT * self._last_step_s
        self._hand_out(now)
        while self._scheduler.awaits_tokens(now) and self._inbox.wait(until_s - now):
            now = self._clock()
            for message in self._inbox.take_all():
                self._handle(message, now)
            if now >= until_s:
                break
            self._hand_out(now)
        return now

    def _hand_out(self, now: float) -> None:
        for row in self._scheduler.to_stage(now):
            order = self._cancelling.stops(row) if self._cancelling.busy else None
            if order is not None and order.move_to is None:
                self._cancel({row: order}, now)
            else:
                self._stage(StageJob(row, self._requests.arrival(row), self._groups.sequence(row)))

    def next_event(self) -> float | None:
        """When the next turn may find something to do without a message: seconds of the clock; None for never."""
        now = self._clock()
        event = self._scheduler.next_event(now)
        if not self._cancelling.busy:
            return event
        return now + _CANCEL_PAUSE_S if event is None else min(event, now + _CANCEL_PAUSE_S)

    @property
    def drained(self) -> bool:
        """A `Drain` was read and nothing runs any more."""
        if not self._draining:
            return False
        scheduler = self._scheduler.statistics()
        return scheduler.running + scheduler.preempted == 0

    def statistics(self) -> EngineStatistics:
        scheduler = self._scheduler.statistics()
        return EngineStatistics(
            steps=self._steps,
            prefill_tokens=self._prefill_tokens,
            decode_tokens=self._decode_tokens,
            step_seconds=self._step_seconds,
            python_seconds=self._python_seconds,
            python_cpu_seconds=self._python_cpu_seconds,
            waiting=scheduler.queued + scheduler.claimed,
            running=scheduler.running,
            ended=self._ended,
            failed=self._failed,
            preemptions=scheduler.preemptions,
            suspensions=scheduler.suspensions,
            preemption_times=self._preemption_times.statistics(),
        )

    # --- messages -------------------------------------------------------------------------------------------------

    def _handle(self, message: EngineMessage, now: float) -> None:
        match message:
            case Arrival():
                self._add(message, now)
            case Staged(job, _):
                # The row may have been dropped, and even given to another request, while its tokens were made.
                if not self._requests.holds(job.row, job.arrival):
                    return
                order = self._cancelling.stops(job.row) if self._cancelling.busy else None
                if order is not None and order.move_to is None:
                    self._cancel({job.row: order}, now)
                else:
                    self._staged(message, now)
            case Refused(job, error):
                if self._requests.holds(job.row, job.arrival):
                    self._scheduler.staging_failed(job.row, now)
                    self._end(job.row, error, now)
            case Revoked():
                self._requests.revoke(message)
                self._groups.revoke(message)
            case Cancelled(orders):
                self._cancel(self._cancelling.order(orders, self._requests.begun), now)
            case Drain():
                self._draining = True
            case _:
                self._reconfigure(message, now)

    def _reconfigure(self, change: Reconfiguration, now: float) -> None:
        match change:
            case QuotaShare(share):
                self._quota_share = share
                self._qdisc.divide_quotas(share, now)
            case NewTree(tree):
                self._reload(tree, now)
            case NewPolicy(policy, tree, strict, quotas, paused):
                switch_policy(self._qdisc, policy, self._index, tree, now, quotas, paused)
                self._qdisc.divide_quotas(self._quota_share, now)
                self._intake.set_quotas(quotas)
                self._scheduler.set_strict(strict)
            case NewQuotas(quotas, paused):
                change_quotas(self._qdisc, self._index, now, quotas, paused)
                self._qdisc.divide_quotas(self._quota_share, now)
                self._intake.set_quotas(quotas)
            case PausedClasses(classes):
                self._scheduler.set_paused(classes)

    def _reload(self, tree: TreeConfig, now: float) -> None:
        try:
            self._qdisc.reload(tree, now)
        except TreeError as error:
            log.error("the class tree stays as it was: %s", error)
        else:
            log.info("a new class tree is in force")

    def _drop_revoked(self, now: float) -> None:
        """A slice of the rows whose partitions are gone: a large backlog must not stop a step."""
        for row in self._requests.next_revoked(_DROPS_A_TURN):
            self._scheduler.cancel(row, now)
            self._forget(row)

    def _cancel(self, orders: Mapping[int, Cancel], now: float) -> None:
        """End rows, wherever they are, and answer each; or let go of those that wait and are to wait elsewhere."""
        for row, order in orders.items():
            if not self._requests.knows(row):
                continue  # it went with another sequence of its request
            if order.move_to is None:
                self._scheduler.cancel(row, now)
                self._end(row, RequestError.cancelled(order.reason), now)
            else:
                self._move(row, PriorityClass.from_label(order.move_to), now)

    def _move(self, row: int, to: PriorityClass, now: float) -> None:
        waiting = (RequestState.WAITING, RequestState.STAGED)
        waits = all(self._index.state_of(each) in waiting for each in (row, *self._groups.siblings(row)))
        if waits and self._requests.arrival(row).origin_class is not to:
            self._scheduler.cancel(row, now)
            self._end(row, Moved(to), now)

    def _end_overdue(self, now: float) -> None:
        """Those that have run for as long as they may."""
        while self._max_run_s is not None and self._begun:
            row, arrival = self._begun[0]
            if self._requests.holds(row, arrival):
                admitted_s = self._requests[row].timeline.admitted_s
                assert admitted_s is not None, f"{arrival.id} is among the admitted"
                if now < admitted_s + self._max_run_s:
                    return
                self._scheduler.fail(row, now)
                self._end(row, RequestError.ran_too_long(self._max_run_s), now)
            self._begun.popleft()

    def _add(self, arrival: Arrival, now: float) -> None:
        while self._requests.dropping and len(self._index) >= self._index.capacity:
            # The same records come again, faster than the old rows are dropped.
            self._drop_revoked(now)
        prompt_tokens = self._prompt_ratio.tokens(arrival.body_bytes)
        verdict = self._intake.decide(arrival.tenant, arrival.service_class, prompt_tokens, now)
        if not isinstance(verdict, Accepted):
            self._turn_away(arrival, verdict, now)
            return
        tokens = max(1, prompt_tokens // arrival.prompts)
        row = self._enqueue(arrival, verdict.service, tokens, now)
        if arrival.sequences > 1:
            self._group(row, SequenceGroup(arrival, verdict.service, tokens, arrival.sequences), now)

    def _enqueue(self, arrival: Arrival, service: PriorityClass, prompt_tokens: int, now: float) -> int:
        """A new row for a sequence of the arrival."""
        row = self._index.add(
            origin=arrival.origin_class,
            service=service,
            tenant=arrival.tenant,
            flow=arrival.flow,
            prompt_tokens=prompt_tokens,
            output_tokens=self._lengths.predict(
                arrival.origin_class,
                arrival.tenant,
                # What the body asks for is not checked yet, and may be absurd.
                min(arrival.max_tokens or self._default_max_tokens, self._limits.context_tokens),
            ),
            arrival_s=arrival.arrived_s,
            ttft_deadline_s=inf if arrival.ttft_deadline_s is None else arrival.ttft_deadline_s,
            hard_deadline_s=inf if arrival.hard_deadline_s is None else arrival.hard_deadline_s,
        )
        self._requests.add(row, arrival)
        if self._observer is not None:
            self._observer.arrived(row)
        self._cancelling.entered(row, arrival)
        self._scheduler.enqueue(row, now)
        return row

    def _group(self, first: int, group: SequenceGroup, now: float) -> None:
        """A request's first row gets its siblings."""
        self._groups.join(group, first)
        self._groups.wait(group)
        self._fill_groups(now)

    def _fill_groups(self, now: float) -> None:
        while (group := self._groups.next_short()) is not None:
            row = self._enqueue(group.arrival, group.service, group.prompt_tokens, now)
            self._groups.join(group, row)
            self._groups.wait_first(group)

    def _turn_away(self, arrival: Arrival, verdict: OverQuota | QueueFull, now: float) -> None:
        """Answer a request that never becomes a row."""
        retry_after_s = round(verdict.retry_after_s, 1)
        if isinstance(verdict, OverQuota):
            error = RequestError.quota_exceeded("The tenant's quota is used up.", retry_after_s=retry_after_s)
        else:
            error = RequestError.resource_exhausted(
                f"{verdict.queue_depth} requests of this class wait already.",
                retry_after_s=retry_after_s,
                queue_depth=verdict.queue_depth,
            )
        self._failed += 1
        timeline = Timeline(arrived_s=arrival.arrived_s, ended_s=now)
        self._outbox.ended(arrival, None, Ending(error, timeline, prompt_tokens=0, output_tokens=0))

    def _staged(self, message: Staged, now: float) -> None:
        row, arrival, prepared = message.job.row, message.job.arrival, message.prepared
        if prepared.sequences > 1 and self._groups.of(row) is None:
            # The body was too large to be looked at before.
            tokens = len(prepared.prompt_token_ids)
            self._group(row, SequenceGroup(arrival, self._index.service_of(row), tokens, prepared.sequences), now)
        stop = None
        if prepared.stop:
            stop = StopMatching(self._new_detokenizer(), StopStrings(prepared.stop))
        request = EngineRequest(
            row=row,
            arrival=arrival,
            prepared=prepared,
            timeline=Timeline(arrived_s=arrival.arrived_s, staged_s=now),
            token_ids=list(prepared.prompt_token_ids),
            block_names=list(message.block_names),
            stop=stop,
        )
        self._requests.stage(request)
        if arrival.prompts == 1:
            predicted = self._index.prompt_tokens[row]
            self._prompt_ratio.observe(arrival.body_bytes, predicted, len(prepared.prompt_token_ids))
        if (reason := self._tokens.take_up(request, message.output_token_ids)) is not None:
            # An earlier attempt came to the end, and its terminal reply to nobody.
            self._scheduler.cancel(row, now)
            self._end(row, reason, now)
            return
        # What was told already is computed again, like a prompt.
        self._scheduler.staged(
            row,
            len(request.token_ids),
            prepared.max_output_tokens - request.told_tokens,
            now,
            block_names=request.block_names,
        )

    # --- one step -------------------------------------------------------------------------------------------------

    def _run(self, plan: StepPlan, now: float) -> None:
        self._note_admitted(plan, now)
        self._preemption_times.planned(plan, self._timeline, now)
        self._tell_preemptions(plan)
        self._swap(plan)
        started, cpu_started = self._clock(), self._cpu_clock()
        self._preemption_times.usable(plan, self._timeline, now, started)
        try:
            sampled = self._forward.step([self._input(chunk) for chunk in plan.chunks])
        except NotFiniteLogits as fault:
            # Nothing of this plan was settled: the others' chunks are planned again, onto the same KV. Who shares a
            # block that held no number would go on with what it was scrubbed to.
            rows = {plan.chunks[position].row for position in fault.sequences}
            rows = rows.union(self._kv.distrust(fault.blocks))
            self._fail(rows, RequestError.internal("The model gave a value that is not a number."), now)
            return
        except GrammarBroken as fault:
            rows = {plan.chunks[position].row for position in fault.sequences}
            self._fail(rows, RequestError.internal("What may come next in the answer took too long to work out."), now)
            return
        except NoMemoryForSequence as fault:
            self._fail({plan.chunks[fault.sequence].row}, self._no_memory(), now)
            return
        done = self._clock()
        self._step_cpu_seconds = self._cpu_clock() - cpu_started
        outcomes: list[Outcome] = []
        endings: list[tuple[int, FinishReason]] = []
        for place, (chunk, token) in enumerate(zip(plan.chunks, sampled.tokens, strict=True)):
            timeline = self._timeline(chunk.row)
            timeline.steps += 1
            self._preemption_times.computed(chunk, timeline, done)
            if token is None:
                continue
            reason = self._tokens.accept(self._requests[chunk.row], token, done, sampled.logprobs.get(place))
            outcomes.append(Outcome(chunk.row, None if reason is None else RequestState.FINISHED))
            if reason is not None:
                endings.append((chunk.row, reason))
        self._scheduler.settle(plan, outcomes, done - started, done)
        if self._observer is not None:
            self._observer.step(plan, done - started)
        for row, reason in endings:
            self._end(row, reason, done)
        self._steps += 1
        self._prefill_tokens += plan.prefill_tokens
        self._decode_tokens += plan.decode_tokens
        self._step_seconds += done - started
        self._last_step_s = done - started

    def _note_admitted(self, plan: StepPlan, now: float) -> None:
        for row in plan.admitted:
            timeline = self._requests[row].timeline
            # A request that was preempted and comes back was admitted before.
            if timeline.admitted_s is None:
                timeline.admitted_s = now
                timeline.dispatch = self._dispatch(row, plan)
                if self._max_run_s is not None:
                    self._begun.append((row, self._requests.arrival(row)))

    def _dispatch(self, row: int, plan: StepPlan) -> Dispatch:
        passed = () if self._observer is None else self._observer.dispatched(row)
        victims = sum(eviction.for_row == row for eviction in plan.evictions)
        return Dispatch(self._qdisc.reason(row), passed, victims)

    def _fail(self, rows: Collection[int], error: RequestError, now: float) -> None:
        """These rows can't go on."""
        for row in sorted(rows):
            if self._requests.knows(row):  # or it went with another sequence of its request
                self._scheduler.fail(row, now)
                self._end(row, error, now)

    def _timeline(self, row: int) -> Timeline:
        return self._requests[row].timeline

    def _tell_preemptions(self, plan: StepPlan) -> None:
        if self._observer is None:
            return
        for eviction in plan.evictions:
            self._observer.preempted(
                eviction.row,
                eviction.for_row,
                tenant=self._requests[eviction.row].arrival.tenant,
                for_growth=eviction.for_row not in plan.admitted,
                swapped=eviction.swapped,
            )

    def _oldest(self) -> Iterator[Arrival]:
        """Of each partition: its first request that is not admitted."""
        state = self._index.state
        return self._requests.oldest(lambda row: state[row] <= RequestState.CLAIMED)

    def _admitted(self) -> Iterator[AdmittedRequest]:
        """All that run or are suspended."""
        now, state = self._clock(), self._index.state_of
        for request in self._requests.every_staged():
            if state(request.row) in (RequestState.PREFILL, RequestState.DECODE):
                yield AdmittedRequest(
                    arrival=request.arrival,
                    decoding=state(request.row) is RequestState.DECODE,
                    suspended=request.timeline.suspended,
                    prompt_tokens=len(request.prepared.prompt_token_ids),
                    output_tokens=request.output_tokens,
                    max_output_tokens=request.prepared.max_output_tokens,
                    slack_s=self._scheduler.slack_s(request.row, request.output_tokens, now),
                    preemptions=request.timeline.preemptions,
                )

    def _swap(self, plan: StepPlan) -> None:
        if not plan.swaps:
            return
        assert self._swapper is not None, f"{plan.swaps} and nobody to do them"
        self._swapper.copy(plan.swaps)
        for timing in self._swapper.take_timings():
            self._scheduler.copied(timing.direction, timing.blocks, timing.seconds)
            if self._observer is not None:
                self._observer.copied(timing.direction, timing.seconds)
            # Whose copy it was may have ended before a device said what it took.
            request = None if timing.row is None else self._requests.staged(timing.row)
            if request is not None and request.timeline.suspensions:
                request.timeline.suspensions[-1].copied_s += timing.seconds

    def _input(self, chunk: Chunk) -> SequenceInput:
        request = self._requests[chunk.row]
        return SequenceInput(
            token_ids=request.token_ids[chunk.start : chunk.start + chunk.tokens],
            start=chunk.start,
            block_ids=self._kv.table(chunk.row),
            sampling=request.prepared.sampling if chunk.samples else None,
            output_position=request.output_tokens,
            history=request.token_ids,
        )

    # --- ends -----------------------------------------------------------------------------------------------------

    def _end(self, row: int, reason: FinishReason | RequestError | Moved, now: float) -> None:
        """Hand the ending to egress and forget the row. The scheduler has let go of it already.

        An error, or a move to another class, is its whole request's: the other sequences end without a word.
        """
        arrival, request = self._requests.arrival(row), self._requests.staged(row)
        timeline = Timeline(arrived_s=arrival.arrived_s) if request is None else request.timeline
        timeline.ended_s = now
        prompt = 0 if request is None else len(request.prepared.prompt_token_ids)
        output = 0 if request is None else request.output_tokens
        if isinstance(reason, FinishReason):
            group = self._groups.of(row)
            self._ended += group is None or (len(group.rows) == 1 and not group.short)
            told = 0 if request is None else request.told_tokens
            self._lengths.observe(arrival.origin_class, arrival.tenant, self._index.output_tokens[row] + told, output)
        else:
            self._failed += isinstance(reason, RequestError)
            self._end_siblings(row, now)
        prepared = None if request is None else request.prepared
        # Nothing was found for one that was never admitted: what the index says then is only hoped for.
        cached = 0 if timeline.admitted_s is None else self._index.cached_tokens[row]
        cost = self._index.cost.prompt(prompt, cached) + self._index.cost.output(output)
        self._outbox.ended(arrival, prepared, Ending(reason, timeline, prompt, output, cached, cost))
        self._forget(row)

    def _end_siblings(self, row: int, now: float) -> None:
        group = self._groups.of(row)
        if group is None:
            return
        group.lost = True
        for other in self._groups.siblings(row):
            if self._index.state_of(other) not in TERMINAL_STATES:
                self._scheduler.cancel(other, now)
            self._forget(other)

    def _forget(self, row: int) -> None:
        self._cancelling.left(row, self._requests.arrival(row))
        self._groups.leave(row)
        self._requests.forget(row)
        self._index.release(row)

    def _no_memory(self) -> RequestError:
        return RequestError.resource_exhausted(
            "The worker has no memory left to compute the request.",
            retry_after_s=_MEMORY_RETRY_S,
            queue_depth=self._scheduler.statistics().queued,
        )

    def _too_large(self, row: int) -> RequestError:
        prompt = len(self._requests[row].prepared.prompt_token_ids)
        pool = self._kv.num_blocks * self._kv.block_size
        return RequestError.invalid_request(
            "messages",
            f"The prompt has {prompt} tokens, and the KV cache of this worker holds {pool}: shorten it, or give the "
            "worker more KV memory (engine.kv_bytes).",
            code="context_length_exceeded",
        )
