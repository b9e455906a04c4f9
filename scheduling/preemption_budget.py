"""How often each tenant's requests were suspended for others lately.

Knows tenants by name and times. Does not know requests. Exact, not a bucket: no more than `budget` times lie in any
window of `window_s` seconds. Memory: `budget` times for each tenant that was suspended within the last window.
"""

from collections import OrderedDict, deque

__all__ = ["PreemptionBudget"]


class PreemptionBudget:
    def __init__(self, budget: int, window_s: float) -> None:
        self._budget = budget
        self._window_s = window_s
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        """By tenant, the one that was suspended longest ago first. No empty ones."""

    def left(self, tenant: str, now: float) -> int:
        """Suspensions that the tenant may still suffer now."""
        times = self._times.get(tenant)
        if times is None:
            return self._budget
        while times and times[0] <= now - self._window_s:
            times.popleft()
        if not times:
            del self._times[tenant]
        return self._budget - len(times)

    def spend(self, tenant: str, now: float) -> None:
        """One of its requests is suspended for somebody else."""
        self._times.setdefault(tenant, deque()).append(now)
        self._times.move_to_end(tenant)
        while self._times:
            oldest, times = next(iter(self._times.items()))
            if times[-1] > now - self._window_s:
                break
            del self._times[oldest]

    def __len__(self) -> int:
        """Tenants remembered."""
        return len(self._times)
