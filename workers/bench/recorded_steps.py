"""A runner that notes when each step ran and what was in it; it may also say it has fewer blocks than it has.

Knows the runner's protocol and a clock. Does not know requests. For benchmarks: the notes are what a step-time table is
fitted on, and what recorded plans are priced with.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scheduling.step_time import LinearStepTime
from workers.engine.speculation import VerifyingRunner
from workers.intake.sampling import TokenLogprobs
from workers.runners.runner import Embedding, ModelLimits, ModelRunner, SequenceInput

__all__ = ["RecordedStep", "RecordingRunner", "priced_s"]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """Times are of the recorder's clock, in seconds. The load is in the figures of `scheduling.step_time`."""

    started_s: float
    ended_s: float
    prefill_tokens: int
    decode_sequences: int
    context_tokens: int

    @property
    def seconds(self) -> float:
        return self.ended_s - self.started_s


class RecordingRunner:
    """Implements `workers.runners.runner.ModelRunner`, and verifies guesses where the runner inside it does.

    Read `steps` when nothing runs."""

    def __init__(
        self,
        runner: ModelRunner,
        clock: Callable[[], float],
        *,
        num_blocks: int | None = None,
        on_step: Callable[[int], None] = lambda _sequences: None,
    ) -> None:
        """`on_step(sequences)` is called after each step, from the engine's thread."""
        assert num_blocks is None or num_blocks <= runner.num_blocks, f"{num_blocks=} of {runner.num_blocks}"
        self._runner = runner
        if isinstance(runner, VerifyingRunner):
            self.take_accepted = runner.take_accepted
        self._clock = clock
        self.num_blocks = runner.num_blocks if num_blocks is None else num_blocks
        self._on_step = on_step
        self.steps: list[RecordedStep] = []

    @property
    def limits(self) -> ModelLimits:
        return self._runner.limits

    @property
    def block_size(self) -> int:
        return self._runner.block_size

    def take_logprobs(self) -> Mapping[int, TokenLogprobs]:
        return self._runner.take_logprobs()

    def take_embeddings(self) -> Mapping[int, Embedding]:
        return self._runner.take_embeddings()

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        started_s = self._clock()
        sampled = self._runner.step(sequences)
        ended_s = self._clock()
        prefill = decode = context = 0
        for sequence in sequences:
            tokens = len(sequence.token_ids)
            context += sequence.start + tokens
            # The last token of a prompt, left over by a step's budget, counts as a decode: it costs as much.
            if tokens > 1:
                prefill += tokens
            else:
                decode += 1 + len(sequence.guess)
        self.steps.append(RecordedStep(started_s, ended_s, prefill, decode, context))
        self._on_step(len(sequences))
        return sampled


def priced_s(steps: Sequence[RecordedStep], prices: LinearStepTime) -> float:
    """What these steps take by the table."""
    return sum(prices.predict(step.prefill_tokens, step.decode_sequences, step.context_tokens) for step in steps)
