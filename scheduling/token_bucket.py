"""A token bucket on a clock of its own.

Knows a level, a rate and a burst. Does not know what its clock counts: seconds, or a class's virtual time
(`scheduling.share_clock`), in which the rate is a tenant's weight.

Deviations from the kernel's (`sch_htb.c`, `psched_ratecfg`): the level may be as low as it gets (no floor), the time
since the last look as long as it was (no horizon), for an item here may cost a thousand times another, and a floor
would forgive debts.
"""

from math import inf

__all__ = ["EPSILON", "TokenBucket"]

EPSILON = 1e-3
"""Cost units below zero that count as zero: the rounding of clocks that have counted to 10¹². A request costs at
least one."""


class TokenBucket:
    __slots__ = ("at", "burst", "level", "rate")

    def __init__(self, rate: float, burst: float, level: float, at: float) -> None:
        self.rate = rate
        """Units added a unit of the clock."""
        self.burst = burst
        """The most it holds."""
        self.level = level
        """What it held at clock reading `at`."""
        self.at = at

    def read(self, clock: float) -> float:
        """The level at a clock reading, not earlier than the last one."""
        if clock > self.at:
            level = self.level + self.rate * (clock - self.at)
            self.level = level if level < self.burst else self.burst
            self.at = clock
        return self.level

    def spend(self, units: float, clock: float) -> float:
        """Take units out, or put back (negative; never above the burst). Returns the level."""
        if clock > self.at:
            level = self.level + self.rate * (clock - self.at)
            if level > self.burst:
                level = self.burst
            self.at = clock
        else:
            level = self.level
        level -= units
        if level > self.burst:
            level = self.burst
        self.level = level
        return level

    def solvent(self, clock: float) -> bool:
        """Something is left, or at least nothing owed."""
        return self.read(clock) >= -EPSILON

    def solvent_at(self) -> float:
        """The clock reading from which nothing is owed; `inf` if it never fills."""
        if self.level >= -EPSILON:
            return self.at
        return self.at - self.level / self.rate if self.rate > 0 else inf

    def configure(self, rate: float, burst: float, clock: float) -> None:
        """New rate and burst from now on. What is saved above the new burst is lost, a debt stays."""
        self.read(clock)
        self.rate = rate
        self.burst = burst
        if self.level > burst:
            self.level = burst
