"""Usage records: what each request used, for billing and quotas.

Knows the record on the topic PREFIX.usage. Does not know prices, nor who sums them up.

One for each request that came as far as the scheduler, whatever became of it; written in the transaction of its
terminal reply, so a reader of `read_committed` sees a record if and only if the request was answered, and never two for
one. (At least once there may be two after a crash, under one key: the later one counts.) What ingress refuses has used
nothing, and has no record.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from topics.codec import dumps, loads
from topics.record import InboundRecord, RecordId
from topics.replies import OutboundRecord

__all__ = ["UsageRecord", "usage_key", "usage_record"]

_COMPLETED = frozenset({"stop", "length", "tool_calls"})
_Count = Annotated[int, Field(ge=0)]


class UsageRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    request_id: str
    """The header's, or the record's place."""
    tenant: str
    """Who pays; `default` where no header names somebody, or it is not trusted."""
    priority: str = Field(pattern="^p[0-3]$")
    """The class of the topic that it came on."""
    model: str
    """That was to answer; empty where the request failed before it was looked at."""
    outcome: str
    """`stop` (of embeddings too), `length` or `tool_calls`, or the error's code."""
    prompt_tokens: _Count
    cached_tokens: _Count
    """Of the prompt: those that the prefix cache had."""
    output_tokens: _Count
    cost: _Count
    """Of its uncached prompt and its output, in cost units of the worker that answered (`scheduling.cost`)."""
    attempt: Annotated[int, Field(ge=1)]
    """That answered: 1, or more after crashes."""
    arrived_at_ms: int
    """The request record's timestamp: milliseconds since 1970, by the broker's clock."""
    ended_at_ms: int
    """By the worker's."""

    @property
    def completed(self) -> bool:
        """It was answered, and not with an error."""
        return self.outcome in _COMPLETED

    def encode(self, topic: str, request: RecordId) -> OutboundRecord:
        return usage_record(topic, request, self.model_dump())

    @classmethod
    def decode(cls, record: InboundRecord) -> "UsageRecord":
        """Raises `ValueError` for what no worker wrote."""
        return cls.model_validate(loads(record.value or b""))


def usage_record(topic: str, request: RecordId, fields: Mapping[str, str | int]) -> OutboundRecord:
    """Of the fields of a `UsageRecord`, all of them. For who writes thousands: they are not looked at."""
    return OutboundRecord(topic, None, usage_key(request), dumps(fields))


def usage_key(request: RecordId) -> bytes:
    """The request's identity: the place of its record."""
    return f"{request.topic}/{request.partition}/{request.offset}".encode()
