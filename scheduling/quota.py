"""Hard quotas: what a tenant, or everybody together, may be served a second, a minute or a day.

Knows limits and the buckets that measure them. Does not know rows or queues (`scheduling.quota_gate`).

A quota is wall-clock: it holds whether or not the machine is idle. Each limit is a token bucket as deep as the limit
itself: a quota of 60 requests a minute lets 60 go at once and then one a second. Overdraft is at most one request, for
what a request costs is known when it has ended. Across the workers of a group a quota is divided: this worker's `share`
of it. Buckets are not durable: after a restart they are full.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from scheduling.priority import PriorityClass
from scheduling.token_bucket import TokenBucket

__all__ = ["Allowance", "Limit", "Over", "Quota", "QuotaError", "Quotas", "Unit"]


class QuotaError(ValueError):
    """A quota that makes no sense. The message names the value and the remedy."""


class Unit(Enum):
    REQUESTS = "requests"
    COST = "cost"
    """Cost units: uncached prompt tokens and output tokens at their prices."""


@dataclass(frozen=True, slots=True)
class Limit:
    amount: float
    unit: Unit
    period_s: float
    """1, 60 or 86,400 for a second, a minute, a day; any other works as well."""

    def __post_init__(self) -> None:
        for name in ("amount", "period_s"):
            if not 0 < getattr(self, name) < inf:
                value = getattr(self, name)
                raise QuotaError(f"quota: {name} is {value}, it must be above 0; leave out what is not limited")


class Over(Enum):
    """What becomes of a request beyond its tenant's quota."""

    WAIT = "wait"
    """It waits until the quota allows it."""
    DEMOTE = "demote"
    """It is served at once, in the class `demote_to`, where the quota does not count."""
    REJECT = "reject"
    """It is answered with an error that says when to come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    limits: tuple[Limit, ...]
    over: Over = Over.WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    everybody: tuple[Limit, ...] = ()
    """On all tenants together. Beyond it all wait."""
    each_tenant: Quota | None = None
    """On each tenant that is not named."""
    tenants: Mapping[str, Quota] = field(default_factory=dict)
    demote_to: PriorityClass = PriorityClass.P3

    @property
    def any(self) -> bool:
        return bool(self.everybody or self.each_tenant or self.tenants)

    def of(self, tenant: str) -> Quota | None:
        """None: no limit."""
        quota = self.tenants.get(tenant, self.each_tenant)
        return quota if quota is not None and quota.limits else None


class Allowance:
    """The buckets of one quota."""

    __slots__ = ("_buckets", "_limits")

    def __init__(self, limits: Iterable[Limit], share: float, now: float) -> None:
        self._limits = tuple(limits)
        self._buckets = [_bucket(limit, share, now) for limit in self._limits]

    def spend(self, requests: int, cost: int, now: float) -> None:
        """Or put back, where negative."""
        for limit, bucket in zip(self._limits, self._buckets, strict=True):
            bucket.spend(requests if limit.unit is Unit.REQUESTS else cost, now)

    def solvent_at(self) -> float:
        """When nothing is owed on any limit, if nothing is spent until then. In the past: now."""
        return max((bucket.zero for bucket in self._buckets), default=-inf)

    @property
    def limits(self) -> tuple[Limit, ...]:
        return self._limits

    def full(self, now: float) -> bool:
        """As if it had never been used."""
        return all(bucket.full(now) for bucket in self._buckets)

    def divide(self, share: float, now: float) -> None:
        """This worker's part of the quota from now on. What is owed stays."""
        for limit, bucket in zip(self._limits, self._buckets, strict=True):
            bucket.configure(share * limit.amount / limit.period_s, share * limit.amount, now)


def _bucket(limit: Limit, share: float, now: float) -> TokenBucket:
    burst = share * limit.amount
    return TokenBucket(burst / limit.period_s, burst, burst, now)
