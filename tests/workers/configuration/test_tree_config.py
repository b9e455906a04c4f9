"""A class tree from the configuration file: spelling, types and promises, each refused with its place."""

from typing import Any

import pytest
import yaml

from scheduling.priority import PriorityClass
from scheduling.tree import FlowOrder, Rate, TreeError
from workers.configuration.tree_config import parse_tree

TREE = """
promote_share: 0.1
classes:
  - name: urgent
    weight: 3
    children:
      - {name: realtime, priority: p0, weight: 2, strict_limit: 40%, slo: {ttft_s: 0.3, tpot_s: 0.05}}
      - {name: online, priority: P1, rate: 25%, ceil: 900}
  - name: batch
    priority: p2
    max_wait_s: 120
    tenants:
      weights: {acme: 2}
      quantum: 300
      leaf: {policy: fifo, order: edf}
  - {name: background, priority: p3, borrow_limit: 0.5}
"""


def test_a_tree_is_read() -> None:
    tree = parse_tree(yaml.safe_load(TREE), capacity_units_s=1000.0)
    assert tree.capacity_units_s == 1000.0
    assert tree.promote_share == 0.1
    realtime, online = tree.of(PriorityClass.P0), tree.of(PriorityClass.P1)
    assert realtime.strict_limit == Rate(share=0.4)
    assert realtime.slo.ttft_s == 0.3
    assert (online.rate, online.ceil) == (Rate(share=0.25), Rate(units_s=900.0))
    batch = tree.of(PriorityClass.P2)
    assert batch.max_wait_s == 120
    assert batch.tenants.weight_of("acme") == 2
    assert (batch.tenants.leaf.policy, batch.tenants.leaf.order) == ("fifo", FlowOrder.EDF)


def class_with(**settings: Any) -> dict[str, Any]:
    return {"classes": [{"name": "only", "priority": "p1", **settings}]}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (class_with(wieght=2), r"tree\.classes\[0\]\.wieght: no such setting"),
        (class_with(rate="half"), r"rate = 'half': write a share of the parent's rate as 50%"),
        (class_with(priority="p9"), r"priority: unknown priority class 'p9'"),
        (class_with(weight="heavy"), r"tree\.classes\[0\]\.weight: .*number"),
        (class_with(slo={"ttft_s": 0}), r"must be above 0 seconds"),
        (class_with(slo=3), r"tree\.classes\[0\]\.slo: a mapping"),
        (class_with(tenants={"leaf": {"order": "random"}}), r"tenants\.leaf\.order"),
        ({"classes": {"name": "only"}}, r"tree\.classes: a list of classes"),
        ({"capacity_units_s": 5, **class_with()}, r"it is measured; leave it out"),
        ({"classes": [{"name": "a", "priority": "p0", "rate": "70%"}, {"name": "b", "priority": "p1", "rate": "40%"}]},
         r"over-committed.*110\.0%"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(document: dict[str, Any], said: str) -> None:
    with pytest.raises(TreeError, match=said):
        parse_tree(document, capacity_units_s=1000.0)
