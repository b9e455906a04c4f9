"""What preemption may do, as configured. Knows modes and bounds; does not choose anybody."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from scheduling.priority import PriorityClass
from scheduling.tree import Slo

__all__ = ["PreemptionMode", "PreemptionRules"]


class PreemptionMode(Enum):
    NONE = "none"
    """Nobody is ever evicted: a request is admitted only where its longest answer fits beside everybody's longest."""
    COOPERATIVE = "cooperative"
    """Newcomers wait until somebody ends, whoever they are; only growth that finds no block evicts, and reserves are
    not lent."""
    SWAP = "swap"
    """Evict, and keep the KV in the swap pool as long as that has room."""
    RECOMPUTE = "recompute"
    """Evict, and compute the KV again, as far as the prefix cache does not have it still."""
    AUTO = "auto"
    """Evict, by whichever of the two costs less."""

    @property
    def evicts_for_newcomers(self) -> bool:
        return self in (PreemptionMode.SWAP, PreemptionMode.RECOMPUTE, PreemptionMode.AUTO)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRules:
    mode: PreemptionMode = PreemptionMode.RECOMPUTE
    preemptible: frozenset[PriorityClass] = frozenset(PriorityClass)
    """Classes whose requests may be suspended for others. (A strict one never is, and any may be for itself.)"""
    budget: int = 64
    """A tenant's requests are suspended for others at most so often…"""
    window_s: float = 60.0
    """…in so many seconds; then the next is demoted instead. A strict requester that finds nobody else goes past that,
    but suspends no single request more often."""
    slos: Mapping[PriorityClass, Slo] = field(default_factory=dict)
    """What slack is reckoned by; without one it is infinite."""

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise ValueError(f"preemption budget = {self.budget}: must not be negative")
        if not self.window_s > 0:
            raise ValueError(f"preemption window_s = {self.window_s}: must be above 0")
