"""A new class tree under running requests.

Knows the old nodes and the new configuration. Does not know rows.

Priority classes are known again by their priority, groups by their name; they keep their buckets, with what is saved
or owed, and classes their leaves, with what is queued. Debts in turns are carried over in cost units. A class that is
gone must have nothing queued; what it has in flight is charged to its nearest surviving ancestor.
"""

from scheduling.htb_build import MakeLeaf, build_tree, nodes_of
from scheduling.htb_links import PRIOS, Links
from scheduling.htb_node import ClassNode, GroupNode
from scheduling.tree import TreeConfig, TreeError

__all__ = ["Debts", "check_reload", "rebuild_tree", "restore_turns", "turn_debts"]

Debts = dict[tuple[GroupNode, int, bool], int]
"""By node, prio and whether it is the turn in its level's row (else in its parent's feed): cost units."""


def check_reload(root: GroupNode, config: TreeConfig) -> None:
    """Raises `TreeError` if a class with queued requests would be gone."""
    kept = {child.priority for child in config.walk()}
    for node in nodes_of(root):
        if isinstance(node, ClassNode) and node.priority not in kept and node.queued:
            raise TreeError(
                f"the new tree has no class for {node.priority.label}, which has {node.queued} requests queued: "
                f"keep it until they are done, with rate 0 if need be"
            )


def turn_debts(root: GroupNode, links: Links) -> Debts:
    """What nodes owe in their turns."""
    debts: Debts = {}
    for node in nodes_of(root):
        for prio, turn in node.row_turns.items():
            debts[node, prio, True] = links.rows[node.level * PRIOS + prio].debt(turn)
        if node.parent is not None:
            for prio, turn in node.borrow_turns.items():
                debts[node, prio, False] = node.parent.feeds[prio].debt(turn)
    return {key: debt for key, debt in debts.items() if debt > 0}


def rebuild_tree(root: GroupNode, config: TreeConfig, make_leaf: MakeLeaf, now: float) -> GroupNode:
    """The new root over the old nodes, linked to nobody; classes that are gone have their heirs."""
    old = list(nodes_of(root))
    parents = {node: node.parent for node in old}
    new_root = build_tree(config, make_leaf, now, old)
    kept = set(nodes_of(new_root))
    for node in old:
        if not isinstance(node, ClassNode) or node in kept:
            continue
        heir = parents[node]
        while heir is not None and heir not in kept:
            heir = parents[heir]
        assert heir is not None, "the root stays"
        node.heir = heir
    return new_root


def restore_turns(debts: Debts, root: GroupNode, links: Links) -> None:
    """Debts of turns that there still are, before anybody wants service."""
    kept = set(nodes_of(root))
    for (node, prio, in_row), debt in debts.items():
        if node not in kept or prio not in node.feeds or node.parent is None:
            continue
        if in_row:
            links.rows[node.level * PRIOS + prio].adjust(node.row_turns[prio], debt)
        else:
            node.parent.feeds[prio].adjust(node.borrow_turns[prio], debt)
