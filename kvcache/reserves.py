"""What of the classes' reserves is lent, and what is held back.

Knows the parts of the pool by class, how many blocks a class is charged with, and time. Does not know tables.

Reserves (`kvcache.partitions`) are lent: who has more than its own gives way. Lending costs the borrower what it has
computed, so a *following* class's reserve (an urgent one's) follows its use: the most it held lately, which fades with
a half-life of `PEAK_HALF_LIFE_S` and never counts for more than its ceiling, is held back for it; the rest of the
reserve is lent. Where nobody may be evicted for it, a reserve is not lent at all.
"""

from collections.abc import Callable, Collection, Mapping
from math import exp, log

from kvcache.partitions import Part

__all__ = ["PEAK_HALF_LIFE_S", "Reserves"]

PEAK_HALF_LIFE_S = 60.0


class Reserves:
    """`charged(class)` in its methods: blocks charged to the class now."""

    def __init__(self, num_blocks: int, parts: Mapping[int, Part], following: Collection[int], *, lend: bool) -> None:
        self._whole = Part(0, num_blocks)
        self._parts = dict(parts)
        self._lend = lend
        self._peak = dict.fromkeys(following, 0.0)
        self._peak_s = 0.0

    def part(self, owner_class: int) -> Part:
        """A class that is not named has no reserve and no ceiling."""
        return self._parts.get(owner_class, self._whole)

    def set_following(self, owners: Collection[int]) -> None:
        """These follow their use from now on; of those that stay, what they used is known."""
        self._peak = {owner: self._peak.get(owner, 0.0) for owner in owners}

    def tick(self, now: float, charged: Callable[[int], int]) -> None:
        """Time passes: what the following classes use now, and used lately."""
        fading = exp(-log(2) * max(0.0, now - self._peak_s) / PEAK_HALF_LIFE_S)
        self._peak_s = now
        for owner, peak in self._peak.items():
            self._peak[owner] = max(peak * fading, float(charged(owner)))

    def held_back(self, owner_class: int, charged: Callable[[int], int]) -> int:
        """Blocks that other classes don't hold and have a claim to that is not lent."""
        held_back = 0
        for owner, part in self._parts.items():
            if owner != owner_class:
                kept = part.reserve if not self._lend else min(int(self._peak.get(owner, 0.0)), part.ceiling)
                held_back += max(0, kept - charged(owner))
        return held_back
