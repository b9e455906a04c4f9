"""Embeddings: the body of a request for vectors and of the reply to it, in OpenAI's schema.

Knows the fields and their ranges. Does not know tokens, the model's own size, or how a vector is made. A request is
told apart by its `input` (`topics.validation`); it has no output, so nothing of how tokens are drawn stands in it.
"""

import struct
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from topics.messages import MAX_NAME_CHARACTERS, MAX_USER_CHARACTERS, ClassWish, Prompts, each_prompt
from topics.wire_model import Items, WireModel

__all__ = ["EmbeddingData", "EmbeddingList", "EmbeddingRequest", "EmbeddingUsage", "vectors_of"]

MAX_DIMENSIONS = 2**31 - 1


class EmbeddingRequest(WireModel):
    """Null stands for the default everywhere."""

    input: Prompts
    """Each is a vector of the reply."""
    model: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)] | None = None
    """None: the model that these topics are for."""
    encoding_format: Literal["float", "base64"] | None = None
    """None: `float`. `base64` is of the numbers' bytes, 32-bit floats in little-endian order."""
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None
    """So many numbers of the vector's beginning, scaled to length 1 again. None: all."""
    user: Annotated[str, Field(max_length=MAX_USER_CHARACTERS)] | None = None
    priority: ClassWish | None = None
    """May lower the topic's class, never raise it. 0 (or `"p0"`) is the most urgent."""

    @property
    def prompts(self) -> "tuple[str | tuple[int, ...], ...]":
        """One string or one list of token ids for each vector."""
        return each_prompt(self.input)

    @property
    def requested_tokens(self) -> int:
        """No output."""
        return 0


class EmbeddingData(WireModel):
    object: Literal["embedding"]
    index: int
    """Of its input."""
    embedding: Items[float] | str
    """Of length 1; a string with `base64`."""


class EmbeddingUsage(WireModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(WireModel):
    """The value of a `final` reply to a request for embeddings."""

    object: Literal["list"]
    data: Items[EmbeddingData]
    model: str
    usage: EmbeddingUsage


def vectors_of(body: Mapping[str, Any]) -> list[Sequence[float]]:
    """Of such a reply, in the order of the inputs. Raises `KeyError`, `TypeError`, `ValueError` for any other body."""
    data = sorted(body["data"], key=lambda each: int(each["index"]))
    return [_numbers(each["embedding"]) for each in data]


def _numbers(embedding: str | Sequence[float]) -> Sequence[float]:
    if not isinstance(embedding, str):
        return embedding
    packed = b64decode(embedding, validate=True)
    return struct.unpack(f"<{len(packed) // 4}f", packed)
