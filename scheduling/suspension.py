"""How a victim is suspended and comes back: swapped or recomputed, what that costs, and whom it is charged to.

Knows running sequences, blocks and costs. Does not choose victims (`scheduling.preemption`) and moves no bytes: it
notes the copies, and the engine does them before the next forward.

**Who pays.** The work done twice is charged to who needed the room, not to who lost it: at the eviction what is
expected (the tokens computed, or what the copies take in the time of prompt tokens), and back when the victim returns
and finds part of it in the prefix cache, as long as the payer is there to get it back.
"""

from dataclasses import dataclass

from kvcache.manager import Allocation, KVCacheManager
from kvcache.swap_plan import BlockCopy, Direction
from scheduling.claims import Claims
from scheduling.cost import CostModel
from scheduling.index import Index
from scheduling.ledger import Cause
from scheduling.plan import Eviction
from scheduling.preemption import Preemption
from scheduling.preemption_rules import PreemptionMode
from scheduling.qdisc import Qdisc
from scheduling.running import RunningSequence, RunningSet
from scheduling.state import RequestState
from scheduling.step_time import StepTimeModel
from scheduling.swap_rule import SwapRule, SwapRuleStatistics

__all__ = ["SuspensionStatistics", "Suspensions"]


@dataclass(frozen=True, slots=True)
class SuspensionStatistics:
    preemptions: int
    swapped: int
    """Of them by swap."""
    lost_tokens: int
    """Computed and given up, by recompute."""
    swapped_tokens: int
    """Computed and copied out."""
    swap_cost_tokens: int
    """What the copies were expected to take, in prompt tokens."""
    demotions: int
    past_budget: int
    """For strict requesters, of somebody whose tenant's budget was spent."""
    rule: SwapRuleStatistics | None
    """None: nothing can be swapped."""


class Suspensions:
    def __init__(
        self,
        *,
        mode: PreemptionMode,
        preemption: Preemption,
        swap_rule: SwapRule | None,
        qdisc: Qdisc,
        index: Index,
        kv: KVCacheManager,
        running: RunningSet,
        claims: Claims,
        cost: CostModel,
        step_time: StepTimeModel,
    ) -> None:
        self._mode = mode
        self._preemption = preemption
        self._swap_rule = swap_rule
        self._qdisc = qdisc
        self._index = index
        self._kv = kv
        self._running = running
        self._claims = claims
        self._cost = cost
        self._step_time = step_time
        self._evictions: list[Eviction] = []
        self._swaps: list[BlockCopy] = []
        """Of the coming step, as the evictions; in the order in which they are to be done."""
        self._preemptions = self._swapped = 0
        self._lost_tokens = self._swapped_tokens = self._swap_cost_tokens = 0

    def take(self) -> tuple[tuple[Eviction, ...], tuple[BlockCopy, ...]]:
        """What has happened since the last call."""
        taken = tuple(self._evictions), tuple(self._swaps)
        self._evictions, self._swaps = [], []
        return taken

    def evict(self, victim: RunningSequence, causer: RunningSequence, now: float) -> None:
        """Take the victim's slot and blocks, for `causer`, which may be itself."""
        self._preemptions += 1
        computed = victim.computed_tokens
        blocks = self._kv.blocks_to_swap(victim.row, computed)
        prefill_s = self.prefill_s(min(computed, blocks * self._kv.block_size))
        copy = self._swap_out(victim, blocks, prefill_s)
        if copy is None:
            self._kv.release(victim.row)
            self._lost_tokens += computed
            extra = self._cost.prompt(computed)
        else:
            self._swaps.append(copy)
            self._swapped += 1
            self._swapped_tokens += computed
            extra = self._cost.prompt(self._in_tokens(blocks))
        # It is paid by who needed the room, not by who lost it.
        self._qdisc.charge(causer.row, extra, now, Cause.PREEMPTION)
        if causer is not victim:
            self._preemption.suspended(victim, now)
        swap_s = None if self._swap_rule is None else self._swap_rule.swap_s(blocks)
        self._evictions.append(
            Eviction(victim.row, causer.row, copy is not None, computed, swap_s, self._recompute_s(prefill_s))
        )
        self._running.remove(victim)
        if victim.decoding:
            self._index.move(victim.row, RequestState.PREFILL)
        victim.give_up(causer, swapped=copy is not None)
        self._claims.put_back(victim)

    def came_back(self, sequence: RunningSequence, allocation: Allocation, now: float) -> None:
        """The sequence has blocks again."""
        if allocation.swap_in is not None:
            self._swaps.append(allocation.swap_in)
        causer, lost = sequence.causer, sequence.gave_up_tokens
        sequence.causer = None
        found = min(allocation.found_tokens, lost)
        if self._swap_rule is not None:
            self._swap_rule.came_back(lost, found)
        if sequence.swapped:
            return
        if found and causer is not None and not causer.ended:
            self._qdisc.charge(causer.row, -self._cost.prompt(found), now, Cause.PREEMPTION)

    def copied(self, direction: Direction, blocks: int, seconds: float) -> None:
        """The engine did a copy, and it took so long."""
        if self._swap_rule is not None:
            self._swap_rule.copied(direction, blocks, seconds)

    def prefill_s(self, tokens: int) -> float:
        """What so many prompt tokens add to steps that run anyway."""
        return self._step_time.predict(tokens, 0, tokens) - self._step_time.predict(0, 0, 0)

    def statistics(self) -> SuspensionStatistics:
        return SuspensionStatistics(
            preemptions=self._preemptions,
            swapped=self._swapped,
            lost_tokens=self._lost_tokens,
            swapped_tokens=self._swapped_tokens,
            swap_cost_tokens=self._swap_cost_tokens,
            demotions=self._preemption.demotions,
            past_budget=self._preemption.past_budget,
            rule=None if self._swap_rule is None else self._swap_rule.statistics(),
        )

    def _swap_out(self, victim: RunningSequence, blocks: int, prefill_s: float) -> BlockCopy | None:
        if self._swap_rule is None or self._mode not in (PreemptionMode.SWAP, PreemptionMode.AUTO):
            return None
        if self._mode is PreemptionMode.AUTO and not self._swap_rule.prefers_swap(blocks, prefill_s):
            return None
        return self._kv.swap_out(victim.row, victim.computed_tokens)

    def _recompute_s(self, prefill_s: float) -> float:
        return prefill_s if self._swap_rule is None else self._swap_rule.recompute_s(prefill_s)

    def _in_tokens(self, blocks: int) -> int:
        """What copying so many blocks out and in takes, in prompt tokens."""
        assert self._swap_rule is not None, "nothing can be swapped"
        token_s = self.prefill_s(1)
        tokens = round(self._swap_rule.swap_s(blocks) / token_s) if token_s > 0 else 0
        self._swap_cost_tokens += tokens
        return tokens
