"""What is a rate or a spread over the last seconds, out of one look a second.

Knows samples and windows. Does not know metrics' names or where a sample comes from. One thread looks, any may read: a
window is copied in one act.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from math import floor
from statistics import pvariance

__all__ = ["Growth", "Spread", "TenantThroughput"]

_THROUGHPUT_SECONDS = 10
_P99_SECONDS = 600
_PART_MISSED = 0.01


class Spread:
    """The variance of a level over the last `seconds` looks."""

    def __init__(self, seconds: int) -> None:
        self._levels: deque[float] = deque(maxlen=seconds)

    def look(self, level: float) -> None:
        self._levels.append(level)

    def variance(self) -> float:
        levels = self._levels.copy()
        return pvariance(levels) if levels else 0.0


class Growth:
    """How much a total has grown in the last `seconds` looks, and in what time."""

    def __init__(self, seconds: int) -> None:
        self._totals: deque[tuple[float, float]] = deque(maxlen=seconds + 1)
        """Time and total."""

    def look(self, now: float, total: float) -> None:
        self._totals.append((now, total))

    def amount(self) -> float:
        totals = self._totals.copy()
        return totals[-1][1] - totals[0][1] if totals else 0.0

    def rate(self) -> float:
        """A second; 0 before there are two looks."""
        totals = self._totals.copy()
        if len(totals) < 2:
            return 0.0
        return (totals[-1][1] - totals[0][1]) / (totals[-1][0] - totals[0][0])


class TenantThroughput:
    """Tokens a second of each tenant: lately, and what it could rely on."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        """Of the second that runs."""
        self._recent: dict[str, deque[float]] = {}
        self._busy: dict[str, deque[float]] = {}
        """Seconds in which the tenant had something waiting or running."""

    def add(self, tenant: str, tokens: int) -> None:
        self._tokens[tenant] = self._tokens.get(tenant, 0) + tokens

    def look(self, elapsed_s: float, active: Iterable[str]) -> None:
        """A second is over. `active`: tenants that have something waiting or running."""
        tokens, self._tokens = self._tokens, {}
        active = set(active) | tokens.keys()
        for tenant in active | self._recent.keys():
            rate = tokens.get(tenant, 0) / elapsed_s
            self._recent.setdefault(tenant, deque(maxlen=_THROUGHPUT_SECONDS)).append(rate)
            if tenant in active:
                self._busy.setdefault(tenant, deque(maxlen=_P99_SECONDS)).append(rate)

    def mean(self) -> Mapping[str, float]:
        return {
            tenant: sum(rates) / len(rates)
            for tenant, recent in self._recent.copy().items()
            if (rates := recent.copy())
        }

    def reached(self) -> Mapping[str, float]:
        """What 99 % of the busy seconds reached or passed."""
        return {
            tenant: sorted(rates)[floor(_PART_MISSED * len(rates))]
            for tenant, busy in self._busy.copy().items()
            if (rates := busy.copy())
        }
