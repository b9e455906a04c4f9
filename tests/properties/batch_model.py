"""A small model of the engine that watches every plan: it knows, from the plans alone, what each request has computed,
and checks each promise of `scheduling.batch` against it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvcache.partitions import divide
from scheduling.accounting import AccountedQdisc
from scheduling.plan import Chunk, StepPlan
from scheduling.preemption_rules import PreemptionMode, PreemptionRules
from scheduling.priority import PriorityClass
from scheduling.qdisc import EVERYTHING, Room
from scheduling.state import RequestState
from scheduling.swap_rule import SwapRates
from tests.properties.batch_worlds import CONTEXT, DISCIPLINES, SHARES, STEP_TIME, Case, World
from tests.scheduling.batch_rig import P0, PlainDiscipline, Rig


@dataclass
class Watched:
    """What the model knows of one request."""

    case: Case
    known: int = 0
    """Prompt and output; 0 until it is staged."""
    computed: int = 0
    most_computed: int = 0
    computed_in_all: int = 0
    lost: int = 0
    """Computed and given up, swapped or not."""
    skipped: int = 0
    """Not computed, for it was there when it was admitted or came back."""
    first_hit: int | None = None
    sat_out: int = 0
    preemptions: int = 0
    protected_until: int = 0
    """What it had computed when it was last preempted."""
    output: int = 0
    ends: int = 0
    admitted: bool = False
    preempted: bool = False
    decoding: bool = False
    order: int = 0

    @property
    def protected(self) -> bool:
        return self.preemptions > 0 and self.computed <= self.protected_until

    @property
    def running(self) -> bool:
        return self.admitted and not self.preempted and not self.ends


@dataclass
class Simulation:
    world: World
    plans: list[StepPlan] = field(default_factory=list)
    watched: dict[int, Watched] = field(default_factory=dict)
    finished: list[Watched] = field(default_factory=list)
    returning: list[tuple[int, int]] = field(default_factory=list)
    """With the staging thread: when they come back, and which."""
    passed: Counter[int] = field(default_factory=Counter)
    """By row in front of its class, since it began to wait."""
    picks: list[int] = field(default_factory=list)
    """Rows in the order in which the discipline gave them."""
    admissions: int = 0
    named: int = 0

    def __post_init__(self) -> None:
        world = self.world
        self.rig = Rig(
            blocks=world.blocks,
            block_size=world.block_size,
            step_time=STEP_TIME,
            strict=() if world.discipline == "fifo" else (P0,),
            qdisc=DISCIPLINES[world.discipline],
            context_tokens=CONTEXT,
            max_sequences=world.max_sequences,
            step_tokens=world.step_tokens,
            step_max_s=world.step_max_s,
            prefill_floor_tokens=world.prefill_floor,
            backfill_limit=world.backfill_limit,
            staged_rows=world.staged_rows,
            staged_set_aside=1,
            sit_out_steps=world.sit_out_steps,
            slot_parts=divide("slots", world.max_sequences, SHARES) if world.parts else {},
            parts=divide("blocks", world.blocks, SHARES) if world.parts else None,
            preemption=PreemptionRules(mode=world.mode),
            swap_places=world.swap_places,
            swap_rates=SwapRates(1, 1e4, 1e4) if world.swap_places else None,
        )
        self.rig.lengths.output_tokens = world.predicted
        dequeue = self.rig.qdisc.dequeue

        def dequeue_and_note(now: float, room: Room = EVERYTHING) -> int | None:
            row: int | None = dequeue(now, room)
            if row is not None:
                self.picks.append(row)
            return row

        # The pick order is seen nowhere else: a claimed row does not show when it was claimed.
        self.rig.qdisc.dequeue = dequeue_and_note

    def run(self) -> None:
        pending = sorted(self.world.cases, key=lambda case: case.turn)
        most_turns = 200 + 20 * sum(CONTEXT + case.answer for case in pending)
        for turn in range(most_turns):
            while pending and pending[0].turn <= turn:
                self.arrive(pending.pop(0))
            self.come_back(turn)
            self.cancel_due(turn)
            self.expire()
            self.hand_out(turn)
            self.step(turn not in self.world.paused_turns)
            self.hand_out(turn)
            if not pending and not self.rig.scheduler.has_work:
                return
        raise AssertionError(f"not done after {most_turns} turns: {self.watched}")

    # --- one turn ------------------------------------------------------------------------------------------------

    def arrive(self, case: Case) -> None:
        deadline_s = self.rig.now + case.deadline_s
        row = self.rig.add(case.priority, estimate=case.estimate, deadline_s=deadline_s, tenant=case.tenant)
        assert row not in self.watched
        self.watched[row] = Watched(case)

    def come_back(self, turn: int) -> None:
        due = [row for when, row in self.returning if when <= turn]
        self.returning = [(when, row) for when, row in self.returning if when > turn]
        for row in due:
            watched = self.watched[row]
            case = watched.case
            answer = min(case.answer, CONTEXT - case.prompt)
            names = self.names(watched, case.prompt + answer) if self.world.cache else ()
            self.rig.stage(row, case.prompt, answer, max_output=max(min(1, case.answer), answer), names=names)
            watched.known = case.prompt
        for row in self.rig.scheduler.take_impossible():
            case = self.watched[row].case
            assert case.prompt + min(1, case.answer) > CONTEXT
            self.end(row, RequestState.FAILED)

    def names(self, watched: Watched, tokens: int) -> list[int]:
        """The first half of a prompt is its family's, the rest its own."""
        size, shared = self.world.block_size, watched.case.prompt // 2
        self.named += 1
        return [
            watched.case.family * 1000 + end if end <= shared else self.named * 1_000_000 + end
            for end in range(size, tokens + 1, size)
        ]

    def cancel_due(self, turn: int) -> None:
        for row, watched in list(self.watched.items()):
            if watched.case.cancel_turn is not None and watched.case.cancel_turn <= turn:
                self.rig.scheduler.cancel(row, self.rig.now)
                self.end(row, RequestState.CANCELLED)
        self.rig.scheduler.check_integrity()

    def expire(self) -> None:
        for row in self.rig.scheduler.expire(self.rig.now):
            assert not self.watched[row].admitted
            self.end(row, RequestState.EXPIRED)

    def hand_out(self, turn: int) -> None:
        for row in self.rig.scheduler.to_stage(self.rig.now):
            assert row not in [other for _, other in self.returning], f"row {row} was handed out twice"
            self.returning.append((turn + self.watched[row].case.staging_turns, row))

    def end(self, row: int, state: RequestState) -> None:
        assert self.rig.state(row) is state
        watched = self.watched.pop(row)
        watched.ends += 1
        del self.passed[row]
        if row in self.picks:
            self.picks.remove(row)
        self.finished.append(watched)
        self.returning = [(when, other) for when, other in self.returning if other != row]
        self.rig.forget(row)

    def step(self, may_dispatch: bool) -> None:
        fronts = dict(self.fronts())
        plan = self.rig.schedule(may_dispatch)
        if plan is None:
            assert not any(watched.running for watched in self.watched.values())
            self.rig.now += 0.01
            return
        self.plans.append(plan)
        self.check_victims(plan)
        for row in plan.preempted:
            self.preempt(row)
        self.check_passes(plan, fronts, may_dispatch)
        for row in plan.admitted:
            self.admit(row)
        self.check_budgets(plan)
        self.check_order(plan)
        for chunk in plan.chunks:
            self.compute(chunk)
        for row in self.rig.settle(plan):
            self.end(row, RequestState.FINISHED)

    # --- what must hold ------------------------------------------------------------------------------------------

    def strict(self, watched: Watched) -> bool:
        return watched.case.priority == P0 and self.world.discipline != "fifo"

    def check_victims(self, plan: StepPlan) -> None:
        """Nobody is evicted before it got further than last time, nor while somebody less entitled stays."""
        gone = {eviction.row for eviction in plan.evictions}
        stay = [watched for row, watched in self.watched.items() if watched.running and row not in gone]
        for eviction in plan.evictions:
            victim, causer = self.watched[eviction.row], self.watched[eviction.for_row]
            assert victim.running
            assert self.world.mode is not PreemptionMode.NONE
            assert eviction.computed_tokens == victim.computed
            assert not self.strict(victim) or self.strict(causer)
            assert not victim.protected or self.strict(causer), "a victim again without progress"
            assert victim.case.priority >= causer.case.priority, "somebody more urgent lost"
            if not causer.running:
                assert self.world.mode.evicts_for_newcomers
                assert eviction.for_row in plan.admitted, "evicted for somebody who did not enter"
                assert self.strict(causer) or self.world.parts, "nobody has a reserve"
            elif not self.world.parts:
                for other in stay:
                    assert other.protected or self.yields_first(other) < self.yields_first(victim), "the wrong victim"

    def yields_first(self, watched: Watched) -> tuple[bool, PriorityClass, int, int, int]:
        return not self.strict(watched), watched.case.priority, -watched.preemptions, -watched.computed, watched.order

    def preempt(self, row: int) -> None:
        watched = self.watched[row]
        assert watched.running
        watched.preemptions += 1
        watched.lost += watched.computed
        watched.protected_until = max(watched.protected_until, watched.computed)
        watched.computed = 0
        watched.preempted = True
        watched.decoding = False
        watched.sat_out = 0

    def admit(self, row: int) -> None:
        watched = self.watched[row]
        assert watched.known > 0, "admitted without tokens"
        assert not watched.running
        if not watched.admitted:
            self.admissions += 1
            watched.order = self.admissions
        watched.admitted = True
        watched.preempted = False
        sequence = self.rig.scheduler.running(row)
        watched.computed = sequence.computed_tokens
        watched.decoding = sequence.decoding
        watched.skipped += watched.computed
        if watched.first_hit is None:
            watched.first_hit = watched.computed
            watched.most_computed = watched.computed
        assert watched.computed < watched.known, "one token at least is computed"
        if not self.world.cache and not self.world.swap_places:
            assert watched.computed == 0
        del self.passed[row]

    def compute(self, chunk: Chunk) -> None:
        watched = self.watched[chunk.row]
        assert watched.running
        assert chunk.decode == watched.decoding
        assert chunk.start == watched.computed, "computed twice, or skipped"
        watched.computed += chunk.tokens
        watched.most_computed = max(watched.most_computed, watched.computed)
        watched.computed_in_all += chunk.tokens
        assert watched.computed <= watched.known, "computed what is not known"
        assert chunk.samples == (watched.computed == watched.known)
        assert len(self.rig.kv.table(chunk.row)) * self.world.block_size >= watched.computed
        if chunk.samples and watched.case.answer:
            watched.known += 1
            watched.output += 1
            watched.decoding = True

    def check_budgets(self, plan: StepPlan) -> None:
        world, running = self.world, [watched for watched in self.watched.values() if watched.running]
        assert len(running) <= world.max_sequences
        assert sum(chunk.tokens for chunk in plan.chunks) <= world.step_tokens
        assert plan.chunks
        decodes = {row for row, watched in self.watched.items() if watched.decoding}
        left_out = decodes - {chunk.row for chunk in plan.chunks if chunk.decode}
        strict_prompt = any(self.strict(self.watched[chunk.row]) and not chunk.decode for chunk in plan.chunks)
        for row in decodes:
            watched = self.watched[row]
            watched.sat_out = watched.sat_out + 1 if row in left_out else 0
            assert watched.sat_out <= world.sit_out_steps, "a stream paused for too long"
            assert not watched.sat_out or (strict_prompt and not self.strict(watched)), "a decode was left out"
        if plan.prefill_tokens > world.prefill_floor:
            assert plan.predicted_s <= world.step_max_s + 1e-9
        if len(running) > len(decodes) and not left_out:
            assert plan.prefill_tokens >= 1, "prompts don't get on"

    def check_order(self, plan: StepPlan) -> None:
        groups = []
        for chunk in plan.chunks:
            watched = self.watched[chunk.row]
            groups.append((not self.strict(watched), not chunk.decode, watched.order))
        assert groups == sorted(groups)

    def fronts(self) -> Iterator[tuple[PriorityClass, int]]:
        """Who stands first in each class: the preempted row admitted first, or the claimed row picked first."""
        for priority in PriorityClass:
            mine = [(row, watched) for row, watched in self.watched.items() if watched.case.priority == priority]
            preempted = [(watched.order, row) for row, watched in mine if watched.preempted]
            claimed = [row for row, _ in mine if self.rig.state(row) is RequestState.CLAIMED]
            if preempted:
                yield priority, min(preempted)[1]
            elif claimed:
                yield priority, min(claimed, key=self.picks.index)

    def check_passes(self, plan: StepPlan, fronts: dict[PriorityClass, int], may_dispatch: bool) -> None:
        """Less urgent rows passed a front at most as often as allowed, as long as it was the front."""
        if not may_dispatch:
            # Heads can't go, and preempted sequences must: nobody is passed by choice.
            return
        for row in plan.admitted:
            for priority, front in fronts.items():
                if front not in plan.admitted and self.watched[row].case.priority > priority:
                    self.passed[front] += 1
        assert not self.passed or max(self.passed.values()) <= self.world.backfill_limit

    def check_end(self) -> None:
        world, rig = self.world, self.rig
        assert len(self.finished) == len(world.cases)
        assert all(watched.ends == 1 for watched in self.finished)
        for watched in self.finished:
            # All but the last sampled token are computed once, and once more for every time they were lost.
            prompt, answer = watched.case.prompt, watched.case.answer
            whole = watched.output == min(answer, CONTEXT - prompt) if answer else watched.computed == prompt
            if whole and watched.admitted:
                due = prompt + max(0, watched.output - 1) + watched.lost - watched.skipped
                assert watched.computed_in_all == due
        assert rig.kv.free_blocks == world.blocks
        assert rig.kv.reserved_blocks == 0
        assert len(rig.index) == 0
        statistics = rig.scheduler.statistics()
        suspensions = statistics.suspensions
        lost = sum(watched.lost for watched in self.finished)
        assert suspensions.lost_tokens + suspensions.swapped_tokens == lost
        assert rig.kv.statistics().swapped == 0
        assert statistics.prefill_tokens + statistics.decode_tokens == sum(
            watched.computed_in_all for watched in self.finished
        )
        self.check_charges(suspensions.lost_tokens, suspensions.lost_tokens + suspensions.swap_cost_tokens)

    def check_charges(self, recomputed: int, most_extra: int) -> None:
        """To the unit: prompts that were computed and tokens that were given; and what was computed twice."""
        due = sum(
            min(watched.case.prompt, watched.most_computed) - (watched.first_hit or 0) + 2 * watched.output
            for watched in self.finished
        )
        qdisc = self.rig.qdisc
        if isinstance(qdisc, AccountedQdisc):
            ledger = qdisc.ledger()
            assert ledger.open == 0
            settled = ledger.settled
            extra = sum(account.preemption_cost for account in ledger.accounts)
        else:
            assert isinstance(qdisc, PlainDiscipline)
            assert not qdisc.in_flight
            settled, extra = qdisc.total, sum(qdisc.caused.values())
        assert settled - extra == due
        assert 0 <= extra <= most_extra
        if not self.world.cache and not self.world.swap_places:
            assert extra == recomputed


def simulate(world: World) -> Simulation:
    simulation = Simulation(world)
    simulation.run()
    simulation.check_end()
    return simulation
