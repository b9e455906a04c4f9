"""How many tokens a request will generate: predicted, because it is charged before it is known.

Knows classes, tenants and output lengths. Does not know prompts (a better predictor may; it has the same protocol).

Algorithm: a histogram of output lengths for each (class, tenant) and one for each class, with logarithmic buckets
and exponential forgetting; the prediction is a quantile of the tenant's histogram once it has enough samples, else
of the class's, else the prior: `max_tokens` itself. Never above `max_tokens`.

Source: the idea of charging a quantile rather than the mean is that of the virtual token counter's "length
prediction" variant and of admission by percentile in batch schedulers; the histogram is the usual HDR form.

Why: O(1) to learn, 200 bytes a tenant, no model. Too low a prediction lets a class run ahead of its share until its
output is charged; too high holds capacity it won't use until settlement. The median keeps the two even.

Drawbacks: blind to the prompt; a tenant with two kinds of requests gets something between. Limits: buckets are
19 % wide, so a prediction is that coarse; at most `max_tenants` histograms, the least recently used is forgotten.
"""

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from math import log2
from typing import Protocol

from scheduling.priority import PriorityClass

__all__ = ["LengthPredictor", "LengthStatistics", "QuantilePredictor"]

_BUCKETS_AN_OCTAVE = 4
_BUCKETS = 20 * _BUCKETS_AN_OCTAVE
"""Up to 2²⁰ tokens."""
_MIN_SAMPLES = 16.0
_WINDOW_SAMPLES = 512.0
"""Weight of the past, in requests."""


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """How far predictions were from what was generated."""

    observed: int
    predicted_tokens: int
    actual_tokens: int
    mean_error_tokens: float
    """Signed: positive when more was generated than predicted."""
    mean_absolute_error_tokens: float
    exceeded: int
    """Requests that generated more than predicted."""
    tenants: int
    """Tenants with a histogram of their own now."""


class LengthPredictor(Protocol):
    def predict(self, priority: PriorityClass, tenant: str, max_tokens: int) -> int:
        """Expected output tokens: from 1 to `max_tokens`."""
        ...

    def observe(self, priority: PriorityClass, tenant: str, predicted: int, actual: int) -> None:
        """A request that was predicted so has ended by itself after `actual` tokens."""
        ...

    def statistics(self) -> LengthStatistics: ...


class QuantilePredictor:
    def __init__(self, quantile: float = 0.5, max_tenants: int = 4096) -> None:
        if not 0.0 < quantile < 1.0:
            raise ValueError(f"the predicted quantile is {quantile}: it must lie between 0 and 1")
        if max_tenants < 1:
            raise ValueError(f"length prediction for {max_tenants} tenants: at least 1")
        self._quantile = quantile
        self._max_tenants = max_tenants
        self._classes = {priority: _Histogram() for priority in PriorityClass}
        self._tenants: OrderedDict[tuple[PriorityClass, str], _Histogram] = OrderedDict()
        self._observed = 0
        self._predicted = 0
        self._actual = 0
        self._absolute_error = 0
        self._exceeded = 0

    def predict(self, priority: PriorityClass, tenant: str, max_tokens: int) -> int:
        assert max_tokens >= 1, f"{max_tokens=}"
        histogram = self._tenants.get((priority, tenant))
        if histogram is None or histogram.samples < _MIN_SAMPLES:
            histogram = self._classes[priority]
        if histogram.samples < _MIN_SAMPLES:
            return max_tokens
        return min(max_tokens, histogram.quantile(self._quantile))

    def observe(self, priority: PriorityClass, tenant: str, predicted: int, actual: int) -> None:
        key = (priority, tenant)
        histogram = self._tenants.get(key)
        if histogram is None:
            if len(self._tenants) >= self._max_tenants:
                self._tenants.popitem(last=False)
            histogram = self._tenants[key] = _Histogram()
        else:
            self._tenants.move_to_end(key)
        histogram.add(actual)
        self._classes[priority].add(actual)
        self._observed += 1
        self._predicted += predicted
        self._actual += actual
        self._absolute_error += abs(actual - predicted)
        self._exceeded += actual > predicted

    def statistics(self) -> LengthStatistics:
        observed = max(1, self._observed)
        return LengthStatistics(
            observed=self._observed,
            predicted_tokens=self._predicted,
            actual_tokens=self._actual,
            mean_error_tokens=(self._actual - self._predicted) / observed,
            mean_absolute_error_tokens=self._absolute_error / observed,
            exceeded=self._exceeded,
            tenants=len(self._tenants),
        )


class _Histogram:
    """Decaying counts in logarithmic buckets; the quantile is kept until the next sample."""

    __slots__ = ("_counts", "_known", "_weight", "samples")

    def __init__(self) -> None:
        self._counts: array[float] = array("f", bytes(4 * _BUCKETS))
        self._weight = 1.0
        """What one sample counts now; it grows instead of all the old counts shrinking."""
        self.samples = 0.0
        """Effective number of samples."""
        self._known: tuple[float, int] | None = None

    def add(self, tokens: int) -> None:
        bucket = min(_BUCKETS - 1, int(_BUCKETS_AN_OCTAVE * log2(max(1, tokens))))
        self._counts[bucket] += self._weight
        self._weight /= 1.0 - 1.0 / _WINDOW_SAMPLES
        self.samples = self.samples * (1.0 - 1.0 / _WINDOW_SAMPLES) + 1.0
        self._known = None
        if self._weight > 1e12:
            # Far below what a 32-bit float holds, so the sum of a full window still adds up.
            for number in range(_BUCKETS):
                self._counts[number] /= self._weight
            self._weight = 1.0

    def quantile(self, quantile: float) -> int:
        """The upper end of the bucket in which the quantile lies, in tokens."""
        if self._known is not None and self._known[0] == quantile:
            return self._known[1]
        wanted = quantile * sum(self._counts)
        below = 0.0
        upper_end = 0
        for count in self._counts:
            upper_end += 1
            below += count
            if below >= wanted and count:
                break
        tokens = max(1, int(2 ** (upper_end / _BUCKETS_AN_OCTAVE)))
        self._known = (quantile, tokens)
        return tokens
