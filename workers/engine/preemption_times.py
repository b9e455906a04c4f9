"""What suspensions take: noted at each request's timeline, and added up for the engine.

Knows plans, timelines and what the step-time model says of prompts. Does not decide anything.

    trigger ──► usable        the turn in which somebody needed the room → the room is there: copies out are done, the
                              forward that uses it may start. (On CUDA: the copies are in the stream before it.)
    evicted ──► readmitted    the victim's wait for blocks and a slot: the resume queue
    evicted ──► resumed       until all that it had computed is there again, copied in or computed anew
"""

from collections.abc import Callable
from dataclasses import dataclass

from scheduling.plan import Chunk, StepPlan
from workers.engine.timeline import Suspension, Timeline

__all__ = ["Duration", "PreemptionTimes", "PreemptionTimesStatistics"]

TimelineOf = Callable[[int], Timeline]


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
    """Of one engine. Each suspension counts when it is over; its request's timeline carries the single values."""

    def __init__(self, prefill_s: Callable[[int], float]) -> None:
        """`prefill_s`: what so many prompt tokens add to a step, as it is known when it is asked."""
        self._prefill_s = prefill_s
        self._usable = self._queued = self._suspended = Duration()
        self._swapped = self._recomputed = 0
        self._cost_s = self._estimated_s = 0.0

    def planned(self, plan: StepPlan, timeline_of: TimelineOf, now: float) -> None:
        """Who comes back in this plan, and who is evicted."""
        for row in plan.admitted:
            if (suspension := timeline_of(row).suspension) is not None:
                suspension.readmitted_s = now
        for eviction in plan.evictions:
            timeline = timeline_of(eviction.row)
            if (suspension := timeline.suspension) is not None:
                self._over(suspension, now)  # evicted again before it was as far as it had been
            timeline.suspensions.append(Suspension.of(eviction, now))

    def usable(self, plan: StepPlan, timeline_of: TimelineOf, now: float, usable_s: float) -> None:
        """The plan was made at `now`; the room that its evictions made can be used at `usable_s`."""
        for eviction in plan.evictions:
            timeline_of(eviction.row).suspensions[-1].usable_s = usable_s - now

    def computed(self, chunk: Chunk, timeline: Timeline, now: float) -> None:
        """A step has computed a part of a request."""
        if (suspension := timeline.suspension) is None:
            return
        if (again := suspension.comes_back(chunk)) is not None:
            suspension.recomputed_s = self._prefill_s(again)
        if chunk.start + chunk.tokens >= suspension.computed_tokens:
            self._over(suspension, now)

    def _over(self, suspension: Suspension, now: float) -> None:
        suspension.resumed_s = now
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
