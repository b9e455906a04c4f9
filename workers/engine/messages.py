"""What the event loop and the staging thread say to the engine.

Knows the messages. Does not know what the engine does with them (`workers.engine.engine`).
"""

from dataclasses import dataclass

from scheduling.priority import PriorityClass
from scheduling.quota import Quotas
from scheduling.tree import TreeConfig
from topics.assignment import PartitionEpoch
from topics.control_orders import Cancel
from topics.record import RecordId
from workers.intake.request import Arrival
from workers.intake.staging import Refused, Staged

__all__ = [
    "Cancelled",
    "Drain",
    "Dropped",
    "EngineMessage",
    "NewPolicy",
    "NewQuotas",
    "NewTree",
    "PausedClasses",
    "QuotaShare",
    "Reconfiguration",
    "Resumed",
    "Revoked",
]


@dataclass(frozen=True, slots=True)
class Revoked:
    """The partition was taken away: drop its requests without an answer, but for those that are admitted. They go on,
    for it may come back, and each waits to be `Resumed` or `Dropped`."""

    topic: str
    partition: int
    epoch: int
    """The assignment that ended. What comes of a later one stays."""

    @property
    def assignment(self) -> PartitionEpoch:
        return PartitionEpoch(self.topic, self.partition, self.epoch)


@dataclass(frozen=True, slots=True)
class Resumed:
    """A record has come back under a new assignment. What goes on of it is this arrival's from now on."""

    arrival: Arrival


@dataclass(frozen=True, slots=True)
class Dropped:
    """What goes on of these records, since their partition was taken away, is nobody's any more; or it has ended, and
    its ending is read."""

    records: frozenset[RecordId]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """End what these orders name. Requests that come after this message were looked at by ingress."""

    orders: tuple[Cancel, ...]


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


@dataclass(frozen=True, slots=True)
class NewPolicy:
    """Go on under another queueing discipline, with all that is queued and in flight."""

    policy: str
    tree: TreeConfig
    strict: frozenset[PriorityClass]
    """Classes whose tokens go first in a step, as this policy has it."""
    quotas: Quotas
    paused_tenants: frozenset[str]


@dataclass(frozen=True, slots=True)
class NewQuotas:
    """Go on under these quotas, with nothing of the paused tenants let go."""

    quotas: Quotas
    paused_tenants: frozenset[str]


@dataclass(frozen=True, slots=True)
class PausedClasses:
    """Start nothing of these service classes until the next such message; what runs goes on."""

    classes: frozenset[PriorityClass]


Reconfiguration = QuotaShare | NewTree | NewPolicy | NewQuotas | PausedClasses
EngineMessage = Arrival | Staged | Refused | Revoked | Resumed | Dropped | Cancelled | Drain | Reconfiguration
