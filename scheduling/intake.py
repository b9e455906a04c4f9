"""What becomes of a request on arrival: its service class, or a refusal that says when to come again.

Knows bounds on what is queued, tenants' quotas (it asks the gate), how fast each class drains. Does not know records,
bodies or error texts. Asked once a request, before it is queued.

A request may be lowered once, by any of: its tenant's quota (`over: demote`), a prompt beyond `long_prompt_tokens`, a
full queue (`full: demote`). It is refused when its quota says so, or when the queue is full and nothing below has room.
The default (`pause`) refuses nobody: what does not fit is left in Kafka (`workers.intake.residency`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from scheduling.priority import PriorityClass
from scheduling.quota import Over, Quotas

__all__ = ["Accepted", "Drain", "Full", "Intake", "IntakeError", "IntakeLimits", "OverQuota", "QueueFull"]

_SAMPLE_S = 1.0
_WINDOW_S = 30.0
"""Weight of the past in the drain."""
_RETRY_MIN_S = 1.0
_RETRY_MAX_S = 3600.0
_RETRY_UNKNOWN_S = 60.0
"""Where nothing has left the queue for as long as is remembered."""


class Full(Enum):
    PAUSE = "pause"
    """Leave it in Kafka."""
    REJECT = "reject"
    DEMOTE = "demote"
    """To `demote_to`; reject where that is full too."""


class IntakeError(ValueError):
    """Bounds that contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    full: Full = Full.PAUSE
    max_queued: int | None = None
    """Requests of a class that may wait. None: no bound."""
    max_queued_cost: int | None = None
    """Their predicted cost."""
    long_prompt_tokens: int | None = None
    """A prompt estimated to have more is served in `demote_to`. P0 too: who needs it urgently shortens it."""
    demote_to: PriorityClass = PriorityClass.P3

    def __post_init__(self) -> None:
        bounded = self.max_queued is not None or self.max_queued_cost is not None
        if bounded and self.full is Full.PAUSE:
            raise IntakeError(
                "max_queued and max_queued_cost say when to reject or demote: set full to one of them, or bound what "
                "is read ahead with ingress.max_rows, which pauses"
            )
        if not bounded and self.full is not Full.PAUSE:
            raise IntakeError(f"full = {self.full.value} needs max_queued or max_queued_cost")


@dataclass(frozen=True, slots=True)
class Accepted:
    service: PriorityClass


@dataclass(frozen=True, slots=True)
class OverQuota:
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class QueueFull:
    retry_after_s: float
    """What the class's queue takes to drain, as measured."""
    queue_depth: int
    """Requests."""


class Queue(Protocol):
    """What intake needs to know of the discipline (`scheduling.accounting.AccountedQdisc`)."""

    def queued_of(self, priority: PriorityClass) -> tuple[int, int]: ...

    def left_cost(self, priority: PriorityClass) -> int: ...

    def over_quota_s(self, tenant: str, service: PriorityClass, now: float) -> float: ...


class Drain:
    """How fast each class's queue empties, in cost units a second: a decaying mean over the last half minute or so."""

    def __init__(self, left_cost: Callable[[PriorityClass], int], now: float) -> None:
        self._left_cost = left_cost
        self._sampled_s = now
        self._left = [left_cost(priority) for priority in PriorityClass]
        self._rate: list[float | None] = [None] * len(PriorityClass)

    def observe(self, now: float) -> None:
        """Any number of times: it looks once a second."""
        seconds = now - self._sampled_s
        if seconds < _SAMPLE_S:
            return
        keep = max(0.0, 1.0 - seconds / _WINDOW_S)
        for priority in PriorityClass:
            left = self._left_cost(priority)
            rate = (left - self._left[priority]) / seconds
            before = self._rate[priority]
            self._rate[priority] = rate if before is None else keep * before + (1 - keep) * rate
            self._left[priority] = left
        self._sampled_s = now

    def seconds(self, priority: PriorityClass, cost: int) -> float:
        """Until so much of the class has left the queue; between 1 s and an hour."""
        rate = self._rate[priority]
        if rate is None or rate <= 0:
            return _RETRY_UNKNOWN_S
        return min(_RETRY_MAX_S, max(_RETRY_MIN_S, cost / rate))


class Intake:
    def __init__(self, limits: IntakeLimits, quotas: Quotas, queue: Queue, now: float) -> None:
        self._limits = limits
        self._quotas = quotas
        self._queue = queue
        self._drain = Drain(queue.left_cost, now)

    def set_quotas(self, quotas: Quotas) -> None:
        """From the next request on."""
        self._quotas = quotas

    def decide(
        self, tenant: str, service: PriorityClass, prompt_tokens: int, now: float
    ) -> Accepted | OverQuota | QueueFull:
        """`service`: what the topic gives, or the request asks for. `prompt_tokens`: estimated."""
        limits = self._limits
        self._drain.observe(now)
        quota = self._quotas.of(tenant)
        if quota is not None and quota.over is not Over.WAIT:
            over_s = self._queue.over_quota_s(tenant, service, now)
            if over_s > 0:
                if quota.over is Over.REJECT:
                    return OverQuota(max(_RETRY_MIN_S, over_s))
                service = max(service, self._quotas.demote_to)
        if limits.long_prompt_tokens is not None and prompt_tokens > limits.long_prompt_tokens:
            service = max(service, limits.demote_to)
        if not self._is_full(service):
            return Accepted(service)
        if limits.full is Full.DEMOTE and service < limits.demote_to and not self._is_full(limits.demote_to):
            return Accepted(limits.demote_to)
        depth, cost = self._queue.queued_of(service)
        return QueueFull(self._drain.seconds(service, cost), depth)

    def _is_full(self, service: PriorityClass) -> bool:
        limits = self._limits
        if limits.full is Full.PAUSE:
            return False
        depth, cost = self._queue.queued_of(service)
        too_many = limits.max_queued is not None and depth >= limits.max_queued
        return too_many or (limits.max_queued_cost is not None and cost >= limits.max_queued_cost)
