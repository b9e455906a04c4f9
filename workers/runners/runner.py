"""The protocol of a model runner: one packed forward over sequences of any mix.

Knows token ids, positions, block tables and sampling. Does not know requests, priorities or Kafka. Implementations:
`workers.runners.decoder.runner` (a lean forward of the Llama family), `workers.runners.transformers_runner` (any other
causal LM of transformers), `workers.runs.simulated_runner` (a step-time model).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from workers.intake.sampling import SamplingParams, TokenLogprobs

__all__ = ["Embedding", "ModelLimits", "ModelRunner", "NoEmbeddings", "SequenceInput"]

Embedding = np.ndarray[tuple[int], np.dtype[np.float32]]
"""[embedding_size]: the hidden state of one token behind the model's last norm, as it was computed."""


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """One sequence's part of a step."""

    token_ids: Sequence[int]
    """This chunk's tokens, at positions `start … start + len(token_ids)`."""
    start: int
    """Tokens whose KV is already in the blocks."""
    block_ids: Sequence[int]
    """The sequence's block table; it covers `start + len(token_ids)` tokens."""
    sampling: SamplingParams | None
    """None: the chunk doesn't reach the end of the known tokens, or no output is wanted: nothing is sampled."""
    output_position: int = 0
    """The sampled token's index in the output: the counter of the counter-based randomness."""
    history: Sequence[int] = ()
    """All known tokens of the sequence, prompt and output: needed where `sampling` has penalties or a grammar."""
    begun: int | None = None
    """Its place in the forward that was begun ahead (`workers.engine.run_ahead`); None: not in it."""
    guess: Sequence[int] = ()
    """Tokens that may follow, computed behind `token_ids` to see whether they would have been drawn. The blocks cover
    them too; `sampling` is given."""
    embed: bool = False
    """The hidden state of the last of `token_ids` is wanted; then nothing is sampled."""


@dataclass(frozen=True, slots=True)
class NoEmbeddings:
    """The model's hidden states are no embeddings."""

    reason: str


@dataclass(frozen=True, slots=True)
class ModelLimits:
    context_tokens: int
    vocabulary: int
    eos_token_ids: frozenset[int]
    embedding_size: int | NoEmbeddings = NoEmbeddings("nothing is known of its hidden states")
    """Numbers of a hidden state."""

    def at_most(self, context_tokens: int | None) -> "ModelLimits":
        """The same with a context of no more than so many tokens; None: unchanged."""
        return (
            self if context_tokens is None else replace(self, context_tokens=min(self.context_tokens, context_tokens))
        )


class ModelRunner(Protocol):
    """Owned by the engine thread: every method is called from it alone."""

    @property
    def limits(self) -> ModelLimits: ...

    @property
    def block_size(self) -> int:
        """Tokens a block: the attention backend's own property."""
        ...

    @property
    def num_blocks(self) -> int: ...

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        """Run one forward; the sampled token of each sequence, None where `sampling` is None.

        Raises `workers.runners.errors.EngineFault` (out of memory, not-a-number logits).
        """
        ...

    def take_logprobs(self) -> Mapping[int, TokenLogprobs]:
        """Of the last step's tokens, by place in its list of sequences; of those alone whose `sampling` asks."""
        ...

    def take_embeddings(self) -> Mapping[int, Embedding]:
        """Of the last step, by place in its list of sequences: of each that says `embed`."""
        ...
