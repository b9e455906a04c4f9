"""How often somebody was suspended for others lately: a tenant's requests together, or one request.

Knows names and times. Does not know requests. Exact, not a bucket: whoever is spared while nothing is `left` suffers no
more than `budget` suspensions in any window of `window_s` seconds. Memory: `budget` times for each name that was
suspended within the last window.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable

__all__ = ["PreemptionBudget"]


class PreemptionBudget:
    def __init__(self, budget: int, window_s: float) -> None:
        self._budget = budget
        self._window_s = window_s
        self._times: OrderedDict[Hashable, deque[float]] = OrderedDict()
        """The latest ones by name, the one that was suspended longest ago first. No empty ones."""

    def left(self, name: Hashable, now: float) -> int:
        """Suspensions that it may still suffer now."""
        times = self._times.get(name)
        if times is None:
            return self._budget
        while times and times[0] <= now - self._window_s:
            times.popleft()
        if not times:
            del self._times[name]
        return self._budget - len(times)

    def spend(self, name: Hashable, now: float) -> None:
        """It is suspended for somebody else, possibly past its budget."""
        assert self._budget > 0, f"{name} is suspended where nobody may be"
        self._times.setdefault(name, deque(maxlen=self._budget)).append(now)
        self._times.move_to_end(name)
        while self._times:
            oldest, times = next(iter(self._times.items()))
            if times[-1] > now - self._window_s:
                break
            del self._times[oldest]

    def __len__(self) -> int:
        """Names remembered."""
        return len(self._times)
