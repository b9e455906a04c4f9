"""The policies by name: from configuration to a queueing discipline.

Knows every policy's constructor. Does not know what they do.
"""

from functools import partial
from typing import Any

from scheduling.accounting import AccountedQdisc
from scheduling.cost import CostModel
from scheduling.discipline import Discipline
from scheduling.fifo import Fifo
from scheduling.htb import Htb
from scheduling.htb_build import MakeLeaf
from scheduling.index import Index
from scheduling.row_list import RowLinks
from scheduling.sfq import FlowRows, Sfq
from scheduling.strict import Strict
from scheduling.tenants import Tenants
from scheduling.tree import ClassConfig, FlowOrder, LeafConfig, TreeConfig

__all__ = ["LEAF_POLICIES", "POLICIES", "PolicyError", "make_qdisc"]

POLICIES = ("htb", "fifo", "strict")
"""What `make_qdisc` knows; the first is the default."""
LEAF_POLICIES = ("sfq", "fifo")
"""What may order a tenant's requests."""


class PolicyError(ValueError):
    """A policy name nobody knows. The message lists those that are known."""


def make_qdisc(
    name: str, index: Index, tree: TreeConfig, cost: CostModel | None = None, now: float = 0.0
) -> AccountedQdisc:
    """The discipline `name` over the rows of `index`. `now`: the start, on the clock of all later calls.

    Raises `PolicyError` for a name that is not in `POLICIES` (or, in the tree's leaves, not in `LEAF_POLICIES`).
    """
    assert cost is None or cost == index.cost, f"the index's rows are priced by {index.cost}, not by {cost}"
    discipline: Discipline[Any]
    if name == "htb":
        discipline = Htb(index, tree, _leaf_factory(index, tree, now), now)
    elif name == "fifo":
        discipline = Fifo(index)
    elif name == "strict":
        discipline = Strict(index)
    else:
        raise PolicyError(f"unknown policy {name!r}: choose one of {', '.join(POLICIES)}")
    return AccountedQdisc(index, discipline)


def _leaf_factory(index: Index, tree: TreeConfig, now: float) -> MakeLeaf:
    """Makes classes' tenants and their queues. Rows of all leaves share their links: a row is in one queue only."""
    for config in tree.walk():
        policy = config.tenants.leaf.policy
        if policy not in LEAF_POLICIES:
            raise PolicyError(
                f"class {config.name}: unknown leaf policy {policy!r}, choose one of {', '.join(LEAF_POLICIES)}"
            )
    flow_rows = {order: FlowRows(index, order) for order in FlowOrder}
    links = RowLinks()

    def make_queue(leaf: LeafConfig) -> Discipline[Any]:
        if leaf.policy == "sfq":
            return Sfq(index, leaf, flow_rows[leaf.order])
        return Fifo(index, links)

    def make_leaf(config: ClassConfig) -> Tenants:
        return Tenants(
            index,
            config.tenants,
            partial(make_queue, config.tenants.leaf),
            burst=tree.largest_item,
            initial_fill=tree.initial_fill,
            now=now,
        )

    return make_leaf
