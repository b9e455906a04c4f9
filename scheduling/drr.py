"""Deficit round robin over the classes: each gets its weight's part of what is served, by cost or by requests.

Knows classes and their weights. Does not know tenants, rates or time.

Algorithm: a queue a class; classes with something queued take turns (`scheduling.rotation`), `_UNIT` cost units of
weight 1 at a time, or `weight` requests at a time (`drr-requests`, known as weighted round robin with deficits).

Source: Shreedhar & Varghese, "Efficient Fair Queueing using Deficit Round-Robin", SIGCOMM 1995; llm-d's and Dynamo's
policy classes are of this kind. Why: the simplest fair sharing, beside which the tree's guarantees must show their use.

Advantage: shares by weight whatever the requests' sizes, no clock, no rates. Drawback: an urgent class waits for its
turn as everybody does, up to the sum of all quanta; in a class the heaviest sender wins; by requests, a class of long
requests takes more than its share. Limits: differences of one quantum + one request between classes.
"""

from scheduling.class_turns import ClassTurns
from scheduling.index import Index
from scheduling.tree import TreeConfig

__all__ = ["Drr", "DrrRequests"]

_UNIT = 512
"""Cost units in a turn of weight 1: `TreeConfig.quantum`'s default."""


class Drr(ClassTurns):
    """Implements `scheduling.discipline.Discipline[int]`, by cost."""

    def __init__(self, index: Index, tree: TreeConfig) -> None:
        super().__init__(index, tree, _UNIT)


class DrrRequests(ClassTurns):
    """Implements `scheduling.discipline.Discipline[int]`, by requests."""

    def __init__(self, index: Index, tree: TreeConfig) -> None:
        super().__init__(index, tree, 1, by_request=True)
