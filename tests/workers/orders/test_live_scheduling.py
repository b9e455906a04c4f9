"""What the engine hears when orders come and go, and when the configuration is read again."""

from typing import Any

import pytest

from scheduling.cost import CostKind
from scheduling.priority import PriorityClass
from scheduling.quota import Limit, Unit
from scheduling.step_time import LinearStepTime
from scheduling.tree import TreeError
from topics.control_records import PauseOrder, PolicyOrder, QuotaOrder
from workers.configuration.scheduling_config import SchedulingConfig
from workers.engine.assembly import class_tree, cost_model
from workers.engine.messages import EngineMessage, NewPolicy, NewQuotas, NewTree, PausedClasses
from workers.orders.live_scheduling import LiveScheduling

RATES = LinearStepTime(0.01, 0.001, 0.001, 0.0)
TREE: dict[str, Any] = {"classes": [{"name": f"c{n}", "priority": f"p{n}", "weight": 1 + n} for n in range(4)]}


class Live:
    """A live scheduling, and what it has sent."""

    def __init__(self, **config: Any) -> None:
        self.sent: list[EngineMessage] = []
        self.live = LiveScheduling(SchedulingConfig(**config), self._tree, self.sent.append)

    @staticmethod
    def _tree(config: SchedulingConfig) -> Any:
        return class_tree(config, RATES, cost_model(CostKind(config.cost), RATES, 8), 8)

    def obey(self, *orders: Any) -> list[EngineMessage]:
        before = len(self.sent)
        self.live.obey(orders)
        return self.sent[before:]


def test_without_orders_nothing_is_said() -> None:
    assert Live().obey() == []


def test_pauses_come_and_go() -> None:
    live = Live()
    (tenants, classes) = live.obey(PauseOrder(scope="tenant", name="acme"), PauseOrder(scope="class", name="p3"))
    assert isinstance(tenants, NewQuotas)
    assert tenants.paused_tenants == {"acme"}
    assert classes == PausedClasses(frozenset({PriorityClass.P3}))
    (tenants, classes) = live.obey()
    assert isinstance(tenants, NewQuotas)
    assert not tenants.paused_tenants
    assert classes == PausedClasses(frozenset())


def test_a_policy_brings_its_strict_classes_and_goes_back() -> None:
    live = Live()
    (message,) = live.obey(PolicyOrder(policy="fifo"))
    assert isinstance(message, NewPolicy)
    assert (message.policy, message.strict) == ("fifo", frozenset())
    (message,) = live.obey()
    assert isinstance(message, NewPolicy)
    assert (message.policy, message.strict) == ("htb", frozenset({PriorityClass.P0}))


def test_a_tree_under_the_same_policy_keeps_the_books() -> None:
    strict = [{**child, "strict_limit": "10%"} if child["name"] == "c0" else child for child in TREE["classes"]]
    (message,) = Live().obey(PolicyOrder(tree={"classes": strict}))
    assert isinstance(message, NewTree)


def test_an_ordered_quota_replaces_the_configured_one_of_that_tenant_alone() -> None:
    configured = {"tenants": {"a": {"requests_per_minute": 10}, "b": {"requests_per_minute": 20}}}
    live = Live(quotas=configured)
    (message,) = live.obey(QuotaOrder(scope="tenant", tenant="a", limits={"requests_per_minute": 99}))
    assert isinstance(message, NewQuotas)
    assert message.quotas.tenants["a"].limits == (Limit(99, Unit.REQUESTS, 60.0),)
    assert message.quotas.tenants["b"].limits == (Limit(20, Unit.REQUESTS, 60.0),)


def test_an_order_that_makes_no_sense_changes_nothing_until_it_is_taken_back() -> None:
    live = Live()
    assert live.obey(PolicyOrder(policy="lottery"), PauseOrder(scope="class", name="p3")) == []
    assert live.live.problem is not None
    assert "lottery" in live.live.problem
    assert live.obey(PauseOrder(scope="class", name="p3")) == [PausedClasses(frozenset({PriorityClass.P3}))]
    assert live.live.problem is None


def test_the_configuration_that_is_read_again_stands_under_the_orders() -> None:
    live = Live()
    live.obey(PolicyOrder(policy="fifo"))
    live.sent.clear()
    live.live.reconfigure(SchedulingConfig(tree=TREE))
    (message,) = live.sent
    assert isinstance(message, NewTree)
    assert live.live.policy == "fifo"


def test_a_bad_tree_in_the_configuration_leaves_everything() -> None:
    live = Live()
    with pytest.raises(TreeError):
        live.live.reconfigure(SchedulingConfig.model_construct(tree={"classes": []}, tenant_weights={}))
    assert live.sent == []
