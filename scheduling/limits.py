"""What one engine may run, step and stage: the bounds of `scheduling.batch`.

Knows the bounds and that they agree with each other. Does not know what the memory holds (`kvcache.manager`; the
batch scheduler checks the one against the other) or how long a step takes (`scheduling.step_time`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan

from kvcache.partitions import Part
from scheduling.priority import PriorityClass

__all__ = ["BatchLimits", "LimitsError"]


class LimitsError(ValueError):
    """Bounds that can't all hold. The message carries the sum and what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Raises `LimitsError` on bounds that contradict each other."""

    context_tokens: int
    """Prompt and output of one request together."""
    max_sequences: int = 64
    """Sequence slots: requests that hold blocks at the same time."""
    strict_slots: int = 0
    """Of the slots, those that strict classes find within a step: free, or held by somebody who may be evicted for
    them. So an urgent request never waits for one to fall free."""
    step_tokens: int = 512
    """Tokens a step computes, prompts and decodes together. At least `max_sequences`: every running sequence gets
    its token each step, and what is left goes to prompts."""
    step_max_s: float = 1.0
    """A step is planned to take no longer; prompts are cut to fit. Decodes are never left out for it, and prompts
    get `prefill_floor_tokens` even if that takes longer. Infinite: no cap."""
    prefill_floor_tokens: int = 16
    """The prompts of a step get so many tokens together whatever the time cap says. Without it a full batch of
    decodes that takes as long as the cap would stop every prompt, an urgent one too, until somebody ends."""
    strict_prompt_tokens: int = 0
    """KV for a strict prompt of so many tokens is there within a step: free, or held by somebody who may be evicted for
    it. At most for a quarter of the pool."""
    sit_out_steps: int = 2
    """Other decodes may be left out of so many steps in a row while a strict prompt is computed (they keep slot and
    blocks), if they would make the step more than a tenth longer. So no stream pauses for longer than so many steps."""
    long_prompt_tokens: int = 8192
    """A prompt of more tokens, unless it is strict…"""
    long_prompt_step_tokens: int = 4096
    """…takes at most so many in a step, and leaves the rest of it to others."""
    slot_parts: Mapping[PriorityClass, Part] = field(default_factory=dict)
    """What each class is entitled to of the slots, and may have at most; a class that is not named: nothing, all."""
    backfill_limit: int = 8
    """So many less urgent requests may be admitted past a request that waits for room. Then they wait for it."""
    staged_rows: int = 128
    """Requests that are tokenised or being tokenised and don't run yet. Twice `max_sequences` is a good value."""
    staged_by_class: Mapping[PriorityClass, int] | None = None
    """The most of each class among them; half of `staged_rows` each where absent, which is a full set of slots if
    `staged_rows` is twice that: one class alone can refill the engine from what is staged."""
    staged_set_aside: int | None = None
    """Of `staged_rows`, what only P0 and strict classes may take, so that they are never tokenised behind a flood;
    a quarter where absent."""
    expiries_a_call: int = 256
    """Requests that one `expire` ends at most: the rest end in the next turn, so no turn takes long for it."""

    def __post_init__(self) -> None:
        for name in (
            "max_sequences",
            "step_tokens",
            "prefill_floor_tokens",
            "long_prompt_tokens",
            "long_prompt_step_tokens",
            "staged_rows",
            "expiries_a_call",
        ):
            if getattr(self, name) < 1:
                raise LimitsError(f"{name} = {getattr(self, name)}: must be at least 1")
        if not 0 <= self.strict_slots < self.max_sequences:
            raise LimitsError(
                f"strict_slots = {self.strict_slots} of max_sequences = {self.max_sequences}: from 0 up, and at least "
                "one slot must be left for the other classes"
            )
        if self.context_tokens < 2:
            raise LimitsError(f"context_tokens = {self.context_tokens}: one token in and one out is the least")
        for name in ("backfill_limit", "sit_out_steps", "strict_prompt_tokens"):
            if getattr(self, name) < 0:
                raise LimitsError(f"{name} = {getattr(self, name)}: must not be negative")
        if isnan(self.step_max_s) or self.step_max_s <= 0:
            raise LimitsError(f"step_max_s = {self.step_max_s}: must be more than 0")
        if self.step_tokens < self.max_sequences:
            raise LimitsError(
                f"step_tokens = {self.step_tokens} < max_sequences = {self.max_sequences}: each running request "
                f"needs one token a step; raise step_tokens by {self.max_sequences - self.step_tokens} or lower "
                "max_sequences"
            )
        self._check_staging()

    def _check_staging(self) -> None:
        for priority in PriorityClass:
            if self.staging_quota(priority) < 1:
                raise LimitsError(
                    f"staged_by_class[{priority.label}] = {self.staging_quota(priority)}: a class that may stage "
                    "nothing never runs; give it at least 1"
                )
        if not 1 <= self.set_aside < self.staged_rows:
            raise LimitsError(
                f"staged_set_aside = {self.set_aside} of staged_rows = {self.staged_rows}: at least 1 for urgent "
                f"classes and 1 for the others are needed, {self.set_aside} + 1 = {self.set_aside + 1} in all"
            )

    def slot_part(self, priority: PriorityClass) -> Part:
        return self.slot_parts.get(priority) or Part(0, self.max_sequences)

    def staging_quota(self, priority: PriorityClass) -> int:
        if self.staged_by_class is None:
            return max(1, self.staged_rows // 2)
        return self.staged_by_class.get(priority, 0)

    @property
    def set_aside(self) -> int:
        return max(1, self.staged_rows // 4) if self.staged_set_aside is None else self.staged_set_aside
