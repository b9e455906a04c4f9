"""The policies by name: from configuration to a queueing discipline.

Knows every policy's constructor. Does not know what they do.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scheduling.accounting import OVERRUN_TOKENS, AccountedQdisc
from scheduling.aging import Aging, AgingSteps
from scheduling.clients import ClientKind
from scheduling.cost import CostModel
from scheduling.discipline import Discipline
from scheduling.drr import Drr, DrrRequests
from scheduling.fifo import Fifo
from scheduling.htb import Htb
from scheduling.hybrid import Hybrid
from scheduling.index import Index
from scheduling.keyed_rows import KeyedRows
from scheduling.mlfq import Mlfq
from scheduling.quota import Quotas
from scheduling.quota_gate import QuotaGate
from scheduling.row_list import RowLinks
from scheduling.sfq import FlowRows, Sfq
from scheduling.sjf import Sjf, rows_by_cost
from scheduling.strict import Strict
from scheduling.tenants import Tenants
from scheduling.tiered import Tiered
from scheduling.tree import ClassConfig, FlowOrder, LeafConfig, TreeConfig
from scheduling.vtc import Vtc
from scheduling.wfq import Wfq

__all__ = ["LEAF_POLICIES", "POLICIES", "PolicyError", "change_quotas", "make_qdisc", "switch_policy"]


class PolicyError(ValueError):
    """A policy name nobody knows. The message lists those that are known."""


_MAKE: dict[str, Callable[[Index, TreeConfig, float], Discipline[Any]]] = {
    "htb": lambda index, tree, now: Htb(index, tree, _Leaves(index).tenants, now),
    "fifo": lambda index, tree, now: Fifo(index),
    "strict": lambda index, tree, now: Strict(index),
    "drr": lambda index, tree, now: Drr(index, tree),
    "drr-requests": lambda index, tree, now: DrrRequests(index, tree),
    "wfq": lambda index, tree, now: Wfq(index, tree),
    "vtc": lambda index, tree, now: Vtc(index, weight_of=_tenant_weights(index, tree)),
    "sjf": lambda index, tree, now: Sjf(index),
    "mlfq": lambda index, tree, now: Mlfq(index, now=now),
    "aging": lambda index, tree, now: Aging(index),
    "aging-steps": lambda index, tree, now: AgingSteps(index),
    "tiered": lambda index, tree, now: Tiered(index, tree, _Leaves(index).tenants, now),
    "hybrid": lambda index, tree, now: Hybrid(index, tree),
}
_MAKE_LEAF: "dict[str, Callable[[_Leaves, LeafConfig], Discipline[Any]]]" = {
    "sfq": lambda leaves, config: leaves.sfq(config),
    "fifo": lambda leaves, config: Fifo(leaves.index, leaves.links),
    "wfq": lambda leaves, config: leaves.sfq(replace(config, quantum=1)),
    "vtc": lambda leaves, config: Vtc(leaves.index, ClientKind.FLOW, leaves.links, predicted=True),
    "sjf": lambda leaves, config: Sjf(leaves.index, leaves.by_cost),
    "mlfq": lambda leaves, config: Mlfq(leaves.index, ClientKind.FLOW, leaves.links),
}
_OVERRUN_TOKENS = {"vtc": 1}

POLICIES = tuple(_MAKE)
"""What `make_qdisc` knows; the first is the default."""
LEAF_POLICIES = tuple(_MAKE_LEAF)
"""What may order a tenant's requests. The others order classes, and a leaf has one."""


def make_qdisc(
    name: str,
    index: Index,
    tree: TreeConfig,
    cost: CostModel | None = None,
    now: float = 0.0,
    quotas: Quotas | None = None,
) -> AccountedQdisc:
    """The discipline `name` over the rows of `index`. `now`: the start, on the clock of all later calls.

    Raises `PolicyError` for a name that is not in `POLICIES` (or, in the tree's leaves, not in `LEAF_POLICIES`).
    """
    assert cost is None or cost == index.cost, f"the index's rows are priced by {index.cost}, not by {cost}"
    discipline = _make_discipline(name, index, tree, now)
    overrun_tokens = _OVERRUN_TOKENS.get(name, OVERRUN_TOKENS)
    if quotas is None or not quotas.any:
        return AccountedQdisc(index, discipline, overrun_tokens)
    gate = _make_gate(index, discipline, quotas, now)
    return AccountedQdisc(index, gate, overrun_tokens, gate)


def switch_policy(
    qdisc: AccountedQdisc,
    name: str,
    index: Index,
    tree: TreeConfig,
    now: float,
    quotas: Quotas,
    paused: frozenset[str] = frozenset(),
) -> None:
    """Let `qdisc` go on as the discipline `name`, with all that is queued and in flight. Raises as `make_qdisc`."""
    discipline = _make_discipline(name, index, tree, now)
    overrun_tokens = _OVERRUN_TOKENS.get(name, OVERRUN_TOKENS)
    if not quotas.any and not paused:
        qdisc.switch(discipline, now, overrun_tokens=overrun_tokens, gate=None)
        return
    gate = _make_gate(index, discipline, quotas, now)
    gate.reconfigure(quotas, paused, now)
    qdisc.switch(gate, now, overrun_tokens=overrun_tokens, gate=gate)


def change_quotas(
    qdisc: AccountedQdisc, index: Index, now: float, quotas: Quotas, paused: frozenset[str] = frozenset()
) -> None:
    """Let `qdisc` go on under these quotas, with nothing let go of the tenants `paused`."""
    qdisc.reconfigure_quotas(quotas, paused, now, new_gate=lambda inner: _make_gate(index, inner, Quotas(), now))


def _make_discipline(name: str, index: Index, tree: TreeConfig, now: float) -> Discipline[Any]:
    make = _MAKE.get(name)
    if make is None:
        raise PolicyError(f"unknown policy {name!r}: choose one of {', '.join(POLICIES)}")
    _check_leaves(tree)
    return make(index, tree, now)


def _make_gate(index: Index, discipline: Discipline[Any], quotas: Quotas, now: float) -> QuotaGate:
    held = FlowRows(index, FlowOrder.FIFO)
    return QuotaGate(index, discipline, quotas, lambda: Sfq(index, LeafConfig(), held), now)


class _Leaves:
    """Makes classes' tenants and their queues. Rows of all queues share their links: a row is in one queue only."""

    index: Index
    links: RowLinks
    by_cost: KeyedRows

    def __init__(self, index: Index) -> None:
        self.index = index
        self.links = RowLinks()
        self.by_cost = rows_by_cost(index)
        self._flow_rows = {order: FlowRows(index, order) for order in FlowOrder}

    def tenants(self, tree: TreeConfig, config: ClassConfig, now: float) -> Tenants:
        return Tenants(self.index, config.tenants, self.queue)

    def queue(self, config: LeafConfig) -> Discipline[Any]:
        return _MAKE_LEAF[config.policy](self, config)

    def sfq(self, config: LeafConfig) -> Sfq:
        return Sfq(self.index, config, self._flow_rows[config.order])


def _tenant_weights(index: Index, tree: TreeConfig) -> Callable[[int], float]:
    """Of a row's tenant, in the row's class."""
    templates = {config.priority: config.tenants for config in tree.walk() if config.priority is not None}

    def weight_of(row: int) -> float:
        template = templates.get(index.service_of(row))
        return 1.0 if template is None else template.weight_of(index.tenant_name(row))

    return weight_of


def _check_leaves(tree: TreeConfig) -> None:
    for config in tree.walk():
        policy = config.tenants.leaf.policy
        if policy not in LEAF_POLICIES:
            raise PolicyError(
                f"class {config.name}: unknown leaf policy {policy!r}, choose one of {', '.join(LEAF_POLICIES)}"
            )
