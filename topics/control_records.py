"""The records of the compacted topic `inference.control`: orders to all workers, and what each worker says of itself.

Knows keys, fields and their bounds; one schema a kind, each with its version. Does not know how they are read
(`topics.control_log`), which of them are in force (`topics.control_orders`) or what obeying means (`workers.control`).

| key | says | ends |
|---|---|---|
| `cancel/request/ID`, `cancel/job/ID`, `cancel/tenant/T` | what was sent before is not run | at `expires_at_ms` |
| `worker/NAME` | that worker's own word: alive, and the orders that it has applied | when it leaves |

A key names what is ordered, so compaction keeps the last order for each thing, and a tombstone ends it. That the
earlier ones are lost is right: a later cancel covers all that an earlier one did. The broker's time stamps count
(`LogAppendTime`), on both topics: clients' clocks are not to be trusted.
"""

import time
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from topics.messages import Items, WireModel

__all__ = [
    "CANCEL_KEPT_S",
    "CancelOrder",
    "CancelScope",
    "ControlRecord",
    "WorkerState",
    "cancel_order",
    "control_key",
    "decode_control_record",
]

_LONGEST_NAME = 256
Name = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME)]
CancelScope = Literal["request", "job", "tenant"]
_LONGEST_KEY = 400

CANCEL_KEPT_S = 86_400.0
"""A day. As long as a cancel is kept, requests that were sent before it may come: those that wait on their topic for
longer are run."""


class CancelOrder(WireModel):
    """End what was sent before this order; what is sent after it is served."""

    version: Literal[1] = 1
    scope: CancelScope
    name: Name
    expires_at_ms: int = Field(ge=0)
    """Milliseconds since 1970: what is read later than this is served. Bounds what workers remember."""


class WorkerState(WireModel):
    """Written by the worker of that name, when it has applied new orders and every few seconds."""

    version: Literal[1] = 1
    worker: Name
    classes: Items[Name]
    state: Literal["serving", "draining"]
    applied_offset: int = Field(ge=-1)
    """Orders up to this offset of the topic are in force here."""
    at_ms: int = Field(ge=0)


ControlRecord = CancelOrder | WorkerState


def cancel_order(
    request_id: str | None = None,
    *,
    job: str | None = None,
    tenant: str | None = None,
    keep_s: float = CANCEL_KEPT_S,
) -> CancelOrder:
    """Raises `ValueError` unless exactly one is named, in at most 256 characters."""
    scopes: dict[CancelScope, str | None] = {"request": request_id, "job": job, "tenant": tenant}
    named = {scope: name for scope, name in scopes.items() if name is not None}
    if len(named) != 1:
        raise ValueError(f"cancel exactly one of a request, a job and a tenant, not {', '.join(named) or 'nothing'}")
    ((scope, name),) = named.items()
    if not 0 < len(name) <= _LONGEST_NAME:
        raise ValueError(f"the {scope}'s name has {len(name)} characters: 1 to {_LONGEST_NAME} can be cancelled")
    if keep_s <= 0:
        raise ValueError(f"keep_s = {keep_s:g}: keep the order for some time, or it has no effect")
    return CancelOrder(scope=scope, name=name, expires_at_ms=int(1000 * (time.time() + keep_s)))


_KINDS: Mapping[str, type[CancelOrder] | type[WorkerState]] = {"cancel": CancelOrder, "worker": WorkerState}


def control_key(record: ControlRecord) -> str:
    if isinstance(record, CancelOrder):
        return f"cancel/{record.scope}/{record.name}"
    return f"worker/{record.worker}"


def decode_control_record(key: str, value: bytes) -> ControlRecord | None:
    """None for a kind that this release doesn't know.

    Raises `ValueError` for a record of a version that this release doesn't know, or that says something else than its
    key.
    """
    kind = _KINDS.get(key.partition("/")[0])
    if kind is None:
        return None
    shown = key[:_LONGEST_KEY]
    try:
        record = kind.model_validate_json(value)
    except ValidationError as error:
        places = ", ".join(sorted({".".join(map(str, problem["loc"])) for problem in error.errors()}))
        raise ValueError(f"the control record {shown!r} can't be read: wrong are {places or 'all of it'}") from None
    if control_key(record) != key:
        raise ValueError(f"the control record {shown!r} says {control_key(record)!r}")
    return record
