"""When things happened to one request, and to each of its suspensions.

Knows times in seconds of the worker's monotonic clock. Does not decide anything: the engine notes,
`workers.telemetry.tracing` makes spans of it.
"""

from dataclasses import dataclass, field

from scheduling.plan import Chunk, Eviction

__all__ = ["Dispatch", "Suspension", "Timeline"]


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
class Dispatch:
    """How a request came to run: what its trace says about its wait."""

    reason: str
    """By what right it went: its turn, its class's own rate, what it borrowed."""
    passed: tuple[int, ...]
    """Requests of each service class that were dispatched while it waited; empty where nobody counts."""
    victims: int
    """Running requests that were suspended to make room for it."""


@dataclass(slots=True)
class Timeline:
    """When things happened to one request, in seconds of the worker's monotonic clock. None: not yet."""

    arrived_s: float
    staged_s: float | None = None
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float | None = None
    suspensions: list[Suspension] = field(default_factory=list)
    steps: int = 0
    chosen_s: float | None = None
    """Its turn had come, its tokens were there, and it waited for a slot or blocks from then on; None: it had both at
    once."""
    dispatch: Dispatch | None = None
    longest_gap_s: float = 0.0
    """Between two tokens."""
    gaps_s: float = 0.0
    """Between tokens, in all; of several sequences together, the sum of theirs."""
    gaps: int = 0
    """How many these are."""

    @property
    def preemptions(self) -> int:
        return len(self.suspensions)

    @property
    def suspended(self) -> bool:
        """It was preempted and has neither slot nor blocks."""
        return bool(self.suspensions) and self.suspensions[-1].readmitted_s is None

    @property
    def suspended_s(self) -> float:
        """In all, as far as it came back."""
        return sum(suspension.suspended_s or 0.0 for suspension in self.suspensions)

    def token(self, now: float) -> float | None:
        """Another output token; the time since the one before, None for the first."""
        last_s, self.last_token_s = self.last_token_s, now
        if last_s is None:
            self.first_token_s = now
            return None
        gap_s = now - last_s
        self.gaps_s += gap_s
        self.gaps += 1
        if gap_s > self.longest_gap_s:
            self.longest_gap_s = gap_s
        return gap_s

    def embedded(self, now: float) -> None:
        """The one result there is; it comes when a first token would."""
        self.first_token_s = self.last_token_s = now

    @property
    def token_s(self) -> float | None:
        """The mean time of an output token after the first of its sequence; None where there are no such."""
        return self.gaps_s / self.gaps if self.gaps else None

    @property
    def suspension(self) -> Suspension | None:
        """The one that is not over."""
        return self.suspensions[-1] if self.suspensions and self.suspensions[-1].resumed_s is None else None
