"""What the event loop and the staging thread say to the engine.

Knows the messages. Does not know what the engine does with them (`workers.engine`).
"""

from dataclasses import dataclass

from scheduling.tree import TreeConfig
from workers.request import Arrival
from workers.staging import Refused, Staged

__all__ = ["Drain", "EngineMessage", "NewTree", "QuotaShare", "Revoked"]


@dataclass(frozen=True, slots=True)
class Revoked:
    """The partition belongs to another worker now: drop its requests without an answer."""

    topic: str
    partition: int
    epoch: int
    """The assignment that ended. What comes of a later one stays."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Start nothing new; what runs goes on."""


@dataclass(frozen=True, slots=True)
class QuotaShare:
    """This worker serves such a part of each quota from now on: above 0, at most 1."""

    share: float


@dataclass(frozen=True, slots=True)
class NewTree:
    """Go on under this class tree, with all that is queued, in flight and owed."""

    tree: TreeConfig


EngineMessage = Arrival | Staged | Refused | Revoked | Drain | QuotaShare | NewTree
