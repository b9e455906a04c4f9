"""What a running class tree holds and owes, at one moment.

Knows figures. Does not know how they came about (`scheduling.htb`).
"""

from dataclasses import dataclass

from scheduling.priority import PriorityClass

__all__ = ["Borrowed", "BucketLevel", "TreeStatistics"]


@dataclass(frozen=True, slots=True)
class BucketLevel:
    node: str
    """Of the tree: a class, a group, or `root`."""
    bucket: str
    """`rate`, `strict`, `ceil`, `allowance` or `lending`."""
    level: float
    """Cost units; below 0 it is owed."""
    rate: float
    """Cost units a second."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    lender: str
    """The group whose idle rate it ran on; `root`: the machine's."""
    borrower: PriorityClass
    cost: int
    """Since the start, corrections included."""


@dataclass(frozen=True, slots=True)
class TreeStatistics:
    buckets: tuple[BucketLevel, ...]
    borrowed: tuple[Borrowed, ...]
