"""Each step, a block for every decode whose next token needs one; whoever has to, makes room.

Knows running sequences and blocks. Does not choose who gives way (`scheduling.preemption`) and does not suspend
(`scheduling.suspension`). The most urgent take what is free.
"""

from kvcache.manager import KVCacheManager
from scheduling.preemption import Preemption
from scheduling.running import RunningSequence, RunningSet
from scheduling.suspension import Suspensions

__all__ = ["DecodeGrowth"]


class DecodeGrowth:
    def __init__(
        self,
        kv: KVCacheManager,
        running: RunningSet,
        preemption: Preemption,
        suspensions: Suspensions,
        *,
        never_evicts: bool,
    ) -> None:
        """`never_evicts`: the longest answers were promised, so that no decode ever wants a block in vain."""
        self._kv = kv
        self._running = running
        self._preemption = preemption
        self._suspensions = suspensions
        self._never_evicts = never_evicts

    def grow(self, now: float) -> bool:
        """True: somebody had to make room, possibly the one that grows itself."""
        evicted = False
        decoding = [sequence for sequence in self._running if sequence.decoding]
        decoding.sort(key=_urgency)  # stable, so of two that are as urgent the one admitted first
        for sequence in decoding:
            while sequence.decoding and not self._kv.grow(sequence.row, sequence.known_tokens):
                assert not self._never_evicts, f"{sequence} finds no block, and its longest answer was promised to it"
                victim = self._preemption.for_growth(sequence, now)
                assert len(self._running) > 1, f"{victim} has the pool alone and needs more"
                self._suspensions.evict(victim, sequence, now)
                evicted = True
        return evicted


def _urgency(sequence: RunningSequence) -> tuple[bool, int]:
    return not sequence.strict, sequence.service
