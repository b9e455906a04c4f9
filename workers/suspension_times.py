"""When a request was suspended and came back, and how long that takes in all.

Knows times of the engine's clock and what the scheduler said of each eviction. Does not decide anything; the engine
notes, `workers.tracing` makes spans of it.

    trigger ──► usable        the turn in which somebody needed the room → the room is there: copies out are done, the
                              forward that uses it may start. (On CUDA: the copies are in the stream before it.)
    evicted ──► readmitted    the victim's wait for blocks and a slot: the resume queue
    evicted ──► resumed       until all that it had computed is there again, copied in or computed anew
"""

from dataclasses import dataclass

from scheduling.plan import Chunk, Eviction

__all__ = ["Duration", "PreemptionTimes", "PreemptionTimesStatistics", "Suspension"]


@dataclass(slots=True)
class Suspension:
    """One preemption of a request. None: not yet."""

    started_s: float
    swapped: bool
    computed_tokens: int
    """When it was evicted."""
    swap_s: float | None
    """What swapping was estimated to take, out and in; None where it was no choice."""
    recompute_s: float
    """What computing again was estimated to take."""
    usable_s: float | None = None
    """Seconds from the trigger until others could use its room."""
    readmitted_s: float | None = None
    resumed_s: float | None = None
    """Or when it was evicted again before it was as far as it had been."""
    recomputed_tokens: int | None = None
    """What was not there any more when it came back."""
    copied_s: float = 0.0
    """What the copies really took, out and in."""
    recomputed_s: float = 0.0
    """What computing again really took: its share of the steps, by the step-time model as it was then."""

    @classmethod
    def of(cls, eviction: Eviction, now: float) -> "Suspension":
        return cls(now, eviction.swapped, eviction.computed_tokens, eviction.swap_s, eviction.recompute_s)

    @property
    def queued_s(self) -> float | None:
        return None if self.readmitted_s is None else self.readmitted_s - self.started_s

    @property
    def suspended_s(self) -> float | None:
        return None if self.resumed_s is None else self.resumed_s - self.started_s

    @property
    def cost_s(self) -> float:
        """What it really cost the engine."""
        return self.copied_s + self.recomputed_s

    def comes_back(self, chunk: Chunk) -> int | None:
        """A step computes a part of it; the tokens to be computed again, the first time."""
        if self.recomputed_tokens is not None:
            return None
        self.recomputed_tokens = max(0, self.computed_tokens - chunk.start)
        return self.recomputed_tokens


@dataclass(frozen=True, slots=True)
class Duration:
    """Of one kind, since the start."""

    count: int = 0
    sum_s: float = 0.0
    most_s: float = 0.0

    def plus(self, seconds: float) -> "Duration":
        return Duration(self.count + 1, self.sum_s + seconds, max(self.most_s, seconds))


@dataclass(frozen=True, slots=True)
class PreemptionTimesStatistics:
    usable: Duration
    """Trigger → room that can be used, an observation for each victim."""
    queued: Duration
    """Evicted → readmitted."""
    suspended: Duration
    """Evicted → as far as it was."""
    swapped: int
    """Of the suspensions that are over."""
    recomputed: int
    cost_s: float
    """What they really cost the engine."""
    estimated_s: float
    """What they were expected to cost: of each the way that was taken."""


class PreemptionTimes:
    """Of one engine. Each suspension counts when it is over; its request carries the single values
    (`workers.request.Timeline`)."""

    def __init__(self) -> None:
        self._usable = self._queued = self._suspended = Duration()
        self._swapped = self._recomputed = 0
        self._cost_s = self._estimated_s = 0.0

    def over(self, suspension: Suspension) -> None:
        if suspension.usable_s is not None:
            self._usable = self._usable.plus(suspension.usable_s)
        if suspension.queued_s is not None:
            self._queued = self._queued.plus(suspension.queued_s)
        if suspension.suspended_s is not None:
            self._suspended = self._suspended.plus(suspension.suspended_s)
        self._swapped += suspension.swapped
        self._recomputed += not suspension.swapped
        self._cost_s += suspension.cost_s
        swap_s = suspension.swap_s
        self._estimated_s += swap_s if suspension.swapped and swap_s is not None else suspension.recompute_s

    def statistics(self) -> PreemptionTimesStatistics:
        return PreemptionTimesStatistics(
            usable=self._usable,
            queued=self._queued,
            suspended=self._suspended,
            swapped=self._swapped,
            recomputed=self._recomputed,
            cost_s=self._cost_s,
            estimated_s=self._estimated_s,
        )
