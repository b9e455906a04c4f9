"""The sequences of a step behind one another, and what a forward over them gives back.

Knows where each sequence's tokens lie, and which of them something is wanted of. Does not know models, sampling or who
owns the pool.

All lie behind one another, with explicit positions: nothing is padded, and a step may mix pieces of prompts and single
tokens as it likes. Logits are computed only where a token is sampled: the output head of a small model costs as much as
several of its layers. The hidden states behind the last norm are there in any case, and are handed out only for tokens
whose embedding is wanted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from workers.runners.attention.backend import AttentionBackend, AttentionStep, SequenceSpan
from workers.runners.runner import Embedding, SequenceInput

__all__ = ["ForwardOutput", "Ids", "PackedStep", "embeddings_of", "pack"]

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class PackedStep:
    """A step's tokens behind one another, on the host."""

    ids: Ids
    """[tokens]"""
    positions: Ids
    """[tokens], each in its own sequence."""
    rows: Ids
    """[samples]: packed tokens whose logits are wanted."""
    embedded: Ids
    """[embeddings]: packed tokens whose hidden states are wanted; none of them is in `rows`."""
    attention: AttentionStep


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """On the device; valid until the next forward."""

    logits: torch.Tensor
    """[samples, vocabulary]"""
    hidden: torch.Tensor | None = None
    """[embeddings, hidden], behind the model's last norm; None where none is wanted."""


def pack(sequences: Sequence[SequenceInput], attention: AttentionBackend) -> PackedStep:
    """At least one sequence; guesses lie behind their sequence's tokens."""
    lengths = np.array([len(sequence.token_ids) + len(sequence.guess) for sequence in sequences])
    starts = np.array([sequence.start for sequence in sequences])
    ends = lengths.cumsum()
    ids = np.fromiter(
        (token for sequence in sequences for part in (sequence.token_ids, sequence.guess) for token in part),
        np.int64,
        int(ends[-1]),
    )
    # Position of a packed token: its place in the row, less where its sequence begins there, plus its start.
    positions = np.arange(len(ids)) + np.repeat(starts - (ends - lengths), lengths)
    samples = np.array([0 if sequence.sampling is None else 1 + len(sequence.guess) for sequence in sequences])
    # The last `samples` tokens of each sequence.
    rows = np.arange(int(samples.sum())) + np.repeat(ends - samples.cumsum(), samples)
    embedded = ends[[sequence.embed for sequence in sequences]] - 1
    step = attention.begin_step(
        [
            SequenceSpan(sequence.start, int(length), sequence.block_ids)
            for sequence, length in zip(sequences, lengths, strict=True)
        ]
    )
    return PackedStep(ids, positions, rows, embedded, step)


def embeddings_of(sequences: Sequence[SequenceInput], hidden: torch.Tensor | None) -> dict[int, Embedding]:
    """Rows of `hidden` by place of their sequence, copied to the host."""
    if hidden is None:
        return {}
    places = [place for place, sequence in enumerate(sequences) if sequence.embed]
    return dict(zip(places, hidden.float().cpu().numpy().copy(), strict=True))
