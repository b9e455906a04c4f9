"""What a chunk of a streamed answer says, read back from its JSON.

Knows the shapes of chat and completions chunks. Does not know headers or the order of chunks.
"""

from dataclasses import dataclass

from topics.codec import loads
from topics.errors import RequestError

__all__ = ["Chunk", "read_chunk"]


@dataclass(frozen=True, slots=True)
class Chunk:
    text: str
    """Empty for a chunk without."""
    model: str | None
    finish_reason: str | None
    """In the last chunk with a choice."""
    usage: bool
    """The chunk after that, which has the usage and no choice."""
    index: int = 0
    """Of the choice that it is a piece of."""


def read_chunk(value: bytes) -> Chunk | None:
    """None: it is no chunk."""
    try:
        body = loads(value)
        model = body.get("model")
        if not body["choices"]:
            return Chunk("", model, None, usage=True)
        choice = body["choices"][0]
        text = choice["delta"].get("content") if "delta" in choice else choice["text"]
        reason, index = choice.get("finish_reason"), int(choice.get("index", 0))
    except (RequestError, KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None
    return Chunk(text if isinstance(text, str) else "", model, reason, usage=False, index=index)
