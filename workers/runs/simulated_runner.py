"""A runner without a model: steps take the time that a step-time model says, on a virtual clock.

Knows how long a step takes. Does not know text: its tokens are a fixed function of the sampling seed and the output
position, so that they are the same in every run. For tests; never for a benchmark of the engine.
(`workers.runs.simulation` drives the scheduler without a runner.)
"""

from collections.abc import Mapping, Sequence

import numpy as np

from scheduling.step_time import StepTimeModel
from workers.intake.sampling import TokenLogprobs
from workers.runners.runner import Embedding, ModelLimits, SequenceInput

__all__ = ["SimulatedRunner", "VirtualClock"]


class VirtualClock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0
        self._now_s += seconds

    def advance_to(self, now_s: float) -> None:
        self._now_s = max(self._now_s, now_s)


class SimulatedRunner:
    """Implements `workers.runners.runner.ModelRunner`."""

    def __init__(
        self, step_time: StepTimeModel, clock: VirtualClock, limits: ModelLimits, *, num_blocks: int, block_size: int
    ) -> None:
        self._step_time = step_time
        self._clock = clock
        self._limits = limits
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._logprobs: dict[int, TokenLogprobs] = {}
        self._embeddings: dict[int, Embedding] = {}

    @property
    def limits(self) -> ModelLimits:
        return self._limits

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        prefill = decode = context = 0
        tokens: list[int | None] = []
        self._logprobs = {}
        self._embeddings = {}
        for place, sequence in enumerate(sequences):
            length = len(sequence.token_ids)
            # As `scheduling.step_time` counts: the position where each chunk ends.
            context += sequence.start + length
            if length == 1 and sequence.output_position > 0:
                decode += 1
            else:
                prefill += length
            if sequence.embed:
                position = sequence.start + length - 1
                self._embeddings[place] = np.array([position, sequence.token_ids[-1]], dtype=np.float32)
            if sequence.sampling is None:
                tokens.append(None)
            else:
                token = self._token(sequence.sampling.seed, sequence.output_position)
                tokens.append(token)
                if sequence.sampling.logprobs is not None:
                    self._logprobs[place] = TokenLogprobs(token, -float(sequence.output_position), ())
        self._clock.advance(self._step_time.predict(prefill, decode, context))
        return tokens

    def take_logprobs(self) -> Mapping[int, TokenLogprobs]:
        """The log probability is minus the output position, as good a number as any."""
        return self._logprobs

    def take_embeddings(self) -> Mapping[int, Embedding]:
        """Two numbers: where the token stands, and its id."""
        return self._embeddings

    def _token(self, seed: int, position: int) -> int:
        # A multiplicative hash; the end tokens are stepped over, so the output limit decides when a request ends.
        token = (seed * 0x9E3779B97F4A7C15 + position * 0xBF58476D1CE4E5B9 >> 17) % self._limits.vocabulary
        while token in self._limits.eos_token_ids:
            token = (token + 1) % self._limits.vocabulary
        return token
