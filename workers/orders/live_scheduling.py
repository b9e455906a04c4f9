"""Who goes next, as it is now: the configuration, and over it what stands on the control topic.

Knows how orders (`topics.control_records`) and the `scheduling` section become what the engine takes. Does not know how
either comes. Owned by the event loop.

Whatever changes, the whole is made anew and checked before anything of it is sent to the engine, so an order that
makes no sense changes nothing: `problem` says what is wrong with it until it is taken back.
"""

import logging
from collections.abc import Callable, Iterable

from pydantic import ValidationError

from scheduling.index import Index
from scheduling.policies import POLICIES, PolicyError, make_qdisc
from scheduling.priority import PriorityClass
from scheduling.quota import Quotas
from scheduling.tree import TreeConfig, TreeError
from topics.control_orders import StandingOrder
from topics.control_records import PauseOrder, PolicyOrder, QuotaOrder
from workers.configuration.scheduling_config import QuotaConfig, SchedulingConfig, TenantQuotaConfig
from workers.engine.assembly import strict_classes
from workers.engine.messages import EngineMessage, NewPolicy, NewQuotas, NewTree, PausedClasses

__all__ = ["LiveScheduling"]

log = logging.getLogger(__name__)


class LiveScheduling:
    def __init__(
        self,
        config: SchedulingConfig,
        tree_of: Callable[[SchedulingConfig], TreeConfig],
        send: Callable[[EngineMessage], None],
    ) -> None:
        """`tree_of`: the class tree of a section, on this machine; raises `TreeError`. `send`: to the engine."""
        self._configured = config
        self._tree_of = tree_of
        self._send = send
        self._policy, self._tree = config.policy, tree_of(config)
        self._quotas = config.domain_quotas()
        self._paused_tenants: frozenset[str] = frozenset()
        self._paused_classes: frozenset[PriorityClass] = frozenset()
        self._orders: tuple[StandingOrder, ...] = ()
        self.problem: str | None = None
        """What is wrong with the orders that stand; None: they are all obeyed."""

    @property
    def policy(self) -> str:
        return self._policy

    @property
    def has_quotas(self) -> bool:
        return self._quotas.any

    def obey(self, orders: Iterable[StandingOrder]) -> None:
        """All orders that stand now, instead of those that stood before."""
        self._orders = tuple(orders)
        try:
            self._apply(self._configured, self._orders)
        except (PolicyError, TreeError, ValueError) as error:
            self.problem = str(error)
            log.error("what was ordered on the control topic is not done: %s", error)
        else:
            self.problem = None

    def reconfigure(self, config: SchedulingConfig) -> None:
        """Another class tree in the configuration, under the same orders. Raises `TreeError`; then nothing changes."""
        changed = self._configured.model_copy(update={"tree": config.tree, "tenant_weights": config.tenant_weights})
        self._apply(changed, self._orders)
        self._configured = changed

    def _apply(self, config: SchedulingConfig, orders: Iterable[StandingOrder]) -> None:
        paused_tenants: set[str] = set()
        paused_classes: set[PriorityClass] = set()
        quotas = config.quotas
        policy = config.policy
        for order in orders:
            match order:
                case PauseOrder(scope="tenant", name=name):
                    paused_tenants.add(name)
                case PauseOrder(name=label):
                    paused_classes.add(PriorityClass.from_label(label))
                case PolicyOrder():
                    policy = order.policy or policy
                    config = config.model_copy(update={} if order.tree is None else {"tree": order.tree})
                case QuotaOrder(scope="tenant", tenant=tenant):
                    tenants = {**quotas.tenants, str(tenant): _tenant_quota(order)}
                    quotas = quotas.model_copy(update={"tenants": tenants})
                case QuotaOrder(scope="each-tenant"):
                    quotas = quotas.model_copy(update={"each_tenant": _tenant_quota(order)})
                case QuotaOrder():
                    quotas = quotas.model_copy(update={"everybody": QuotaConfig.model_validate(order.limits)})
        config = config.model_copy(update={"quotas": quotas})
        tree = self._tree_of(config)
        _check(policy, tree)
        self._tell(policy, tree, config.domain_quotas(), frozenset(paused_tenants), frozenset(paused_classes))

    def _tell(
        self,
        policy: str,
        tree: TreeConfig,
        quotas: Quotas,
        paused_tenants: frozenset[str],
        paused_classes: frozenset[PriorityClass],
    ) -> None:
        """The engine hears of what is new, and of nothing else: a change of quotas must not forget a tree's debts."""
        strict = strict_classes(policy, tree)
        if policy != self._policy or strict != strict_classes(self._policy, self._tree):
            self._send(NewPolicy(policy, tree, strict, quotas, paused_tenants))
        else:
            if tree != self._tree:
                self._send(NewTree(tree))
            if (quotas, paused_tenants) != (self._quotas, self._paused_tenants):
                self._send(NewQuotas(quotas, paused_tenants))
        if paused_classes != self._paused_classes:
            self._send(PausedClasses(paused_classes))
        self._policy, self._tree, self._quotas = policy, tree, quotas
        self._paused_tenants, self._paused_classes = paused_tenants, paused_classes


def _tenant_quota(order: QuotaOrder) -> TenantQuotaConfig:
    try:
        return TenantQuotaConfig.model_validate({**order.limits, "over": order.over})
    except ValidationError as error:
        raise ValueError(
            f"the quota of {order.tenant or order.scope}: {error.error_count()} fields are wrong"
        ) from error


def _check(policy: str, tree: TreeConfig) -> None:
    """Whether the engine will be able to: raises `PolicyError`, `TreeError`."""
    if policy not in POLICIES:
        raise PolicyError(f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}")
    make_qdisc(policy, Index(capacity=1, initial_rows=1), tree)
