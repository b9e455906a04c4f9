"""Who computes how many tokens in one step: the order, the token budget and the cap in milliseconds.

Knows running sequences and the step-time model. Does not know blocks or waiting requests, and changes nothing.

Order: strict decode, strict prefill, other decode, other prefill; within a group, the order of admission. Decodes
take one token each and always fit (`max_sequences` ≤ `step_tokens`). Prompts share what is left, as chunks
(Sarathi-Serve, Agrawal et al., OSDI 2024): a long prompt costs others a longer step, up to the cap, instead of a stop.
First in, first computed: dividing the rest evenly would finish every prompt late, and a rule by length would starve the
long ones. But a very long prompt leaves a part of each step to others.

**Sitting out.** An urgent prompt should take what it takes on an idle machine, and a batch of decodes can make its step
several times longer. So while a strict prompt is computed the others are left out, if they would make the step more
than a tenth longer, and for at most `sit_out_steps` in a row: that bounds how long any stream pauses. They lose no
work; what it costs is the fixed part of a step for each that was taken alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from scheduling.limits import BatchLimits
from scheduling.plan import Chunk
from scheduling.running import RunningSequence
from scheduling.step_time import StepTimeModel

__all__ = ["StepBudget", "StepLoad", "order_step"]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """A step in the figures of the step-time model."""

    prefill_tokens: int
    decode_sequences: int
    context_tokens: int
    """Sum of the chunks' ends: the KV tokens they look at."""


class StepBudget:
    """How much of the coming step's room for prompts nobody has claimed yet: what an admission has to find.

    Strict prompts go first, so only other strict ones take room from them; another prompt finds what all leave.
    """

    def __init__(
        self, running: Iterable[RunningSequence], limits: BatchLimits, step_time: StepTimeModel, cap_s: float
    ) -> None:
        """`cap_s`: of a step with prompts that are not strict (`scheduling.step_cap`)."""
        decodes = context = 0
        self._limits = limits
        self._strict = self._all = 0
        for sequence in running:
            if sequence.decoding:
                decodes += 1
                context += sequence.known_tokens
            else:
                self.take(sequence)
        self._strict_room, self._room = (
            min(
                limits.step_tokens - decodes,
                max(step_time.prefill_tokens_within(seconds, 0, decodes, context), limits.prefill_floor_tokens),
            )
            for seconds in (limits.step_max_s, cap_s)
        )

    def take(self, sequence: RunningSequence) -> None:
        """A prompt that is computed in this step, as far as it goes."""
        tokens = min(sequence.remaining_tokens, _most_tokens(sequence, self._limits))
        self._all += tokens
        if sequence.strict:
            self._strict += tokens

    def has_room(self, strict: bool) -> bool:
        return self._strict_room > self._strict if strict else self._room > self._all


def order_step(
    running: Iterable[RunningSequence], limits: BatchLimits, step_time: StepTimeModel, cap_s: float
) -> tuple[tuple[Chunk, ...], StepLoad]:
    """The chunks of the next step and their load. No chunks if nothing runs, at least one otherwise.

    `cap_s`: of a step with prompts that are not strict (`scheduling.step_cap`).
    """
    groups: tuple[list[RunningSequence], ...] = ([], [], [], [])
    for sequence in running:
        groups[(0 if sequence.strict else 2) + (not sequence.decoding)].append(sequence)
    if groups[1]:
        groups = (*groups[:2], *_staying(groups, limits, step_time))
    decodes = len(groups[0]) + len(groups[2])
    context = sum(sequence.known_tokens for group in (groups[0], groups[2]) for sequence in group)
    assert decodes <= limits.step_tokens, f"{decodes} decodes don't fit into {limits.step_tokens} tokens"
    prefill = 0
    chunks: list[Chunk] = []
    for group in groups:
        for sequence in group:
            if sequence.decoding:
                chunks.append(Chunk(sequence.row, sequence.computed_tokens, 1, samples=True, decode=True))
                continue
            within_s = limits.step_max_s if sequence.strict else cap_s
            tokens = _prompt_share(sequence, StepLoad(prefill, decodes, context), limits, step_time, within_s)
            if tokens == 0:
                break
            chunks.append(_prompt_chunk(sequence, tokens))
            prefill += tokens
            context += sequence.computed_tokens + tokens
    return tuple(chunks), StepLoad(prefill, decodes, context)


def _staying(
    groups: tuple[list[RunningSequence], ...], limits: BatchLimits, step_time: StepTimeModel
) -> tuple[list[RunningSequence], list[RunningSequence]]:
    """Of the decodes and prompts that are not strict, those that the strict prompts let into their step."""
    strict_decodes, strict_prompts, decodes, prompts = groups
    alone = len(strict_decodes), sum(sequence.known_tokens for sequence in (*strict_decodes, *strict_prompts))
    tokens = min(limits.step_tokens, sum(sequence.remaining_tokens for sequence in strict_prompts))
    beside = alone[0] + len(decodes), alone[1] + sum(sequence.known_tokens for sequence in decodes)
    if step_time.predict(tokens, *beside) <= _BARELY_LONGER * step_time.predict(tokens, *alone):
        return decodes, prompts
    return [sequence for sequence in decodes if sequence.sat_out >= limits.sit_out_steps], []


_BARELY_LONGER = 1.1


def _prompt_share(
    sequence: RunningSequence, load: StepLoad, limits: BatchLimits, step_time: StepTimeModel, within_s: float
) -> int:
    """Tokens of the prompt that fit beside `load`; 0 if the step is full."""
    fit = step_time.prefill_tokens_within(
        within_s,
        load.prefill_tokens,
        load.decode_sequences,
        load.context_tokens + sequence.computed_tokens,
    )
    fit = max(fit, limits.prefill_floor_tokens - load.prefill_tokens)
    tokens_left = limits.step_tokens - load.decode_sequences - load.prefill_tokens
    return min(sequence.remaining_tokens, fit, tokens_left, _most_tokens(sequence, limits))


def _most_tokens(sequence: RunningSequence, limits: BatchLimits) -> int:
    """Of one prompt, in one step."""
    long = sequence.prompt_tokens > limits.long_prompt_tokens and not sequence.strict
    return limits.long_prompt_step_tokens if long else limits.step_tokens


def _prompt_chunk(sequence: RunningSequence, tokens: int) -> Chunk:
    start = sequence.computed_tokens
    return Chunk(sequence.row, start, tokens, samples=start + tokens == sequence.known_tokens, decode=False)
