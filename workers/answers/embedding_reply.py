"""The JSON of a reply with embeddings.

Knows how a hidden state becomes a vector: its beginning, scaled to length 1, in the form that was asked for. Does not
know how hidden states are computed, nor topics. A test holds the shape to `topics.embeddings.EmbeddingList`.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np

from topics.codec import dumps
from workers.intake.embedding import EmbeddingForm
from workers.runners.runner import Embedding

__all__ = ["embedding_reply", "unit_vector"]


def embedding_reply(model: str, form: EmbeddingForm, embeddings: Sequence[Embedding], prompt_tokens: int) -> bytes:
    """The value of a `final`. `embeddings`: in the order of their inputs."""
    return dumps(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _written(unit_vector(each, form.dimensions), form)}
                for index, each in enumerate(embeddings)
            ],
            "model": model,
            "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
        }
    )


def unit_vector(embedding: Embedding, dimensions: int) -> Embedding:
    """The first so many numbers, scaled to length 1; noughts stay noughts."""
    beginning = embedding[:dimensions].astype(np.float64)
    length = float(np.linalg.norm(beginning))
    return (beginning / length if length > 0 else beginning).astype(np.float32)


def _written(vector: Embedding, form: EmbeddingForm) -> Any:
    return b64encode(vector.astype("<f4").tobytes()).decode("ascii") if form.base64 else vector
