"""A runner around another one, for tests that change a part of what it does."""

from collections.abc import Mapping, Sequence

from workers.intake.sampling import TokenLogprobs
from workers.runners.runner import Embedding, ModelLimits, ModelRunner, SequenceInput

__all__ = ["WrappedRunner"]


class WrappedRunner:
    """A `ModelRunner` that does what the one inside it does."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    @property
    def limits(self) -> ModelLimits:
        return self._runner.limits

    @property
    def block_size(self) -> int:
        return self._runner.block_size

    @property
    def num_blocks(self) -> int:
        return self._runner.num_blocks

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        return self._runner.step(sequences)

    def take_logprobs(self) -> Mapping[int, TokenLogprobs]:
        return self._runner.take_logprobs()

    def take_embeddings(self) -> Mapping[int, Embedding]:
        return self._runner.take_embeddings()
