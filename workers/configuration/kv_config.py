"""Settings of the KV cache and of preemption, and whether partitions can hold.

Knows classes by their labels, and fractions. Does not know the pool's size.
"""

from pydantic import Field

from kvcache.partitions import DEFAULT_SHARES, PartitionError, Share, divide
from scheduling.preemption_rules import PreemptionMode
from workers.configuration.section import ClassFractions, CommaList, Section

__all__ = ["CLASSES", "KVConfig", "PreemptionConfig", "check_partitions", "class_shares"]

CLASSES = ("p0", "p1", "p2", "p3")


class KVConfig(Section):
    prefix_cache: bool = True
    """Prompts that begin like an earlier one start behind what it has computed. One cache for all classes."""
    isolate_tenants: bool = False
    """True: nothing is shared between tenants, so that no one can tell by the time what another one asked; what they
    have in common is then computed once for each."""
    reserve: ClassFractions = Field(default_factory=lambda: {f"p{c}": s.reserve for c, s in DEFAULT_SHARES.items()})
    """What of the pool a class can always have; lent while it does not use it. p0=0.15,p1=0.375; 0 where absent."""
    ceiling: ClassFractions = Field(default_factory=lambda: {f"p{c}": s.ceiling for c, s in DEFAULT_SHARES.items()})
    """What of the pool a class can have at most, however idle the rest is; 1 where absent."""
    slot_reserve: ClassFractions = Field(
        default_factory=lambda: {f"p{c}": s.reserve for c, s in DEFAULT_SHARES.items()}
    )
    """The same of max_sequences."""
    slot_ceiling: ClassFractions = Field(default_factory=dict)
    """The same of max_sequences; 1 where absent."""
    strict_prompt_tokens: int = Field(1024, ge=0)
    """KV for an urgent prompt of so many tokens can be had within a step: it is free, or held by requests that may be
    suspended. At most for a quarter of the pool."""
    swap_bytes: int | None = Field(None, ge=0)
    """Memory on the CPU for the KV of suspended requests; half of the pool's where absent, a quarter of what is free
    where that is less. 0: nothing is swapped."""


class PreemptionConfig(Section):
    mode: PreemptionMode = PreemptionMode.AUTO
    """none: nobody is ever suspended. cooperative: only where a running request can't grow otherwise. swap, recompute,
    auto: also for urgent requests and for classes within their reserve; by copying KV out, by computing it again, or
    by what costs less."""
    preemptible: CommaList = ("p0", "p1", "p2", "p3")
    """Classes whose requests may be suspended for others. (Strict ones never are.)"""
    budget: int = Field(64, ge=0)
    """A tenant's requests are suspended for others at most so often in a window; past it the next is demoted to p2. A
    strict request that finds nobody else goes past that, but suspends no single request more often."""
    window_s: float = Field(60.0, gt=0)
    """The window of the budget."""
    swap_theta: float = Field(1.0, gt=0)
    """auto swaps where that takes less than so many times the recomputation."""


def class_shares(reserve: dict[str, float], ceiling: dict[str, float]) -> dict[int, Share]:
    return {number: Share(reserve.get(label, 0.0), ceiling.get(label, 1.0)) for number, label in enumerate(CLASSES)}


def check_partitions(kv: KVConfig, preemption: PreemptionConfig, max_sequences: int) -> None:
    """Raises `ValueError` with the sum and the remedy."""
    for name, given in (
        ("kv.reserve", kv.reserve),
        ("kv.ceiling", kv.ceiling),
        ("kv.slot_reserve", kv.slot_reserve),
        ("kv.slot_ceiling", kv.slot_ceiling),
        ("preemption.preemptible", preemption.preemptible),
    ):
        unknown = sorted(set(given) - set(CLASSES))
        if unknown:
            raise ValueError(f"{name}: {', '.join(unknown)} is not one of {', '.join(CLASSES)}")
    try:
        divide("KV blocks", 1, class_shares(kv.reserve, kv.ceiling))
        divide("sequence slots", max_sequences, class_shares(kv.slot_reserve, kv.slot_ceiling))
    except PartitionError as error:
        raise PartitionError(f"kv: {error}") from error
