"""What each worker says of itself once a second, on the topic for reports: who waits, who runs, who gets what.

Knows the record. Does not know what is done with it (`headrace top` shows it). Key: the worker's name. Totals count
from the worker's start, so that whoever reads two reports knows what happened between them, and none that is missed is
missed for good.
"""

from typing import Annotated, Literal

from pydantic import Field

from topics.wire_model import Items, WireModel

__all__ = [
    "MAX_REQUESTS",
    "MAX_TENANTS",
    "ClassReport",
    "EngineReport",
    "KVReport",
    "RequestReport",
    "TenantReport",
    "TimeToFirstToken",
    "WorkerReport",
]

MAX_REQUESTS = 128
MAX_TENANTS = 64

Label = Annotated[str, Field(pattern="^p[0-3]$")]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class TimeToFirstToken(WireModel):
    """Of answered requests, and what it was spent on: sums in seconds."""

    requests: Count = 0
    ingress: Seconds = 0.0
    """From the record's timestamp until the worker had read it."""
    queue: Seconds = 0.0
    """Until its turn came and its prompt was tokenised."""
    slot: Seconds = 0.0
    """Until there was room for it: KV blocks, a sequence slot, a place in the step."""
    prefill: Seconds = 0.0
    """Until the first token."""
    reply: Seconds = 0.0
    """From the last token until the broker had the terminal reply: no part of the time to the first token."""


class ClassReport(WireModel):
    label: Label
    waiting: Count
    """Not admitted yet."""
    oldest_s: Seconds | None
    running: Count
    suspended: Count
    kv_blocks: Count
    rate_units_s: Seconds | None
    """What it is promised, in cost units a second; None where the policy promises nothing."""
    dispatched_units: int
    borrowed_units: int
    preempted: Count
    """How often one of its requests lost its slot and blocks."""
    answered: Count
    missed: Count
    """Of them: those that missed an objective of the class."""
    ttft: TimeToFirstToken


class TenantReport(WireModel):
    label: Label
    tenant: str
    known: Count
    """Waiting, running and suspended requests."""
    running: Count
    output_tokens: Count
    answered: Count


class RequestReport(WireModel):
    """A request that runs, or is suspended."""

    request_id: str
    label: Label
    tenant: str
    state: Literal["prefill", "decode", "suspended"]
    age_s: Seconds
    """Since it arrived."""
    prompt_tokens: Count
    output_tokens: Count
    max_output_tokens: Count
    slack_s: float | None
    """Time left until its first token is due, then until its whole answer is. None: its class has no objective."""
    preemptions: Count


class EngineReport(WireModel):
    steps: Count
    step_seconds: Seconds
    prefill_tokens: Count
    decode_tokens: Count
    capacity_units_s: Seconds
    """What the machine does, measured in saturated steps."""


class KVReport(WireModel):
    blocks: Count
    free: Count
    cached: Count
    """Of the free ones: those that can be found by their content."""
    swapped: Count


class WorkerReport(WireModel):
    version: Literal[1] = 1
    worker: str
    at_ms: Count
    """The worker's clock, milliseconds since the epoch."""
    up_s: Seconds
    policy: str
    model: str
    slots: Count
    classes: Items[ClassReport]
    tenants: Items[TenantReport]
    """Those with the most requests; at most 64."""
    more_tenants: Count
    requests: Items[RequestReport]
    """Most urgent first; at most 128."""
    more_requests: Count
    engine: EngineReport
    kv: KVReport
