"""The configuration of who goes next: policy, class tree, tenants' weights and quotas, bounds on what waits.

Knows every setting of the section, its unit, its default and its bounds, and how it becomes what `scheduling` takes.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from scheduling.intake import Full, IntakeLimits
from scheduling.policies import POLICIES
from scheduling.priority import PriorityClass
from scheduling.quota import Limit, Over, Quota, Quotas, Unit
from workers.configuration.section import Section, TenantWeights
from workers.configuration.tree_config import parse_tree

__all__ = ["AdmissionConfig", "QuotaConfig", "QuotasConfig", "SchedulingConfig", "TenantQuotaConfig"]

_PERIODS_S = {"second": 1.0, "minute": 60.0, "day": 86_400.0}
ClassLabel = Literal["p0", "p1", "p2", "p3"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _check_policy(name: str) -> str:
    if name not in POLICIES:
        raise ValueError(f"unknown policy: choose one of {', '.join(POLICIES)}")
    return name


class QuotaConfig(Section):
    requests_per_second: Positive | None = None
    """Absent: no limit, as for all of these."""
    requests_per_minute: Positive | None = None
    """Requests that may go at once, and so many a minute on the average."""
    requests_per_day: Positive | None = None
    """The same for a day of 86,400 seconds."""
    cost_per_second: Positive | None = None
    """Cost units: 1 an uncached prompt token, 2 an output token."""
    cost_per_minute: Positive | None = None
    """Cost units a minute."""
    cost_per_day: Positive | None = None
    """Cost units a day."""

    def limits(self) -> tuple[Limit, ...]:
        return tuple(
            Limit(amount, unit, period_s)
            for unit in Unit
            for period, period_s in _PERIODS_S.items()
            if (amount := getattr(self, f"{unit.value}_per_{period}")) is not None
        )


class TenantQuotaConfig(QuotaConfig):
    over: Literal["wait", "demote", "reject"] = "wait"
    """Beyond the quota a request waits for it, is served in admission.demote_to, or is answered with an error (429)."""

    def quota(self) -> Quota:
        return Quota(limits=self.limits(), over=Over(self.over))


class QuotasConfig(Section):
    everybody: QuotaConfig = QuotaConfig()
    """On all tenants together; beyond it all wait, also on an idle machine."""
    each_tenant: TenantQuotaConfig = TenantQuotaConfig()
    """On each tenant that `tenants` does not name."""
    tenants: dict[str, TenantQuotaConfig] = Field(default_factory=dict)
    """By tenant. A name without limits has none."""
    share: float | None = Field(None, gt=0, le=1)
    """This worker's part of each quota. Absent: its part of the partitions that it is assigned, so that the parts of
    all workers of a group add up to one."""


class AdmissionConfig(Section):
    full: Literal["pause", "reject", "demote"] = "pause"
    """When a class's queue is full: leave requests in Kafka (bounded by ingress.max_rows), answer them with an error
    (503, with retry_after), or serve them in demote_to."""
    max_queued: int | None = Field(None, ge=1)
    """Requests of a class that may wait, for reject and demote."""
    max_queued_cost: int | None = Field(None, ge=1)
    """Their predicted cost units, for reject and demote."""
    long_prompt_tokens: int | None = Field(None, ge=1)
    """A prompt estimated to be longer is served in demote_to."""
    demote_to: ClassLabel = "p3"
    """The class of demoted requests."""

    @model_validator(mode="after")
    def _check(self) -> "AdmissionConfig":
        self.limits()
        return self

    def limits(self) -> IntakeLimits:
        return IntakeLimits(
            full=Full(self.full),
            max_queued=self.max_queued,
            max_queued_cost=self.max_queued_cost,
            long_prompt_tokens=self.long_prompt_tokens,
            demote_to=PriorityClass.from_label(self.demote_to),
        )


class SchedulingConfig(Section):
    policy: Annotated[str, AfterValidator(_check_policy)] = POLICIES[0]
    """The queueing discipline; htb, unless others are to be compared with it (docs/scheduling.md says which when)."""
    tree: dict[str, Any] | None = None
    """The class tree (docs/scheduling.md); the shipped one where absent. SIGHUP reads it again."""
    cost: Literal["linear", "log", "measured"] = "linear"
    """What shares are shares of: tokens (1 an uncached prompt token, 2 an output token), their logarithm, or the engine
    time that tokens take on this machine."""
    staged_rows: int | None = Field(None, ge=4)
    """Requests tokenised ahead; twice max_sequences where absent."""
    tenant_weights: TenantWeights = Field(default_factory=dict)
    """Weight of a tenant among its class's tenants; 1 where absent."""
    tenant_quantum: int = Field(256, ge=1)
    """Cost units (1 a prompt token, 2 an output token) that a tenant of weight 1 may run ahead in its turn: about one
    request's worth shares most evenly. A tree's own settings of its tenants go before this and tenant_weights."""
    trust_tenant_header: bool = True
    """False: the `tenant` header is ignored and every request belongs to the tenant `default`."""
    admission: AdmissionConfig = AdmissionConfig()
    quotas: QuotasConfig = QuotasConfig()

    @model_validator(mode="after")
    def _check_tree(self) -> "SchedulingConfig":
        if self.tree is not None:
            parse_tree(self.tree, capacity_units_s=1000.0)
        return self

    def domain_quotas(self) -> Quotas:
        each = self.quotas.each_tenant.quota()
        return Quotas(
            everybody=self.quotas.everybody.limits(),
            each_tenant=each if each.limits else None,
            tenants={tenant: quota.quota() for tenant, quota in self.quotas.tenants.items()},
            demote_to=PriorityClass.from_label(self.admission.demote_to),
        )
