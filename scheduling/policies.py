"""The policies by name: from configuration to a queueing discipline.

Knows every policy's constructor. Does not know what they do.
"""

from typing import Any

from scheduling.accounting import AccountedQdisc
from scheduling.cost import CostModel
from scheduling.discipline import Discipline
from scheduling.fifo import Fifo
from scheduling.htb import Htb
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
        _check_leaves(tree)
        discipline = Htb(index, tree, _Leaves(index).tenants, now)
    elif name == "fifo":
        discipline = Fifo(index)
    elif name == "strict":
        discipline = Strict(index)
    else:
        raise PolicyError(f"unknown policy {name!r}: choose one of {', '.join(POLICIES)}")
    return AccountedQdisc(index, discipline)


class _Leaves:
    """Makes classes' tenants and their queues. Rows of all queues share their links: a row is in one queue only."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._flow_rows = {order: FlowRows(index, order) for order in FlowOrder}
        self._links = RowLinks()

    def tenants(self, tree: TreeConfig, config: ClassConfig, now: float) -> Tenants:
        return Tenants(self._index, config.tenants, self.queue)

    def queue(self, config: LeafConfig) -> Discipline[Any]:
        if config.policy == "sfq":
            return Sfq(self._index, config, self._flow_rows[config.order])
        return Fifo(self._index, self._links)


def _check_leaves(tree: TreeConfig) -> None:
    for config in tree.walk():
        policy = config.tenants.leaf.policy
        if policy not in LEAF_POLICIES:
            raise PolicyError(
                f"class {config.name}: unknown leaf policy {policy!r}, choose one of {', '.join(LEAF_POLICIES)}"
            )
