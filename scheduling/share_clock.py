"""Virtual time in which the active tenants of a class share its rate by weight.

Knows one rate and the sum of active weights. Does not know tenants.

A tenant's rate is rate × weight ÷ Σ active weights, and changes whenever another one comes or goes. Recomputing all
buckets then would cost O(tenants). So virtual time runs at rate ÷ Σ active weights, and a bucket on this clock fills
at its weight: one addition when the sum changes, and the moment at which a bucket is full or solvent is, in virtual
time, a constant. (Virtual time as in Demers, Keshav, Shenker, "Analysis and Simulation of a Fair Queueing
Algorithm", SIGCOMM 1989.)
"""

from math import inf

__all__ = ["ShareClock"]


class ShareClock:
    __slots__ = ("_active", "_speed", "_weights", "at", "rate", "value")

    def __init__(self, rate: float, at: float) -> None:
        self.rate = rate
        """What is shared, in cost units a second."""
        self._weights = 0.0
        self._active = 0
        self.value = 0.0
        """Virtual time, in cost units a unit of weight, …"""
        self.at = at
        """… at this time."""
        self._speed = rate

    @property
    def active(self) -> int:
        """How many share."""
        return self._active

    def read(self, now: float) -> float:
        """Virtual time, in cost units a unit of weight."""
        if now > self.at:
            self.value += self._speed * (now - self.at)
            self.at = now
        return self.value

    def join(self, weight: float, now: float) -> None:
        self.read(now)
        self._active += 1
        self._weights = self._weights + weight if self._active > 1 else weight
        self._speed = self.rate / self._weights

    def leave(self, weight: float, now: float) -> None:
        """While nobody is active, time runs as it would for the one who left last."""
        self.read(now)
        self._active -= 1
        if self._active:
            self._weights -= weight
        else:
            self._weights = weight
        self._speed = self.rate / self._weights

    def set_rate(self, rate: float, now: float) -> None:
        self.read(now)
        self.rate = rate
        self._speed = rate / self._weights if self._weights else rate

    def share(self, weight: float) -> float:
        """The rate of an active weight, in cost units a second."""
        return self._speed * weight

    def when(self, value: float) -> float:
        """The time at which virtual time will be `value` if nothing changes; `inf` if never."""
        if value <= self.value:
            return self.at
        return self.at + (value - self.value) / self._speed if self._speed > 0 else inf
