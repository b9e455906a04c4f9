"""One step: from the scheduler's plan through the copies and the forward to the books, the tokens and the endings.

Knows what a plan needs to be computed, what its faults mean to whom, and what each step took. Does not know how a plan
comes about (`scheduling.batch`), when a token is the last (`workers.engine.token_intake`), nor how a request is
answered (`workers.engine.departures`). Owned by the engine thread.

A step that meets a fault is not settled. Whom it concerns fails; the others' chunks are planned again, onto the same
KV, and their copies are done.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from kvcache.manager import KVCacheManager
from scheduling.accounting import AccountedQdisc
from scheduling.batch import BatchScheduler
from scheduling.index import Index
from scheduling.plan import Chunk, Outcome, StepPlan
from scheduling.priority import PriorityClass
from scheduling.state import RequestState
from topics.errors import RequestError
from workers.engine.departures import Departures
from workers.engine.observer import EngineObserver
from workers.engine.preemption_times import PreemptionTimes, PreemptionTimesStatistics
from workers.engine.request_table import RequestTable
from workers.engine.run_ahead import BegunChunk, RunAhead
from workers.engine.run_limit import RunLimit
from workers.engine.speculation import SpeculatedRequest, Speculation, SpeculationStatistics
from workers.engine.timeline import Dispatch, Timeline
from workers.engine.token_intake import TokenIntake
from workers.intake.request import FinishReason
from workers.runners.errors import GrammarBroken, NoMemoryForSequence, NotFiniteLogits
from workers.runners.runner import Embedding, SequenceInput
from workers.runners.split_forward import SplitForward, StepTokens
from workers.runners.swap_space import BlockSwapper

__all__ = ["StepExecution"]

_MEMORY_RETRY_S = 10.0


class StepExecution:
    def __init__(
        self,
        *,
        scheduler: BatchScheduler,
        index: Index,
        kv: KVCacheManager,
        qdisc: AccountedQdisc,
        swapper: BlockSwapper | None,
        speculation: Speculation | None,
        forward: SplitForward,
        ahead: RunAhead | None,
        requests: RequestTable,
        departures: Departures,
        tokens: TokenIntake,
        run_limit: RunLimit | None,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        observer: EngineObserver | None,
    ) -> None:
        """`swapper`: None where the scheduler plans no copies. `speculation`: None where no class's tokens are guessed.
        `ahead`: None on a device that doesn't compute by itself. `run_limit`: None where none is set."""
        self._scheduler = scheduler
        self._index = index
        self._kv = kv
        self._qdisc = qdisc
        self._forward = forward
        self._ahead = ahead
        self._swapper = swapper
        self._speculation = speculation
        self._requests = requests
        self._departures = departures
        self._tokens = tokens
        self._run_limit = run_limit
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._observer = observer
        self._preemption_times = PreemptionTimes(scheduler.prefill_s)
        self.steps = self.prefill_tokens = self.decode_tokens = 0
        """Of steps that were settled, as `seconds` is."""
        self.seconds = 0.0
        self.last_s = 0.0
        """What the latest step took, settled or not: from when its forward began."""
        self.inside_s = self.inside_cpu_s = 0.0
        """Inside the runner in the latest turn: wall time, and this thread's on a processor."""

    def run(self, plan: StepPlan, now: float) -> None:
        """`now`: when the plan was made."""
        self.inside_s = self.inside_cpu_s = 0.0
        begun = None if self._ahead is None else self._ahead.take(plan.chunks)
        self._note_admitted(plan, now)
        self._preemption_times.planned(plan, self._timeline, now)
        self._tell_preemptions(plan)
        self._swap(plan)
        self._preemption_times.usable(plan, self._timeline, now, self._clock())
        guesses = (
            self._guess(plan) if begun is None else {place: one.guess for place, one in begun.items() if one.guess}
        )
        try:
            sampled = self._compute(self._inputs(plan, guesses, begun or {}))
        except NotFiniteLogits as fault:
            # Who shares a block that held no number would go on with what it was scrubbed to.
            rows = {plan.chunks[position].row for position in fault.sequences}
            rows = rows.union(self._kv.distrust(fault.blocks))
            self._departures.fail(rows, RequestError.internal("The model gave a value that is not a number."), now)
        except GrammarBroken as fault:
            rows = {plan.chunks[position].row for position in fault.sequences}
            error = RequestError.internal("What may come next in the answer took too long to work out.")
            self._departures.fail(rows, error, now)
        except NoMemoryForSequence as fault:
            self._departures.fail({plan.chunks[fault.sequence].row}, self._no_memory(), now)
        else:
            self._settle(plan, sampled, guesses, self._clock())

    def preemption_times(self) -> PreemptionTimesStatistics:
        return self._preemption_times.statistics()

    def speculation_statistics(self) -> SpeculationStatistics | None:
        """None: no tokens are guessed."""
        return None if self._speculation is None else self._speculation.statistics()

    # --- before the forward ---------------------------------------------------------------------------------------

    def _note_admitted(self, plan: StepPlan, now: float) -> None:
        for row in plan.admitted:
            request = self._requests[row]
            # A request that was preempted and comes back was admitted before.
            if request.timeline.admitted_s is None:
                request.timeline.admitted_s = now
                request.timeline.dispatch = self._dispatch(row, plan)
                if self._run_limit is not None:
                    self._run_limit.admitted(request)

    def _dispatch(self, row: int, plan: StepPlan) -> Dispatch:
        passed = () if self._observer is None else self._observer.dispatched(row)
        victims = sum(eviction.for_row == row for eviction in plan.evictions)
        return Dispatch(self._qdisc.reason(row), passed, victims)

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

    def _speculated(self, chunk: Chunk) -> SpeculatedRequest:
        request = self._requests[chunk.row]
        return SpeculatedRequest(
            service=self._service(chunk.row),
            token_ids=request.token_ids,
            lookup=request.lookup,
            sampling=request.prepared.sampling,
            output_position=request.output_tokens,
            output_left=request.prepared.max_output_tokens - request.output_tokens,
            held_tokens=len(self._kv.table(chunk.row)) * self._kv.block_size,
        )

    def _guess(self, plan: StepPlan) -> Mapping[int, Sequence[int]]:
        return {} if self._speculation is None else self._speculation.guess(plan, self._speculated)

    def _inputs(
        self, plan: StepPlan, guesses: Mapping[int, Sequence[int]], begun: Mapping[int, BegunChunk]
    ) -> list[SequenceInput]:
        return [self._input(chunk, guesses.get(place, ()), begun.get(place)) for place, chunk in enumerate(plan.chunks)]

    def _input(self, chunk: Chunk, guess: Sequence[int], begun: BegunChunk | None) -> SequenceInput:
        request = self._requests[chunk.row]
        embed = request.prepared.embedding is not None
        return SequenceInput(
            token_ids=request.token_ids[chunk.start : chunk.start + chunk.tokens],
            start=chunk.start,
            block_ids=self._kv.table(chunk.row),
            sampling=request.prepared.sampling if chunk.samples and not embed else None,
            output_position=request.output_tokens,
            history=request.token_ids,
            embed=chunk.samples and embed,
            begun=None if begun is None else begun.place,
            guess=guess,
        )

    # --- the forward and what came of it --------------------------------------------------------------------------

    def _compute(self, sequences: Sequence[SequenceInput]) -> StepTokens:
        with self._timed_inside():
            started = self._clock()
            if any(sequence.begun is not None for sequence in sequences):
                assert self._ahead is not None
                started = self._ahead.begun_s
            try:
                return self._forward.step(sequences)
            finally:
                self.last_s = self._clock() - started

    def _begin_next(self, plan: StepPlan, outcomes: Sequence[Outcome]) -> None:
        """Where the device can: what comes next if nothing comes between (`workers.engine.run_ahead`)."""
        if self._ahead is None or len(outcomes) < len(plan.chunks):
            return
        chunks = tuple(
            Chunk(outcome.row, len(self._requests[outcome.row].token_ids) - 1, 1, samples=True, decode=True)
            for outcome in outcomes
            if outcome.ended is None
        )
        if not chunks or not self._ahead.make_room(chunks):
            return
        expected = StepPlan(chunks, (), (), (), 0.0)
        with self._timed_inside():
            self._ahead.begin(chunks, self._inputs(expected, self._guess(expected), {}))

    @contextmanager
    def _timed_inside(self) -> Iterator[None]:
        started, cpu_started = self._clock(), self._cpu_clock()
        try:
            yield
        finally:
            self.inside_s += self._clock() - started
            self.inside_cpu_s += self._cpu_clock() - cpu_started

    def _settle(self, plan: StepPlan, sampled: StepTokens, guesses: Mapping[int, Sequence[int]], done: float) -> None:
        accepted = self._accepted(plan, guesses)
        outcomes: list[Outcome] = []
        endings: list[tuple[int, FinishReason, Embedding | None]] = []
        for place, (chunk, token) in enumerate(zip(plan.chunks, sampled.tokens, strict=True)):
            timeline = self._timeline(chunk.row)
            timeline.steps += 1
            self._preemption_times.computed(chunk, timeline, done)
            if (embedding := sampled.embeddings.get(place)) is not None:
                timeline.embedded(done)
                outcomes.append(Outcome(chunk.row, RequestState.FINISHED, tokens=0))
                endings.append((chunk.row, FinishReason.STOP, embedding))
            if token is None:
                continue
            taken, reason = self._tokens.accept_until_end(
                self._requests[chunk.row], (token, *accepted.get(place, ())), done, sampled.logprobs.get(place)
            )
            state = None if reason is None else RequestState.FINISHED
            outcomes.append(Outcome(chunk.row, state, taken, len(guesses.get(place, ()))))
            self.decode_tokens += taken if chunk.decode else 0
            if reason is not None:
                endings.append((chunk.row, reason, None))
        self._begin_next(plan, outcomes)
        self._scheduler.settle(plan, outcomes, self.last_s, done)
        if self._observer is not None:
            self._observer.step(plan, sum(map(len, guesses.values())), self.last_s)
        for row, reason, embedding in endings:
            self._departures.end(row, reason, done, embedding)
        self.steps += 1
        self.prefill_tokens += plan.prefill_tokens
        self.seconds += self.last_s

    def _accepted(self, plan: StepPlan, guesses: Mapping[int, Sequence[int]]) -> Mapping[int, Sequence[int]]:
        if self._speculation is None:
            return {}
        return self._speculation.accepted(guesses, lambda place: self._service(plan.chunks[place].row))

    def _service(self, row: int) -> PriorityClass:
        return PriorityClass(self._index.service[row])

    def _timeline(self, row: int) -> Timeline:
        return self._requests[row].timeline

    def _no_memory(self) -> RequestError:
        return RequestError.resource_exhausted(
            "The worker has no memory left to compute the request.",
            retry_after_s=_MEMORY_RETRY_S,
            queue_depth=self._scheduler.statistics().queued,
        )
