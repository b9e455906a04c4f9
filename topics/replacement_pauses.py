"""How long to wait before a consumer that failed is replaced.

Knows how long the ones before it worked. Does not know clocks or Kafka (`topics.consumer`). Pure and synchronous.

A replacement costs the group two rebalances, and a fault may come back with every new consumer (a codec that is not
installed). So the pauses grow from one replacement to the next, the first one included, until a consumer has worked
for a while; that one poll went well says nothing, for another partition may be the bad one.
"""

__all__ = ["ReplacementPauses"]

_PAUSES_S = (0.2, 1.0, 5.0, 15.0, 30.0)
"""Before the first replacement, the second, …; the last one repeats."""
_STEADY_S = 60.0


class ReplacementPauses:
    """Of one consumer and those that replaced it."""

    def __init__(self) -> None:
        self._faults = 0
        """In a row, without a steady time between them."""

    def after(self, worked_s: float) -> float:
        """A consumer failed that had polled for so long: the pause before the next, in seconds."""
        if worked_s >= _STEADY_S:
            self._faults = 0
        pause_s = _PAUSES_S[min(self._faults, len(_PAUSES_S) - 1)]
        self._faults += 1
        return pause_s
