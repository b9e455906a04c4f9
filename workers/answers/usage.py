"""The usage record of a request that has ended.

Knows arrivals and endings. Does not know when it is written (`workers.answers.egress`, with the terminal reply).
"""

from topics.replies import OutboundRecord
from topics.usage import usage_record
from workers.intake.prompt import PreparedRequest
from workers.intake.request import Arrival, Ending, FinishReason, Moved
from workers.telemetry.wall_clock import WallClock

__all__ = ["UsageWriter"]


class UsageWriter:
    def __init__(self, topic: str, clock: WallClock) -> None:
        self._topic = topic
        self._clock = clock

    def record(
        self, arrival: Arrival, prepared: PreparedRequest | None, ending: Ending, attempt: int
    ) -> OutboundRecord:
        reason, ended_s = ending.reason, ending.timeline.ended_s
        assert ended_s is not None, f"{arrival.id} has no end"
        assert not isinstance(reason, Moved), f"{arrival.id} waits in another class, and has used nothing"
        outcome = reason.value if isinstance(reason, FinishReason) else reason.code or str(reason.status_code)
        # Not validated: these are our own words, and thousands may end at once. A test reads them.
        fields: dict[str, str | int] = {
            "request_id": arrival.headers.request_id,
            "tenant": arrival.tenant,
            "priority": arrival.origin_class.label,
            "model": "" if prepared is None else prepared.model,
            "outcome": outcome,
            "prompt_tokens": ending.prompt_tokens,
            "cached_tokens": ending.cached_tokens,
            "output_tokens": ending.output_tokens,
            "cost": ending.cost,
            "attempt": attempt,
            "arrived_at_ms": arrival.timestamp_ms,
            "ended_at_ms": self._clock.ns(ended_s) // 1_000_000,
        }
        return usage_record(self._topic, arrival.id, fields)
