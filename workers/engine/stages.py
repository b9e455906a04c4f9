"""Where a request's time went, from its timeline.

Knows which of a timeline's moments bound which stage. Does not know who reads it (`topics.stage_times`).
"""

from topics.stage_times import StageTimes
from workers.engine.timeline import Timeline
from workers.intake.request import Arrival
from workers.telemetry.wall_clock import WallClock

__all__ = ["stage_times"]


def stage_times(arrival: Arrival, timeline: Timeline, clock: WallClock) -> StageTimes:
    """A stage that it had not finished when it ended lasts until the end; those after it are absent."""
    arrived_s, ended_s = timeline.arrived_s, timeline.ended_s
    read_ms, stamped_ms = clock.ns(arrived_s) / 1e6, arrival.timestamp_ms
    # A record without a timestamp has −1. Two machines' clocks may differ: less than nothing is nothing.
    ingress_s = max(0.0, read_ms - stamped_ms) / 1000 if stamped_ms >= 0 else None
    if timeline.chosen_s is None and timeline.admitted_s is None and ended_s is not None:
        return StageTimes(ingress=ingress_s, queue=ended_s - arrived_s)  # of a backlog that is cancelled, thousands
    durations: list[float] = []
    since_s = arrived_s
    turn_s = timeline.admitted_s if timeline.chosen_s is None else timeline.chosen_s
    for until_s in (turn_s, timeline.admitted_s, timeline.first_token_s, timeline.last_token_s):
        stage_end_s = ended_s if until_s is None else until_s
        if stage_end_s is not None:
            durations.append(stage_end_s - since_s)
        if until_s is None:
            break
        since_s = until_s
    reached = dict(zip(("queue", "slot", "prefill", "decode"), durations, strict=False))
    suspended_s = timeline.suspended_s if timeline.suspensions else None
    return StageTimes(ingress=ingress_s, suspended=suspended_s, suspensions=timeline.preemptions, **reached)
