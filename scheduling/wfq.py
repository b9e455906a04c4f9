"""Weighted fair queueing by start time: the class whose next request would have begun first on a shared machine.

Knows classes and their weights. Does not know tenants, rates or time.

Algorithm: each class has a virtual start time, which a request moves on by cost ÷ weight; the least goes first; a class
that comes back starts at the virtual time of what was served last. The virtual times are the rounds of
`scheduling.rotation` with the smallest quanta: one round is `weight` cost units, remainders carried.

Source: Goyal, Vin, Cheng, "Start-time Fair Queueing", SIGCOMM 1996. Why start time, and not the finish time of Demers,
Keshav, Shenker (SIGCOMM 1989): the start of a request is known when it is dispatched, its finish is not.

Advantage: what `drr` gives, in the finest grain: small requests of a light class wait for one request of each other
class, not for a quantum. Drawback: as of `drr`: no class is urgent, the heaviest sender in a class wins. Limits: two
backlogged classes differ by one largest request each, ÷ weight.
"""

from scheduling.class_turns import ClassTurns
from scheduling.index import Index
from scheduling.tree import TreeConfig

__all__ = ["Wfq"]


class Wfq(ClassTurns):
    """Implements `scheduling.discipline.Discipline[int]`. (As a leaf, over flows, it is `sfq` with a quantum of 1.)"""

    def __init__(self, index: Index, tree: TreeConfig) -> None:
        super().__init__(index, tree, 1)
