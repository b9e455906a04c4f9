"""The JSON of a reply with embeddings.

Knows how a hidden state becomes a vector: its beginning, scaled to length 1, in the form that was asked for. Does not
know how hidden states are computed, nor topics. A test holds the shape to `topics.embeddings.EmbeddingList`.

A request may ask for a million numbers. Each vector is written when its own sequence has ended, so that the event loop
gets its turn between them, and the reply is only put together.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np

from topics.codec import dumps
from workers.intake.embedding import EmbeddingForm
from workers.runners.runner import Embedding

__all__ = ["embedding_item", "embedding_reply", "unit_vector"]


def embedding_item(index: int, embedding: Embedding, form: EmbeddingForm) -> bytes:
    """One vector of a reply's `data`; `index`: of its input."""
    vector = unit_vector(embedding, form.dimensions)
    return dumps({"object": "embedding", "index": index, "embedding": _written(vector, form)})


def embedding_reply(model: str, items: Sequence[bytes], prompt_tokens: int) -> bytes:
    """The value of a `final`. `items`: in the order of their inputs."""
    usage = dumps({"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens})
    return b'{"object":"list","data":[%s],"model":%s,"usage":%s}' % (b",".join(items), dumps(model), usage)


def unit_vector(embedding: Embedding, dimensions: int) -> Embedding:
    """The first so many numbers, scaled to length 1; noughts stay noughts."""
    beginning = embedding[:dimensions].astype(np.float64)
    length = float(np.linalg.norm(beginning))
    return (beginning / length if length > 0 else beginning).astype(np.float32)


def _written(vector: Embedding, form: EmbeddingForm) -> Any:
    return b64encode(vector.astype("<f4").tobytes()).decode("ascii") if form.base64 else vector
