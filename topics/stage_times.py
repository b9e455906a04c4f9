"""Where a request's time went, as the header `server-timing` of its terminal reply says it.

Knows the stages and the header's syntax, W3C Server Timing: `queue;dur=1885.8, slot;dur=0.0`, durations in
milliseconds. Does not know how they were measured.

So anybody who holds a reply can tell why it took its time, without a trace: it waited behind others (`queue`), its turn
had come and there was no room (`slot`), or the engine took so long.
"""

from dataclasses import dataclass, fields
from typing import Self

__all__ = ["SERVER_TIMING", "STAGES", "StageTimes"]

SERVER_TIMING = "server-timing"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds. None: it did not get so far."""

    ingress: float | None = None
    """From the record's timestamp (the broker's clock) until the worker had read it (the worker's)."""
    queue: float | None = None
    """Until it was its turn and its prompt was tokenised."""
    slot: float | None = None
    """Until there was room for it: KV blocks, a sequence slot, a place in the step. While all slots are taken it is
    nobody's turn: that is `queue`."""
    prefill: float | None = None
    """Until the first token."""
    decode: float | None = None
    """Until the last token."""
    suspended: float | None = None
    """The part of `prefill` and `decode` in which it was preempted. None: it never was."""
    suspensions: int = 0
    """How often."""

    def encode(self) -> str:
        told = [f"{name};dur={seconds * 1000:.1f}" for name in STAGES if (seconds := getattr(self, name)) is not None]
        if self.suspended is not None:
            told[-1] += f";desc={self.suspensions}"
        return ", ".join(told)

    @classmethod
    def decode_header(cls, value: bytes) -> Self | None:
        """None for what can't be read: a timing is a courtesy, and no reason to lose an answer."""
        try:
            text = value.decode("ascii")
            found: dict[str, float] = {}
            suspensions = 0
            for metric in filter(None, map(str.strip, text.split(","))):
                name, *parameters = (part.strip() for part in metric.split(";"))
                durations = [float(part.removeprefix("dur=")) for part in parameters if part.startswith("dur=")]
                if name in STAGES and durations:
                    found[name] = durations[0] / 1000
                if name == "suspended":
                    suspensions = sum(
                        int(part.removeprefix("desc=")) for part in parameters if part.startswith("desc=")
                    )
        except ValueError:  # a UnicodeDecodeError is one
            return None
        return cls(**found, suspensions=suspensions)


STAGES = tuple(field.name for field in fields(StageTimes) if field.name != "suspensions")
"""The last one is `suspended`."""
