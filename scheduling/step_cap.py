"""How long a step may be for its prompts: shorter than the configured cap while a TPOT target is at risk.

Knows running sequences, TPOT targets by class and the step-time model. Does not know blocks or who waits.

**Rule.** A decode whose class has a TPOT target *t* is due a token every *t* from its first one. The prompts of a step
get as much as lets it end when the next such token is due, and never less than lets it take *t*: one that is ahead of
its schedule lends what it is ahead, one that is behind is not made worse. Strict prompts are not held to it, for a
first token is worth more than a further one in time.

**Limit.** Where the decodes alone take longer than *t*, leaving out prompts reaches nothing but starving them: the
target then has no say. So on a machine too slow for a target the step is what is configured.
"""

from collections.abc import Iterable, Mapping

from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.running import RunningSequence
from scheduling.step_time import StepTimeModel
from scheduling.tree import Slo

__all__ = ["StepCap"]


class StepCap:
    def __init__(
        self, configured_s: float, slos: Mapping[PriorityClass, Slo], index: Index, step_time: StepTimeModel
    ) -> None:
        self._configured_s = configured_s
        self._targets = {priority: slo.tpot_s for priority, slo in slos.items() if slo.tpot_s is not None}
        self._index = index
        self._step_time = step_time
        self._shrunk = 0

    @property
    def shrunk(self) -> int:
        """Steps that a target made shorter, since the start."""
        return self._shrunk

    def seconds(self, running: Iterable[RunningSequence], now: float) -> float:
        """What the coming step may take with prompts that are not strict."""
        if not self._targets:
            return self._configured_s
        decodes = context = 0
        cap_s, strictest_s = self._configured_s, self._configured_s
        for sequence in running:
            if not sequence.decoding:
                continue
            decodes += 1
            context += sequence.known_tokens
            target_s = self._targets.get(self._index.origin_of(sequence.row))
            if target_s is not None and sequence.first_token_s is not None:
                due_s = sequence.first_token_s + sequence.output_tokens * target_s
                cap_s = min(cap_s, max(target_s, due_s - now))
                strictest_s = min(strictest_s, target_s)
        if cap_s >= self._configured_s or self._step_time.predict(0, decodes, context) > strictest_s:
            return self._configured_s
        self._shrunk += 1
        return cap_s
