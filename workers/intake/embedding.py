"""What form a request wants its embeddings in, and whether this model and one reply can give it.

Knows the model's embedding size and how large numbers are in JSON. Does not know how a vector is computed (the runners)
or written (`workers.answers.embedding_reply`).
"""

from dataclasses import dataclass

from topics.embeddings import EmbeddingRequest
from topics.errors import RequestError
from workers.runners.runner import ModelLimits, NoEmbeddings

__all__ = ["EmbeddingForm", "embedding_form"]

_REPLY_BYTES = 8_000_000
"""A reply's topic takes records of 8 MiB."""
_FLOAT_BYTES = 13.0
"""Of a number below 1 in JSON, as a rule: nine digits, the sign, `0.` and a comma."""
_BASE64_BYTES = 4 * 4 / 3


@dataclass(frozen=True, slots=True)
class EmbeddingForm:
    dimensions: int
    """Numbers of the vector's beginning that are kept."""
    base64: bool

    @property
    def reply_bytes(self) -> int:
        """What a vector takes of a reply, roughly."""
        return int(self.dimensions * (_BASE64_BYTES if self.base64 else _FLOAT_BYTES))


def embedding_form(request: EmbeddingRequest, inputs: int, limits: ModelLimits) -> EmbeddingForm:
    """`inputs`: how many the request has.

    Raises `RequestError` for what this model doesn't have, or one reply doesn't hold."""
    size = limits.embedding_size
    if isinstance(size, NoEmbeddings):
        raise RequestError.invalid_request(
            "input",
            f"this model gives no embeddings ({size.reason}): send the request to an embedding model's topics.",
            "unsupported_model",
        )
    if request.dimensions is not None and request.dimensions > size:
        raise RequestError.invalid_request(
            "dimensions",
            f"dimensions is {request.dimensions}, this model's vectors have {size}: ask for at most that.",
            "invalid_value",
        )
    form = EmbeddingForm(request.dimensions or size, request.encoding_format == "base64")
    most = max(1, _REPLY_BYTES // form.reply_bytes)
    if inputs > most:
        shorter = "" if form.base64 else ', or set encoding_format to "base64"'
        raise RequestError.invalid_request(
            "input",
            f"{inputs} vectors of {form.dimensions} numbers are more than one reply holds: send at most {most} inputs, "
            f"ask for fewer dimensions{shorter}.",
            "invalid_value",
        )
    return form
