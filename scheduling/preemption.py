"""Who gives way when there is no room: for a running request's growth, or for a newcomer that is entitled to it.

Knows running sequences, what classes are entitled to, who runs above its rate, and slack. Does not preempt:
`scheduling.batch` does. Whatever happens to a victim, its tokens are kept, and so its output is the same.

**Triggers.**

1. *Growth*: a decode needs a block and none is free. The requester itself is a candidate, so there is always a victim.
2. *A strict newcomer* finds no blocks or no slot: everybody who is not strict is a candidate.
3. *A newcomer whose class is within its reserve*, of blocks or of slots, finds none: borrowers of what it is short of
   are, of lower or equal priority. Borrowing is judged as it would be after the victims before. Enough victims, or
   none.

A step's token budget is no trigger: strict prompts come first in it (`scheduling.step_order`).

**One key**: the least urgent service class first, then the one suspended least often, then the most slack, then the
least waste, then the one admitted last. Slack is the time to the next deadline of the class's SLO: to the first token
before it, to the last token after; without an SLO it is infinite. Waste is what was computed. Without the second of
these the one with the most slack would be taken again and again, whatever it has been through.

Where the requester is not strict, a guarantee counts for more than rank: classes that the discipline says run *above
their rate* come before all others, so that one that gets less than it was promised gives way only when no borrower can.

**Who is spared.**

- A strict sequence never gives way to one that is not.
- Growth that is not strict never takes from a more urgent class.
- A sequence that was suspended is no victim again before it has got further than it was: two that need the same block
  can't undo each other's work for ever. To a strict requester that protection is nothing.
- Classes that are not `preemptible`.
- Requests of a tenant whose budget for this window is spent. The one that would have been next is demoted to batch
  instead: it goes on, and later gives way as batch does. To a strict requester this holds only as long as somebody else
  is left: what was promised to urgent requests comes before what was promised to those that make room for them.
- A request that was itself suspended as often as a whole tenant may be. This holds against everybody, so that each one
  gets to its end.

**What is lent.** Strict classes find their reserve, and room for a prompt, free or with others that would be spared by
no budget (`evictable_blocks`, `evictable_sequences`). So a tenant whose budget is spent lives on what nobody else was
promised, and a flood has to go past budgets only for what it wants beyond its reserve.

A victim keeps its place: it is readmitted before its class's newcomers, in the order of first admissions.

Selecting *some* of a victim's blocks (its tail) would need sequences that run with holes. The prefix cache gives the
same without: a victim's blocks are freed last block first, taken only as they are needed, and what was not taken by the
time it comes back is found.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice
from math import inf

from kvcache.manager import KVCacheManager
from kvcache.partitions import Part
from scheduling.index import Index
from scheduling.preemption_budget import PreemptionBudget
from scheduling.preemption_rules import PreemptionRules
from scheduling.priority import PriorityClass
from scheduling.qdisc import Qdisc
from scheduling.running import RunningSequence, RunningSet

__all__ = ["BATCH", "Preemption"]

BATCH = PriorityClass.P2
"""What a request is demoted to."""

_Key = tuple[bool, int, int, float, int, int]


class Preemption:
    def __init__(
        self,
        rules: PreemptionRules,
        qdisc: Qdisc,
        index: Index,
        kv: KVCacheManager,
        running: RunningSet,
        slots: dict[PriorityClass, Part],
    ) -> None:
        """`slots`: what each class is entitled to of the sequence slots."""
        self._rules = rules
        self._qdisc = qdisc
        self._index = index
        self._kv = kv
        self._running = running
        self._slots = slots
        self._tenants = PreemptionBudget(rules.budget, rules.window_s)
        self._requests = PreemptionBudget(rules.budget, rules.window_s)
        """By order of first admission: a row number is used again."""
        self._demotions = self._past_budget = 0

    @property
    def demotions(self) -> int:
        return self._demotions

    @property
    def past_budget(self) -> int:
        """Suspensions for a strict requester of somebody whose tenant's budget was spent."""
        return self._past_budget

    # --- for growth -----------------------------------------------------------------------------------------------

    def for_growth(self, requester: RunningSequence, now: float) -> RunningSequence:
        """The sequence that makes room for `requester`'s next token: possibly the requester itself."""

        def may_yield(sequence: RunningSequence) -> bool:
            if sequence is requester:
                return True
            if not requester.strict and (sequence.strict or sequence.service < requester.service):
                return False
            if sequence.protected and (sequence.strict or not requester.strict):
                return False
            return sequence.service in self._rules.preemptible

        candidates = self._in_order(filter(may_yield, self._running), requester, now)
        before = candidates[: candidates.index(requester)]
        return self._first(before, requester, now) or requester

    # --- for newcomers --------------------------------------------------------------------------------------------

    def may_free_slot(self, priority: PriorityClass, strict: bool) -> bool:
        """Whether somebody of this class may have a slot that another one holds. Who, is looked at later."""
        if not self._rules.mode.evicts_for_newcomers:
            return False
        if strict:
            return self._running.strict < len(self._running)
        if self._running.count(priority) >= self._slot_part(priority).reserve:
            return False
        return any(
            self._running.count(other) > self._slot_part(other).reserve for other in PriorityClass if other > priority
        )

    def for_newcomer(
        self,
        newcomer: RunningSequence,
        now: float,
        *,
        needs_slot: bool,
        within_reserve: bool,
        fits: Callable[[Collection[int]], bool],
    ) -> list[RunningSequence]:
        """Who has to go so that the newcomer fits; nobody, if it isn't entitled to that or it wouldn't be enough.

        `within_reserve`: it asks for no more blocks than its class's reserve. `fits(rows)`: whether its blocks would
        be there without these rows.
        """
        if not self._rules.mode.evicts_for_newcomers:
            return []
        entitled_to_slot = newcomer.strict or self.may_free_slot(newcomer.service, False)
        if needs_slot and not entitled_to_slot:
            return []
        needs_blocks = not fits(())
        if needs_blocks and not (newcomer.strict or within_reserve):
            return []
        victims: list[RunningSequence] = []
        rows: list[int] = []
        while (needs_slot and not victims) or not fits(rows):
            victim = self._next(newcomer, now, victims, needs_slot=needs_slot and not victims)
            if victim is None:
                return []
            victims.append(victim)
            rows.append(victim.row)
        return self._only_needed(victims, needs_slot, fits)

    def _next(
        self, newcomer: RunningSequence, now: float, victims: list[RunningSequence], *, needs_slot: bool
    ) -> RunningSequence | None:
        candidates = (
            sequence
            for sequence in self._running
            if sequence not in victims
            and not sequence.strict
            and sequence.service in self._rules.preemptible
            and (newcomer.strict or self._yields_to(sequence, newcomer, victims, needs_slot))
        )
        return self._first(self._in_order(candidates, newcomer, now), newcomer, now, victims)

    def _yields_to(
        self, sequence: RunningSequence, newcomer: RunningSequence, victims: Iterable[RunningSequence], needs_slot: bool
    ) -> bool:
        """Not to a strict newcomer: to one that is within its class's reserve."""
        if sequence.service < newcomer.service or sequence.protected:
            return False
        before = [victim for victim in victims if victim.service == sequence.service]
        if needs_slot:
            return self._running.count(sequence.service) - len(before) > self._slot_part(sequence.service).reserve
        return self._kv.is_borrower(
            sequence.service, given_back=sum(self._kv.own_blocks(victim.row) for victim in before)
        )

    @staticmethod
    def _only_needed(
        victims: list[RunningSequence], needs_slot: bool, fits: Callable[[Collection[int]], bool]
    ) -> list[RunningSequence]:
        """Without those that later, larger ones have made unnecessary."""
        for victim in victims[:-1]:
            rest = [other for other in victims if other is not victim]
            if fits([other.row for other in rest]) and (rest or not needs_slot):
                victims = rest
        return victims

    def evictable_blocks(self, newcomer: RunningSequence, now: float, enough: int) -> int:
        """Blocks that strict requests could have of others within a step and within budgets, once the newcomer runs;
        `enough` or more: some of them."""
        blocks = 0
        for sequence in self._evictable(chain((newcomer,), self._running), now):
            if sequence is newcomer:
                blocks += self._kv.blocks_for(newcomer.known_tokens)
            else:
                blocks += self._kv.own_blocks(sequence.row)
            if blocks >= enough:
                break
        return blocks

    def evictable_sequences(self, now: float, enough: int) -> int:
        """Slots that strict newcomers could have of others within a step and within budgets, at most `enough`."""
        return sum(1 for _ in islice(self._evictable(self._running, now), enough))

    def _evictable(self, sequences: Iterable[RunningSequence], now: float) -> Iterator[RunningSequence]:
        """Of a tenant, no more than its budget has left."""
        if not self._rules.mode.evicts_for_newcomers:
            return
        taken: Counter[str] = Counter()
        for sequence in sequences:
            if sequence.strict or sequence.service not in self._rules.preemptible:
                continue
            tenant = self._index.tenant_name(sequence.row)
            if self._tenants.left(tenant, now) > taken[tenant] and self._requests.left(sequence.order, now) > 0:
                taken[tenant] += 1
                yield sequence

    # --- both -----------------------------------------------------------------------------------------------------

    def suspended(self, victim: RunningSequence, now: float) -> None:
        """The victim is suspended for somebody else."""
        tenant = self._index.tenant_name(victim.row)
        self._past_budget += self._tenants.left(tenant, now) <= 0
        self._tenants.spend(tenant, now)
        self._requests.spend(victim.order, now)

    def _first(
        self,
        order: Iterable[RunningSequence],
        requester: RunningSequence,
        now: float,
        victims: Collection[RunningSequence] = (),
    ) -> RunningSequence | None:
        """The first that may be suspended, beside the victims before it; who is spared instead is demoted."""
        taken = Counter(self._index.tenant_name(victim.row) for victim in victims)
        spared: list[RunningSequence] = []
        past_budget: RunningSequence | None = None
        for sequence in order:
            if self._requests.left(sequence.order, now) > 0:
                tenant = self._index.tenant_name(sequence.row)
                if self._tenants.left(tenant, now) > taken[tenant]:
                    break
                past_budget = past_budget or sequence
            spared.append(sequence)
        else:
            if requester.strict and past_budget is not None:
                return past_budget
            sequence = None
        for one in spared:
            self._demote(one)
        return sequence

    def _demote(self, sequence: RunningSequence) -> None:
        if sequence.service < BATCH:
            self._running.demote(sequence, BATCH)
            self._index.demote(sequence.row, BATCH)
            self._demotions += 1

    def _in_order(
        self, candidates: Iterable[RunningSequence], requester: RunningSequence, now: float
    ) -> list[RunningSequence]:
        """The one that gives way first comes first."""
        over = {priority: not requester.strict and self._qdisc.over_rate(priority, now) for priority in PriorityClass}

        def key(sequence: RunningSequence) -> _Key:
            slack_s = self.slack_s(sequence.row, sequence.output_tokens, now)
            return (
                over[sequence.service],
                sequence.service,
                -sequence.preemptions,
                slack_s,
                -sequence.computed_tokens,
                sequence.order,
            )

        return sorted(candidates, key=key, reverse=True)

    def slack_s(self, row: int, output_tokens: int, now: float) -> float:
        """Time left until its first token is due, then until its whole answer is. Infinite without an objective."""
        index = self._index
        if output_tokens == 0:
            return index.ttft_deadline_s[row] - now
        slo = self._rules.slos.get(index.origin_of(row))
        if slo is None or slo.e2e_s is None:
            return inf
        return index.arrival_s[row] + slo.e2e_s - now

    def _slot_part(self, priority: PriorityClass) -> Part:
        return self._slots.get(priority) or Part(0, len(self._running) + 1)
