"""A small engine for tests: completes prompts on a runner, batching and cutting them as a policy says.

Knows the runner's protocol. Does not know the project's scheduler: what it checks is the runner alone.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from workers.intake.sampling import GREEDY, SamplingParams
from workers.runners.runner import ModelRunner, SequenceInput

__all__ = ["complete"]

Cut = Callable[[list[int]], list[int]]
"""Given how many tokens each unfinished sequence has left to compute, how many of each to take (0: not this time)."""


@dataclass(slots=True)
class _Sequence:
    tokens: list[int]
    prompt_tokens: int
    sampling: SamplingParams
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]


def everything(left: list[int]) -> list[int]:
    return left


def complete(
    runner: ModelRunner,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    *,
    cut: Cut = everything,
    sampling: Sequence[SamplingParams] | None = None,
    end_token_ids: Collection[int] = (),
) -> list[list[int]]:
    """Each prompt's output: up to `new_tokens`, an end token being the last one."""
    free = [*range(runner.num_blocks)]
    wishes = sampling or [GREEDY] * len(prompts)
    sequences = [_Sequence([*prompt], len(prompt), wish) for prompt, wish in zip(prompts, wishes, strict=True)]
    running = [*sequences]
    while running:
        takes = cut([len(sequence.tokens) - sequence.computed for sequence in running])
        members = [(sequence, take) for sequence, take in zip(running, takes, strict=True) if take]
        sampled = runner.step([_input(runner, sequence, take, free) for sequence, take in members])
        for (sequence, take), token in zip(members, sampled, strict=True):
            sequence.computed += take
            if token is None:
                continue
            sequence.tokens.append(token)
            if len(sequence.output) == new_tokens or token in end_token_ids:
                running.remove(sequence)
                free.extend(sequence.blocks)
    return [sequence.output for sequence in sequences]


def _input(runner: ModelRunner, sequence: _Sequence, take: int, free: list[int]) -> SequenceInput:
    end = sequence.computed + take
    while len(sequence.blocks) * runner.block_size < end:
        sequence.blocks.append(free.pop(len(free) // 2))
    return SequenceInput(
        sequence.tokens[sequence.computed : end],
        sequence.computed,
        sequence.blocks,
        sequence.sampling if end == len(sequence.tokens) else None,
        len(sequence.output),
    )
