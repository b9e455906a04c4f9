"""The engine: drain the inbox → end what must end → schedule → run, as plain synchronous code.

Knows the order of a turn, and whom each message is for. Does not know how a request comes in
(`workers.engine.arrivals`), how it leaves (`workers.engine.departures`) or what a step does
(`workers.engine.step_execution`), nor threads, Kafka or wall time: `workers.engine.thread` turns the crank, the clocks
are whatever the caller measures with, so the same code runs under a simulated runner on virtual time.
"""

from collections.abc import Callable, Iterator

from kvcache.block_hash import BlockHasher
from kvcache.manager import KVCacheManager
from scheduling.accounting import AccountedQdisc
from scheduling.batch import BatchScheduler
from scheduling.index import Index
from scheduling.intake import Intake
from scheduling.length import LengthPredictor
from scheduling.plan import StepPlan
from scheduling.prompt_ratio import PromptRatio
from scheduling.state import RequestState
from topics.errors import RequestError
from workers.answers.detokenizer import Detokenizer
from workers.engine.arrivals import Arrivals
from workers.engine.cancelling import Cancelling
from workers.engine.departures import Departures
from workers.engine.messages import Cancelled, Drain, Dropped, EngineMessage, Resumed, Revoked
from workers.engine.observer import AdmittedRequest, EngineObserver
from workers.engine.outbox import Outbox
from workers.engine.reconfiguring import Reconfiguring
from workers.engine.request_table import RequestTable
from workers.engine.run_ahead import AheadRunner, RunAhead
from workers.engine.run_limit import RunLimit
from workers.engine.sequence_groups import SequenceGroups
from workers.engine.speculation import Speculation
from workers.engine.statistics import EngineStatistics
from workers.engine.step_execution import StepExecution
from workers.engine.token_intake import TokenIntake
from workers.intake.mailbox import Mailbox
from workers.intake.request import Arrival
from workers.intake.staging import Refused, Staged, StageJob
from workers.runners.runner import ModelRunner
from workers.runners.split_forward import SplitForward
from workers.runners.swap_space import BlockSwapper

__all__ = ["Engine"]

_CANCEL_PAUSE_S = 0.005
"""Between two slices of a backlog that is cancelled, where nothing runs."""
_STAGING_WAIT = 0.1
"""Of the last step: what a turn waits at most for an urgent request's tokens."""


class Engine:
    """Puts the engine's parts together and turns them. Every method is the engine thread's."""

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
        speculation: Speculation | None,
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
        self._inbox = inbox
        self._outbox = outbox
        self._stage = stage
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._observer = observer
        self._requests = RequestTable(index)
        self._groups = SequenceGroups()
        self._cancelling = Cancelling(self._requests, index.capacity)
        self._run_limit = None if max_run_s is None else RunLimit(max_run_s, self._requests)
        tokens = TokenIntake(outbox, hasher, observer)
        self._departures = Departures(
            scheduler=scheduler,
            index=index,
            lengths=lengths,
            outbox=outbox,
            requests=self._requests,
            groups=self._groups,
            cancelling=self._cancelling,
        )
        self._arrivals = Arrivals(
            scheduler=scheduler,
            index=index,
            kv=kv,
            intake=intake,
            lengths=lengths,
            prompt_ratio=prompt_ratio,
            requests=self._requests,
            groups=self._groups,
            cancelling=self._cancelling,
            departures=self._departures,
            tokens=tokens,
            new_detokenizer=new_detokenizer,
            default_max_tokens=default_max_tokens,
            context_tokens=runner.limits.context_tokens,
            observer=observer,
        )
        forward = SplitForward(runner)
        self._execution = StepExecution(
            scheduler=scheduler,
            index=index,
            kv=kv,
            qdisc=qdisc,
            swapper=swapper,
            speculation=speculation,
            forward=forward,
            ahead=_run_ahead(runner, forward, kv, clock),
            requests=self._requests,
            departures=self._departures,
            tokens=tokens,
            run_limit=self._run_limit,
            clock=clock,
            cpu_clock=cpu_clock,
            observer=observer,
        )
        self._reconfiguring = Reconfiguring(scheduler, qdisc, index, intake)
        self._draining = False
        self._python_seconds = self._python_cpu_seconds = 0.0

    # --- the crank ------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One turn. False: there was nothing to run; ask again when a message came or `next_event` is due."""
        now, cpu_now = self._clock(), self._cpu_clock()
        for message in self._inbox.take_all():
            self._handle(message, now)
        self._departures.drop_revoked(now)
        self._arrivals.fill_groups(now)
        if not self._outbox.full:
            self._departures.obey(self._cancelling.take(), now)
        self._end_overdue(now)
        self._departures.expire(now)
        may_dispatch = not self._draining and not self._outbox.full
        if may_dispatch and self._scheduler.awaits_tokens(now):
            now = self._await_tokens(now)
        plan = self._plan(now, may_dispatch)
        if may_dispatch:
            # After the plan: a row that the discipline has just claimed is tokenised while the step runs.
            self._hand_out(now)
        if plan is not None:
            self._execution.run(plan, now)
        self._outbox.flush()
        if plan is not None:
            self._python_seconds += self._clock() - now - self._execution.inside_s
            self._python_cpu_seconds += self._cpu_clock() - cpu_now - self._execution.inside_cpu_s
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
        until_s = now + _STAGING_WAIT * self._execution.last_s
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
            # It may have gone with another sequence of its request, just before.
            if self._requests.knows(row) and not self._stopped(row, now):
                self._stage(StageJob(row, self._requests.arrival(row), self._groups.sequence(row)))

    def _stopped(self, row: int, now: float) -> bool:
        """Whether an order that the slices have not come to ends the row; then it has, for it was about to go on."""
        order = self._cancelling.stops(row) if self._cancelling.busy else None
        if order is None or order.move_to is not None:
            return False
        self._departures.obey({row: order}, now)
        return True

    def _end_overdue(self, now: float) -> None:
        """Those that have run for as long as they may."""
        if self._run_limit is not None:
            for row in self._run_limit.overdue(now):
                self._departures.fail({row}, RequestError.ran_too_long(self._run_limit.max_run_s), now)

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
            steps=self._execution.steps,
            prefill_tokens=self._execution.prefill_tokens,
            decode_tokens=self._execution.decode_tokens,
            step_seconds=self._execution.seconds,
            python_seconds=self._python_seconds,
            python_cpu_seconds=self._python_cpu_seconds,
            waiting=scheduler.queued + scheduler.claimed,
            running=scheduler.running,
            ended=self._departures.ended,
            failed=self._departures.failed,
            preemptions=scheduler.preemptions,
            suspensions=scheduler.suspensions,
            preemption_times=self._execution.preemption_times(),
            speculation=self._execution.speculation_statistics(),
        )

    def check_integrity(self) -> None:
        """Assert that the table of requests adds up; the parts that the engine was given have their own."""
        self._requests.check_integrity()

    # --- messages -------------------------------------------------------------------------------------------------

    def _handle(self, message: EngineMessage, now: float) -> None:
        match message:
            case Arrival():
                self._arrivals.add(message, now)
            case Staged(job, _):
                if self._still_wants(job) and not self._stopped(job.row, now):
                    self._arrivals.staged(message, now)
            case Refused(job, error):
                if self._still_wants(job):
                    self._scheduler.staging_failed(job.row, now)
                    self._departures.end(job.row, error, now)
            case Revoked():
                self._requests.revoke(message.assignment, self._goes_on)
                self._groups.revoke(message.assignment)
            case Resumed(arrival):
                if not self._requests.renew(arrival) and not self._requests.ended_as_orphan(arrival.id):
                    self._arrivals.add(arrival, now)
            case Dropped(records):
                self._requests.drop_orphans(records)
            case Cancelled(orders):
                self._arrivals.fill_groups(now)  # an order finds a request by its rows
                self._departures.obey(self._cancelling.order(orders, self._requests.begun), now)
            case Drain():
                self._draining = True
            case _:
                self._reconfiguring.take(message, now)

    def _goes_on(self, row: int) -> bool:
        """Whether it is computed to its end, if its partition is taken away. A request of several sequences is not:
        some of them may not have begun, and they end together."""
        admitted = self._index.state_of(row) in (RequestState.PREFILL, RequestState.DECODE)
        return admitted and self._groups.of(row) is None

    def _still_wants(self, job: StageJob) -> bool:
        """While its tokens were made the row may have been dropped, and even given to another request; or its partition
        is gone, and it soon will be."""
        return self._requests.holds(job.row, job.arrival) and not self._requests.revoked(job.arrival)

    # --- what the observer asks -----------------------------------------------------------------------------------

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


def _run_ahead(
    runner: ModelRunner, forward: SplitForward, kv: KVCacheManager, clock: Callable[[], float]
) -> RunAhead | None:
    """None for a runner that is there until its forward is done: it would only answer later."""
    if not isinstance(runner, AheadRunner) or not runner.computes_by_itself:
        return None
    return RunAhead(runner, forward, kv, clock)
