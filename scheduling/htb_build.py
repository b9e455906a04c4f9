"""From a tree's configuration to its running nodes, and their rates whenever the machine's capacity is known better.

Knows configuration and nodes. Does not know rows or charges.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from scheduling.discipline import Discipline
from scheduling.htb_node import ROOT_LEVEL, ClassNode, GroupNode
from scheduling.priority import PriorityClass
from scheduling.token_bucket import TokenBucket
from scheduling.tree import ClassConfig, TreeConfig, rates

__all__ = ["MakeLeaf", "build_tree", "fill_buckets", "nodes_of", "set_lending", "set_rates"]

MakeLeaf = Callable[[TreeConfig, ClassConfig, float], Discipline[Any]]
"""What is queued in a priority class, from now on: `Tenants`, or any other discipline."""
_ROOT = ""
"""The root's name, which no class has."""
_LENDING_S = 1.0
"""Seconds of what is lent that a parent may save up for later borrowers."""


def build_tree(config: TreeConfig, make_leaf: MakeLeaf, now: float, known: Iterable[GroupNode] = ()) -> GroupNode:
    """The root, without rates. `known` nodes of an earlier tree are used again (`scheduling.htb_reload`)."""
    classes = {node.priority: node for node in known if isinstance(node, ClassNode)}
    groups = {node.name: node for node in known if not isinstance(node, ClassNode)}

    def add_children(parent: GroupNode, configs: tuple[ClassConfig, ...]) -> None:
        for child in configs:
            quantum = child.quantum if child.quantum is not None else max(1, round(config.quantum * child.weight))
            node: GroupNode
            if child.priority is not None:
                node = classes.get(child.priority) or ClassNode(child.priority, make_leaf(config, child, now))
                node.place(child.name, parent, 0, 1 << child.priority)
                node.give_turns(child.prio, quantum)
            else:
                mask = sum(1 << below.priority for below in child.walk() if below.priority is not None)
                node = groups.get(child.name) or GroupNode()
                node.place(child.name, parent, parent.level - 1, mask)
                add_children(node, child.children)
                for below in node.children:
                    for prio in below.feeds:
                        node.give_turns(prio, quantum)
            node.lendable = child.lendable
            parent.children.append(node)

    root = groups.get(_ROOT) or GroupNode()
    root.place(_ROOT, None, ROOT_LEVEL, (1 << len(PriorityClass)) - 1)
    add_children(root, config.classes)
    for node in root.children:
        for prio in node.feeds:
            root.give_turns(prio, 1)
    return root


def fill_buckets(root: GroupNode, fill: float, now: float) -> None:
    """Part of each burst, at the start."""
    for node in nodes_of(root):
        for bucket in (*node.buckets(), node.strict if isinstance(node, ClassNode) else None):
            if bucket is not None and bucket.solvent(now):
                bucket.zero = now - bucket.depth * fill


def set_rates(root: GroupNode, config: TreeConfig, capacity_units_s: float, now: float) -> None:
    """Resolve all rates on the machine's measured capacity. What is saved or owed stays."""
    root.rate = capacity_units_s
    _set_child_rates(root, config.classes, config, now)


def _set_child_rates(parent: GroupNode, configs: tuple[ClassConfig, ...], tree: TreeConfig, now: float) -> None:
    resolved = rates(configs, parent.rate)
    # Rates in units a second were checked against the capacity that was configured; the measured one may be less.
    scale = min(1.0, parent.rate / sum(resolved)) if sum(resolved) else 1.0
    for node, config, rate in zip(parent.children, configs, resolved, strict=True):
        _set_rates(node, config, rate * scale, parent.rate, tree, now)
        _set_child_rates(node, config.children, tree, now)
    parent.unassigned = max(0.0, parent.rate - scale * sum(resolved))
    if any(config.lendable < 1 for config in configs):
        if parent.lending is None:
            parent.lending = TokenBucket(0.0, 0.0, 0.0, now)
        set_lending(parent, tree.largest_item, now)
    else:
        parent.lending = None


def set_lending(parent: GroupNode, largest_item: int, now: float) -> None:
    """What the parent may lend, after its rate changed or a child became idle or busy."""
    assert parent.lending is not None
    lent = parent.unassigned + sum(child.lendable * child.rate for child in parent.children if not child.queued)
    parent.lending.configure(lent, max(largest_item, lent * _LENDING_S), now)


def _set_rates(
    node: GroupNode, config: ClassConfig, rate: float, parent_rate: float, tree: TreeConfig, now: float
) -> None:
    node.rate = rate
    floor = tree.largest_item
    burst = max(rate * config.burst_s, floor)
    node.bucket.configure(rate, burst, now)
    ceil = None if config.ceil is None else config.ceil.of(parent_rate)
    node.ceil = None if ceil is None else _configured(node.ceil, ceil, max(ceil * config.burst_s, floor), now)
    limit = config.borrow_limit
    if limit is None:
        node.allowance = None
    elif node.allowance is None and not limit:
        # A bucket that owes nothing may be overdrawn by an item; with a limit of nought nobody may borrow even that.
        node.allowance = TokenBucket(0.0, 0.0, -1.0, now)
    else:
        node.allowance = _configured(node.allowance, rate * limit, burst * limit, now)
    if isinstance(node, ClassNode):
        strict = None if config.strict_limit is None else config.strict_limit.of(parent_rate)
        node.strict = (
            None
            if strict is None
            else _configured(node.strict, strict, max(strict * config.strict_burst_s, floor), now)
        )


def _configured(bucket: TokenBucket | None, rate: float, burst: float, now: float) -> TokenBucket:
    if bucket is None:
        return TokenBucket(rate, burst, burst, now)
    bucket.configure(rate, burst, now)
    return bucket


def nodes_of(node: GroupNode) -> Iterator[GroupNode]:
    """The node and all below it, parents first."""
    yield node
    for child in node.children:
        yield from nodes_of(child)
