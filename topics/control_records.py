"""The records of the compacted topic `inference.control`: orders to all workers, and what each worker says of itself.

Knows keys, fields and their bounds; one schema a kind, each with its version. Does not know how they are read
(`topics.control_log`), which of them are in force (`topics.control_orders`) or what obeying means
(`workers.orders.control`).

| key | says | ends |
|---|---|---|
| `cancel/request/ID`, `cancel/job/ID`, `cancel/tenant/T` | what was sent before is not run | at `expires_at_ms` |
| `requeue/ID` | if it waits, send it anew into another class, under the same id | at `expires_at_ms` |
| `pause/class/p2`, `pause/tenant/T` | nothing of it is started; what runs goes on | by a tombstone |
| `quota/tenant/T`, `quota/each-tenant`, `quota/everybody` | this quota instead of the configured one | by a tombstone |
| `policy` | this policy, or class tree, instead of the configured one | by a tombstone |
| `drain/NAME` | the worker of that name ends in order; one that starts later does not | by that worker |
| `worker/NAME` | that worker's own word: alive, and the orders that it has applied | when it leaves |

A key names what is ordered, so compaction keeps the last order for each thing, and a tombstone ends it. That the
earlier ones are lost is right: a later cancel covers all that an earlier one did. The broker's time stamps count
(`LogAppendTime`), on both topics: clients' clocks are not to be trusted.
"""

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from topics.wire_model import Items, WireModel

__all__ = [
    "CANCEL_KEPT_S",
    "CancelOrder",
    "CancelScope",
    "ControlRecord",
    "DrainOrder",
    "PauseOrder",
    "PolicyOrder",
    "QuotaOrder",
    "RequeueOrder",
    "WorkerState",
    "cancel_order",
    "control_key",
    "decode_control_record",
]

_LONGEST_NAME = 256
Name = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
CancelScope = Literal["request", "job", "tenant"]
QuotaLimit = Literal[
    "requests_per_second",
    "requests_per_minute",
    "requests_per_day",
    "cost_per_second",
    "cost_per_minute",
    "cost_per_day",
]
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


class RequeueOrder(WireModel):
    """One that runs already, or that was sent after this order, stays where it is."""

    version: Literal[1] = 1
    request: Name
    to: Literal["p0", "p1", "p2", "p3"]
    expires_at_ms: int = Field(ge=0)


class PauseOrder(WireModel):
    version: Literal[1] = 1
    scope: Literal["class", "tenant"]
    name: Name
    """Of a class: its label."""


class QuotaOrder(WireModel):
    """Of all workers together, as in the configuration."""

    version: Literal[1] = 1
    scope: Literal["tenant", "each-tenant", "everybody"]
    tenant: Name | None = None
    """Of scope `tenant`."""
    limits: dict[QuotaLimit, Positive]
    """None at all: no limit, whatever is configured."""
    over: Literal["wait", "demote", "reject"] = "wait"


class PolicyOrder(WireModel):
    version: Literal[1] = 1
    policy: Name | None = None
    """None: the configured one."""
    tree: dict[str, Any] | None = None
    """As below `scheduling.tree` in the configuration; None: what is configured."""


class DrainOrder(WireModel):
    version: Literal[1] = 1
    worker: Name


class WorkerState(WireModel):
    """Written by the worker of that name, when it has applied new orders and every few seconds."""

    version: Literal[1] = 1
    worker: Name
    classes: Items[Name]
    state: Literal["serving", "draining"]
    applied_offset: int = Field(ge=-1)
    """Orders up to this offset of the topic are in force here."""
    problem: Annotated[str, Field(max_length=2_000)] | None = None
    """Why an order that is in force can't be obeyed here."""
    at_ms: int = Field(ge=0)


ControlRecord = CancelOrder | RequeueOrder | PauseOrder | QuotaOrder | PolicyOrder | DrainOrder | WorkerState


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


_KINDS: Mapping[str, type[ControlRecord]] = {
    "cancel": CancelOrder,
    "requeue": RequeueOrder,
    "pause": PauseOrder,
    "quota": QuotaOrder,
    "policy": PolicyOrder,
    "drain": DrainOrder,
    "worker": WorkerState,
}


def control_key(record: ControlRecord) -> str:
    match record:
        case CancelOrder(scope=scope, name=name):
            return f"cancel/{scope}/{name}"
        case RequeueOrder(request=request):
            return f"requeue/{request}"
        case PauseOrder(scope=of, name=name):
            return f"pause/{of}/{name}"
        case QuotaOrder(scope="tenant", tenant=tenant):
            return f"quota/tenant/{tenant}"
        case QuotaOrder(scope=whose):
            return f"quota/{whose}"
        case PolicyOrder():
            return "policy"
        case DrainOrder(worker=worker):
            return f"drain/{worker}"
        case WorkerState(worker=worker):
            return f"worker/{worker}"


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
