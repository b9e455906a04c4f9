"""Who enters the engine in a step: the one admission act, and the order in which it is tried.

Knows the discipline, the fronts of the classes (`scheduling.claims`), slots, blocks and the step's room. Does not know
tokens, time's source, or how a step is ordered. Works for `scheduling.batch.BatchScheduler`, on its state.

**One act.** A request gets its sequence slot, its blocks (prompt now, predicted growth promised) and room in the step
together, or it gets nothing and stays in front of its class. Its cost was charged when the discipline picked it. So
nothing is ever half admitted: no slot is held by a request that waits for blocks, no blocks by one that waits for a
slot.

**Room that others have.** Who is strict, or within its class's reserve, and finds no slot or no blocks, may be entitled
to what others have (`scheduling.preemption`): they are evicted, enough of them or nobody.

**The slots and blocks of strict classes are lent** as long as enough sequences run that would give way within a step:
an idle slot costs the batch its part of each step, a suspension only copies, or what is not found in the prefix cache.
Where nobody may be evicted, or all budgets are spent, they stay free.

**Late binding.** The discipline is asked only while a slot and room in the step are left. What is picked early stays
picked, and a more urgent arrival then has to pass it.

Order: strict classes first, their fronts before their newcomers; then the same for all others. Strict first also
between fronts, or a batch request that waited for blocks would take those that a strict newcomer needs.
"""

from collections.abc import Collection

from kvcache.manager import Allocation, KVCacheManager
from scheduling.claims import Claims
from scheduling.cost import CostModel
from scheduling.index import Index
from scheduling.ledger import Cause
from scheduling.limits import BatchLimits
from scheduling.preemption import Preemption
from scheduling.priority import PriorityClass
from scheduling.qdisc import Qdisc, Room
from scheduling.running import RunningSequence, RunningSet
from scheduling.staging_window import StagingWindow
from scheduling.state import RequestState
from scheduling.step_order import StepBudget
from scheduling.suspension import Suspensions

__all__ = ["Admission"]


class Admission:
    def __init__(
        self,
        *,
        qdisc: Qdisc,
        index: Index,
        kv: KVCacheManager,
        limits: BatchLimits,
        running: RunningSet,
        claims: Claims,
        window: StagingWindow,
        cost: CostModel,
        strict_classes: frozenset[PriorityClass],
        preemption: Preemption,
        suspensions: Suspensions,
        longest_promised: bool,
    ) -> None:
        """`longest_promised`: blocks are promised for the longest answer instead of the predicted one, for nobody could
        be evicted if it came to that."""
        self._qdisc = qdisc
        self._index = index
        self._kv = kv
        self._limits = limits
        self._running = running
        self._claims = claims
        self._window = window
        self._cost = cost
        self._preemption = preemption
        self._suspensions = suspensions
        self._longest_promised = longest_promised
        self._strict_classes = strict_classes
        self._paused: frozenset[PriorityClass] = frozenset()
        self._by_right: set[int] = set()
        """Claimed rows that were picked while their class was strict. Above its limit a strict class is an ordinary
        one: its requests go before nobody and evict nobody. (A row that ends unadmitted stays until its number is used
        again.)"""
        self._without_tokens: set[int] = set()
        """Claimed rows that have not lacked room yet: they had no tokens when they were picked. (A row that ends
        unadmitted stays, as above.)"""
        self._chosen: list[int] = []
        """They lack room, and it was not told of yet."""
        self._first_admissions = 0
        self._readmissions = 0
        self._evicted = False
        """Somebody was evicted for this step."""

    @property
    def first_admissions(self) -> int:
        return self._first_admissions

    @property
    def readmissions(self) -> int:
        """Of sequences that were preempted."""
        return self._readmissions

    def take_chosen(self) -> list[int]:
        """Rows whose turn came since the last call and that have their tokens and found no room. Each once."""
        chosen, self._chosen = self._chosen, []
        return chosen

    def set_strict(self, classes: frozenset[PriorityClass]) -> None:
        """These are strict from now on. What was admitted or picked by right keeps it."""
        self._strict_classes = classes

    def set_paused(self, classes: frozenset[PriorityClass]) -> None:
        """Nothing of these starts; what was admitted goes on."""
        self._paused = classes

    def admit(self, budget: StepBudget, now: float, *, may_dispatch: bool, strict_only: bool) -> tuple[int, ...]:
        """Admit what fits, and what is entitled to room that others have; the rows.

        Without `may_dispatch` only preempted sequences come back: they have begun to answer, and must end.
        """
        admitted: list[int] = []
        self._evicted = strict_only
        for strict in (True, False):
            if strict and not self._strict_classes:
                continue
            if self._evicted and not strict:
                # A step that had to evict somebody has no room to spare for anybody who is not strict.
                break
            self._admit_fronts(strict, budget, now, may_dispatch, admitted)
            if may_dispatch:
                self._admit_newcomers(strict, budget, now, admitted)
        return tuple(admitted)

    def strict_without_tokens(self, now: float) -> bool:
        """Whether a strict request would have its turn now, were its tokens made."""
        if not self._strict_classes:
            return False
        row = self._qdisc.peek_strict(now, self._room(True, now))
        return row is not None and not self._window.is_staged(row)

    # --- in which order -------------------------------------------------------------------------------------------

    def _admit_fronts(
        self, strict: bool, budget: StepBudget, now: float, may_dispatch: bool, admitted: list[int]
    ) -> None:
        claims = self._claims
        for priority in claims.waiting(with_claimed=may_dispatch):
            if (priority in self._strict_classes) != strict:
                continue
            if self._evicted and not strict:
                return
            while (sequence := claims.first_preempted(priority)) is not None:
                if not claims.may_go(priority, may_dispatch) or not self._enter(sequence, budget, now):
                    break
                claims.drop_preempted(sequence)
                self._readmissions += 1
                admitted.append(sequence.row)
                if self._evicted and not strict:
                    return
            if may_dispatch and sequence is None and priority not in self._paused:
                self._admit_claimed(priority, budget, now, admitted)

    def _admit_claimed(self, priority: PriorityClass, budget: StepBudget, now: float, admitted: list[int]) -> None:
        """The first that has its tokens and does not fit is the reserved head: nobody behind it goes."""
        claims = self._claims
        claims.set_short_of_room(priority, False)
        for row in claims.claimed_by(priority):
            if not self._window.is_staged(row):
                continue
            if not claims.may_go(priority) or not self._enter_claimed(row, priority, budget, now):
                claims.set_short_of_room(priority, True)
                if row in self._without_tokens:
                    self._without_tokens.discard(row)
                    self._chosen.append(row)
                return
            claims.drop_claimed(priority, row)
            admitted.append(row)
            if self._evicted and priority not in self._strict_classes:
                return

    def _admit_newcomers(self, strict: bool, budget: StepBudget, now: float, admitted: list[int]) -> None:
        """Take rows from the discipline. One that can't enter is claimed: it goes first in its class from now on."""
        while not (self._evicted and not strict) and budget.has_room(strict):
            room = self._room(strict, now)
            if strict and self._qdisc.peek_strict(now, room) is None:
                return
            row = self._qdisc.dequeue(now, room)
            if row is None:
                return
            priority = self._index.service_of(row)
            assert room.admits(priority), f"the discipline gave row {row} of {priority!r}, which has no room"
            self._index.move(row, RequestState.CLAIMED)
            if strict:
                self._by_right.add(row)
            else:
                self._by_right.discard(row)
            if self._enter_claimed(row, priority, budget, now):
                admitted.append(row)
            else:
                self._claims.claim(priority, row)
                short_of_room = self._window.is_staged(row)
                if short_of_room:
                    self._without_tokens.discard(row)
                    self._chosen.append(row)
                else:
                    self._without_tokens.add(row)
                self._claims.set_short_of_room(priority, short_of_room)

    def _room(self, strict: bool, now: float) -> Room:
        """The classes that a new row may come from: one of theirs could have a slot."""
        free = self._free_slots(strict, now)
        room = self._claims.room(max(1, free))
        for priority in PriorityClass:
            if priority in self._paused or not self._slot_for(priority, strict, free):
                room = room.without(priority)
        return room

    def _slot_for(self, priority: PriorityClass, strict: bool, free: int) -> bool:
        """Whether a row of the class could have a slot: one of the `free`, or one that somebody would have to give
        up."""
        if self._running.count(priority) >= self._limits.slot_part(priority).ceiling:
            return False
        return free > 0 or self._preemption.may_free_slot(priority, strict)

    def _free_slots(self, strict: bool, now: float) -> int:
        """Slots that a strict, or another, sequence may take now: the others leave some to strict classes, unless
        somebody runs who would give way within a step."""
        free = self._limits.max_sequences - len(self._running)
        if strict or not self._strict_classes or free <= 0:
            return free
        kept = self._limits.strict_slots - self._running.strict
        return free - max(0, kept - self._preemption.evictable_sequences(now, kept)) if kept > 0 else free

    # --- the act --------------------------------------------------------------------------------------------------

    def _enter_claimed(self, row: int, priority: PriorityClass, budget: StepBudget, now: float) -> bool:
        if not self._window.is_staged(row):
            return False
        sequence = RunningSequence(
            row=row,
            service=priority,
            strict=row in self._by_right,
            order=self._first_admissions,
            prompt_tokens=self._index.prompt_tokens[row],
            max_output_tokens=self._window.output_limit(row),
            predicted_output_tokens=self._index.output_tokens[row],
            block_names=self._window.block_names(row),
        )
        if not self._enter(sequence, budget, now):
            return False
        self._charge_true_prompt(sequence, now)
        self._first_admissions += 1
        self._by_right.discard(row)
        self._window.leave(row)
        self._index.move(row, RequestState.PREFILL)
        return True

    def _enter(self, sequence: RunningSequence, budget: StepBudget, now: float) -> bool:
        """Slot, blocks and room in the step: all, or False and nothing has changed."""
        free = self._free_slots(sequence.strict, now)
        if not budget.has_room(sequence.strict) or not self._slot_for(sequence.service, sequence.strict, free):
            return False
        needs_slot = free <= 0
        spare = self._spare_blocks(sequence, now)
        allocation = None if needs_slot else self._allocate(sequence, spare)
        if allocation is None:
            if not self._make_room(sequence, needs_slot, spare, now):
                return False
            allocation = self._allocate(sequence, spare)
            assert allocation is not None, f"room was made for {sequence}, and it does not fit"
        self._start(sequence, allocation, now)
        budget.take(sequence)
        self._claims.admitted(sequence.service)
        return True

    def _predicted_tokens(self, sequence: RunningSequence) -> int:
        """What blocks are promised for."""
        expected = sequence.expected_tokens
        if self._longest_promised:
            expected = sequence.prompt_tokens + sequence.max_output_tokens
        elif sequence.preemptions:
            # Past its prediction it would come back without a block to grow into, and be preempted again at once.
            expected = max(expected, sequence.known_tokens + self._kv.block_size)
        return min(expected, self._limits.context_tokens)

    def _spare_blocks(self, sequence: RunningSequence, now: float) -> int:
        """Blocks that must stay free beside it, so that strict classes find their reserve, and a strict prompt its own,
        within a step."""
        if sequence.strict or not self._strict_classes:
            return 0
        prompt = min(self._kv.blocks_for(self._limits.strict_prompt_tokens), self._kv.num_blocks // 4)
        wanted = max(prompt, sum(map(self._kv.reserve_left, self._strict_classes)))
        return max(0, wanted - self._preemption.evictable_blocks(sequence, now, wanted)) if wanted > 0 else 0

    def _allocate(self, sequence: RunningSequence, spare: int) -> Allocation | None:
        return self._kv.allocate(
            sequence.row,
            sequence.known_tokens,
            owner_class=sequence.service,
            predicted_tokens=self._predicted_tokens(sequence),
            names=sequence.block_names,
            spare=spare,
        )

    def _make_room(self, sequence: RunningSequence, needs_slot: bool, spare: int, now: float) -> bool:
        """Evict enough others, or nobody and False."""
        predicted = self._predicted_tokens(sequence)

        def fits(without: Collection[int]) -> bool:
            return self._kv.fits(
                sequence.row,
                sequence.known_tokens,
                owner_class=sequence.service,
                predicted_tokens=predicted,
                names=sequence.block_names,
                without=without,
                spare=spare,
            )

        victims = self._preemption.for_newcomer(
            sequence,
            now,
            needs_slot=needs_slot,
            within_reserve=self._kv.within_reserve(predicted, sequence.service),
            fits=fits,
        )
        for victim in victims:
            self._suspensions.evict(victim, sequence, now)
        self._evicted = self._evicted or bool(victims)
        return bool(victims)

    def _start(self, sequence: RunningSequence, allocation: Allocation, now: float) -> None:
        sequence.computed_tokens = allocation.cached_tokens
        if sequence.preemptions:
            self._suspensions.came_back(sequence, allocation, now)
        self._running.add(sequence)
        if sequence.output_tokens and sequence.remaining_tokens == 1:
            # All is there but the KV of the last token: it goes on as it was stopped.
            sequence.decoding = True
            self._index.move(sequence.row, RequestState.DECODE)

    def _charge_true_prompt(self, sequence: RunningSequence, now: float) -> None:
        """The discipline charged what was found in the prefix cache at staging; by now it may be more, or gone."""
        row, index = sequence.row, self._index
        if sequence.computed_tokens != index.cached_tokens[row]:
            charged = self._cost.prompt_of(index, row)
            index.set_tokens(row, prompt_tokens=sequence.prompt_tokens, cached_tokens=sequence.computed_tokens)
            self._qdisc.charge(row, self._cost.prompt_of(index, row) - charged, now, Cause.PROMPT)
