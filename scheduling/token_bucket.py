"""A token bucket, kept as the moment at which it owes nothing.

Knows a rate, a depth and one moment. Does not know what it limits.

Algorithm: instead of a level and the time it was last looked at, the bucket keeps `zero`, the clock reading at which
its level is (or was) nought. The level at clock t is rate × (t − zero), at most the burst, so `zero` is never further
back than burst ÷ rate. To spend is to move `zero` on; the bucket is solvent when `zero` lies behind, and `zero` itself
is the moment to wait for.

Source: the generic cell rate algorithm in its virtual scheduling form (ITU-T I.371), equal to a leaky bucket. Why: one
number, no refill, the wake-up for free. Deviations from the kernel's (`sch_htb.c`): no floor and no horizon, for one
item here may cost a thousand times another, and a floor would forgive debts. Drawbacks: none known. Limits: the
rounding of the clock times the rate; a rate of nought is taken as `MIN_RATE`.
"""

__all__ = ["MIN_RATE", "TokenBucket"]

MIN_RATE = 1e-9
"""Units a second: one in thirty years."""


class TokenBucket:
    __slots__ = ("depth", "inverse", "rate", "zero")

    def __init__(self, rate: float, burst: float, level: float, clock: float) -> None:
        self.rate = max(rate, MIN_RATE)
        self.inverse = 1.0 / self.rate
        """Clock time a unit."""
        self.depth = burst * self.inverse
        """Clock time in which it fills from nought."""
        self.zero = clock - level * self.inverse
        """When it owes nothing. The inner loop of `htb` reads and moves it as `spend` does."""

    @property
    def burst(self) -> float:
        """The most it holds."""
        return self.depth * self.rate

    def level(self, clock: float) -> float:
        return min(self.burst, (clock - self.zero) * self.rate)

    def spend(self, units: float, clock: float) -> bool:
        """Take units out, or put them back (negative). True: nothing is owed after that."""
        zero = self.zero
        full = clock - self.depth
        if zero < full:
            zero = full
        zero += units * self.inverse
        self.zero = zero if zero > full else full
        return zero <= clock

    def solvent(self, clock: float) -> bool:
        """Nothing is owed."""
        return self.zero <= clock

    def full(self, clock: float) -> bool:
        """It holds its burst: as if it had never been used."""
        return self.zero <= clock - self.depth

    def configure(self, rate: float, burst: float, clock: float) -> None:
        """New rate and burst from now on. What is saved above the new burst is lost, a debt stays."""
        level = self.level(clock)
        self.rate = max(rate, MIN_RATE)
        self.inverse = 1.0 / self.rate
        self.depth = burst * self.inverse
        self.zero = clock - min(level, burst) * self.inverse
