"""Times of the monotonic clock as wall-clock time.

Knows one pair of readings, taken at the start: a wall clock that is set later changes nothing.
"""

import time

__all__ = ["WallClock"]


class WallClock:
    """Turns times of the monotonic clock into wall-clock nanoseconds, by one pair of readings taken at the start."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def ns(self, monotonic_s: float) -> int:
        return int(monotonic_s * 1e9) + self._offset_ns
