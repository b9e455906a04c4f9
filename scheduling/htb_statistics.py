"""A running class tree in figures.

Knows nodes and buckets. Changes nothing. After a reload what was borrowed from a group stands under the group that is
at its level now.
"""

from collections.abc import Iterator

from scheduling.htb_build import nodes_of
from scheduling.htb_node import ROOT_LEVEL, ClassNode, GroupNode
from scheduling.token_bucket import TokenBucket
from scheduling.tree_statistics import Borrowed, BucketLevel, TreeStatistics

__all__ = ["lender_name", "tree_statistics"]

_ROOT = "root"


def tree_statistics(root: GroupNode, now: float) -> TreeStatistics:
    return TreeStatistics(
        buckets=tuple(
            BucketLevel(node.name or _ROOT, name, bucket.level(now), bucket.rate)
            for node in nodes_of(root)
            for name, bucket in _buckets(node)
        ),
        borrowed=tuple(
            Borrowed(lender_name(node, level), node.priority, cost)
            for node in nodes_of(root)
            if isinstance(node, ClassNode)
            for level, cost in enumerate(node.borrowed)
            if cost or level == ROOT_LEVEL
        ),
    )


def _buckets(node: GroupNode) -> Iterator[tuple[str, TokenBucket]]:
    if node.parent is not None:  # the root's own is never charged
        yield "rate", node.bucket
    if isinstance(node, ClassNode) and node.strict is not None:
        yield "strict", node.strict
    for name, bucket in (("ceil", node.ceil), ("allowance", node.allowance), ("lending", node.lending)):
        if bucket is not None:
            yield name, bucket


def lender_name(node: GroupNode, level: int) -> str:
    """Of the ancestor at this level."""
    above = node.parent
    while above is not None and above.level < level:
        above = above.parent
    return _ROOT if above is None else above.name or _ROOT
